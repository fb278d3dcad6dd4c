// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package nds

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

func sample() *Table {
	return &Table{Hosts: map[string]Host{
		"reviews.shop.svc.cluster.local": {IPs: []string{"10.0.0.7", "fd00::7"}, Registry: Kubernetes, Shortname: "reviews", Namespace: "shop"},
		"*.example.com":                  {IPs: []string{"240.240.0.1"}, Registry: "External"},
		"bücher.example":                 {IPs: []string{"198.51.100.7"}, AltHosts: []string{"books.example", "b.example"}},
		"empty.example":                  {},
	}}
}

// descriptor is the descriptor of the message for the protobuf library.
func descriptor(t testing.TB) protoreflect.MessageDescriptor {
	t.Helper()
	str := func(name string, number int32, label descriptorpb.FieldDescriptorProto_Label) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: proto.String(name), Number: proto.Int32(number), Label: label.Enum(), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
		}
	}
	message := func(name string, number int32, typeName string, label descriptorpb.FieldDescriptorProto_Label) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: proto.String(name), Number: proto.Int32(number), Label: label.Enum(),
			Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: proto.String(typeName),
		}
	}
	const (
		one  = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
		many = descriptorpb.FieldDescriptorProto_LABEL_REPEATED
		path = ".istio.networking.nds.v1.NameTable"
	)
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("nds.proto"), Package: proto.String("istio.networking.nds.v1"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{
			Name:  proto.String("NameTable"),
			Field: []*descriptorpb.FieldDescriptorProto{message("table", 1, path+".TableEntry", many)},
			NestedType: []*descriptorpb.DescriptorProto{
				{Name: proto.String("NameInfo"), Field: []*descriptorpb.FieldDescriptorProto{
					str("ips", 1, many), str("registry", 2, one), str("shortname", 3, one), str("namespace", 4, one), str("alt_hosts", 5, many),
				}},
				{
					Name: proto.String("TableEntry"), Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)},
					Field: []*descriptorpb.FieldDescriptorProto{str("key", 1, one), message("value", 2, path+".NameInfo", one)},
				},
			},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().Get(0)
}

// errNoKey replaces the panic of protobuf's dynamic decoder on an entry without a name.
var errNoKey = errors.New("an entry without a name")

// fromProtobuf decodes the message with protobuf's decoder.
func fromProtobuf(t testing.TB, b []byte) (_ *Table, err error) {
	t.Helper()
	defer func() {
		if recover() != nil {
			err = errNoKey
		}
	}()
	m := dynamicpb.NewMessage(descriptor(t))
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, err
	}
	table := &Table{Hosts: map[string]Host{}}
	m.Get(m.Descriptor().Fields().ByName("table")).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		info := v.Message()
		field := func(name protoreflect.Name) protoreflect.Value {
			return info.Get(info.Descriptor().Fields().ByName(name))
		}
		many := func(name protoreflect.Name) (all []string) {
			for l, i := field(name).List(), 0; i < l.Len(); i++ {
				all = append(all, l.Get(i).String())
			}
			return all
		}
		table.Hosts[k.String()] = Host{
			IPs: many("ips"), Registry: field("registry").String(), Shortname: field("shortname").String(),
			Namespace: field("namespace").String(), AltHosts: many("alt_hosts"),
		}
		return true
	})
	return table, nil
}

func TestProtobufReadsIt(t *testing.T) {
	t.Parallel()
	b := sample().Marshal()
	for name, read := range map[string]func([]byte) (*Table, error){
		"protobuf": func(b []byte) (*Table, error) { return fromProtobuf(t, b) },
		"ours":     Unmarshal,
	} {
		got, err := read(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(sample(), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReadsProtobuf(t *testing.T) {
	t.Parallel()
	m := dynamicpb.NewMessage(descriptor(t))
	if err := proto.Unmarshal(sample().Marshal(), m); err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(m) // in arbitrary order
	if err != nil {
		t.Fatal(err)
	}
	got, err := Unmarshal(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMarshalIsDeterministic(t *testing.T) {
	t.Parallel()
	want := sample().Marshal()
	for range 50 {
		if got := sample().Marshal(); string(got) != string(want) {
			t.Fatal("two encodings of one table differ")
		}
	}
}

func TestUnmarshal(t *testing.T) {
	t.Parallel()
	entry := func(fields ...[]byte) []byte {
		var b []byte
		for _, f := range fields {
			b = append(b, f...)
		}
		return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
	}
	bytesOf := func(number protowire.Number, b string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), b)
	}
	ip := string(bytesOf(1, "10.0.0.1"))
	tests := map[string]struct {
		in   []byte
		want map[string]Host
		err  string
	}{
		"nothing":                  {want: map[string]Host{}},
		"the later entry wins":     {in: append(entry(bytesOf(1, "a"), bytesOf(2, string(bytesOf(1, "10.0.0.9")))), entry(bytesOf(1, "a"), bytesOf(2, ip))...), want: map[string]Host{"a": {IPs: []string{"10.0.0.1"}}}},
		"value before name":        {in: entry(bytesOf(2, ip), bytesOf(1, "a")), want: map[string]Host{"a": {IPs: []string{"10.0.0.1"}}}},
		"two values add up":        {in: entry(bytesOf(1, "a"), bytesOf(2, ip), bytesOf(2, ip)), want: map[string]Host{"a": {IPs: []string{"10.0.0.1", "10.0.0.1"}}}},
		"no name":                  {in: entry(bytesOf(2, ip)), want: map[string]Host{"": {IPs: []string{"10.0.0.1"}}}},
		"no value":                 {in: entry(bytesOf(1, "a")), want: map[string]Host{"a": {}}},
		"unknown fields":           {in: append(bytesOf(77, "x"), entry(bytesOf(1, "a"), bytesOf(9, "?"), protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 5), bytesOf(2, ip+string(bytesOf(6, "new"))))...), want: map[string]Host{"a": {IPs: []string{"10.0.0.1"}}}},
		"known number, other kind": {in: entry(bytesOf(1, "a"), bytesOf(2, string(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 5)))), want: map[string]Host{"a": {}}},
		"cut in the length":        {in: []byte{0x0a}, err: "read name table"},
		"cut in the entry":         {in: []byte{0x0a, 0x05, 0x0a, 0x01, 'a'}, err: "read name table"},
		"not protobuf":             {in: []byte("<html>"), err: "read name table"},
		"address not UTF-8":        {in: entry(bytesOf(1, "a"), bytesOf(2, string(bytesOf(1, "\xff")))), err: "address: it is not UTF-8"},
		"name not UTF-8":           {in: entry(bytesOf(1, "\xc3\x28")), err: "name of a host: it is not UTF-8"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Unmarshal(test.in)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.Hosts); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(&Table{Hosts: map[string]Host{"a": {IPs: []string{"10.0.0.1"}, Registry: Kubernetes, Shortname: "a", Namespace: "b", AltHosts: []string{"c"}}}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"table":{"a":{"ips":["10.0.0.1"],"registry":"Kubernetes","shortname":"a","namespace":"b","alt_hosts":["c"]}}}`
	if string(b) != want {
		t.Errorf("got %s, want %s", b, want)
	}
}

// FuzzUnmarshal compares this package's decoder with protobuf's: they must accept the same messages
// with the same content, and the result must survive encoding.
func FuzzUnmarshal(f *testing.F) {
	f.Add(sample().Marshal())
	f.Add([]byte{})
	f.Add([]byte{0x0a, 0x00})
	f.Add([]byte("<html>"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Unmarshal(b)
		want, wantErr := fromProtobuf(t, b)
		if errors.Is(wantErr, errNoKey) {
			return
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("error %v, protobuf says %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-protobuf +ours):\n%s", diff)
		}
		again, err := Unmarshal(got.Marshal())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatalf("(-read +encoded and read again):\n%s", diff)
		}
	})
}
