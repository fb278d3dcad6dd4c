// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// filler fills messages with random values.
type filler struct{ *rand.Rand }

func (f filler) text() string {
	texts := []string{"a", "", "x y", "8080", "true", "null", "~", "yes", "0x10", "1e3", "- a", "a: b", "#c", "ü\u2028\u0085", "2030-01-01", "<<", "\t", "line\nline\n", "'", "\"", "=", "0o7", "1_0", ".inf", "!x", "&a", "*"}
	return texts[f.IntN(len(texts))]
}

func (f filler) message(m protoreflect.Message, depth int) {
	switch v := m.Interface().(type) {
	case *durationpb.Duration:
		v.Seconds, v.Nanos = f.Int64N(1000), f.Int32N(1000)*1e6
		return
	case *timestamppb.Timestamp:
		v.Seconds, v.Nanos = f.Int64N(1e9), f.Int32N(1e9)
		return
	case *structpb.Struct:
		v.Fields = f.value(0).GetStructValue().GetFields()
		return
	case *structpb.Value:
		v.Kind = f.value(2).GetKind()
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if f.IntN(3) == 0 || depth > 12 || fd.ContainingOneof() != nil && m.WhichOneof(fd.ContainingOneof()) != nil {
			continue
		}
		switch {
		case fd.IsList():
			list := m.Mutable(fd).List()
			for range f.IntN(3) {
				v := list.NewElement()
				f.fill(fd, &v, depth)
				list.Append(v)
			}
		case fd.IsMap():
			entries := m.Mutable(fd).Map()
			for range f.IntN(3) {
				k, v := protoreflect.ValueOfString(f.text()), entries.NewValue()
				if fd.MapKey().Kind() != protoreflect.StringKind {
					f.fill(fd.MapKey(), &k, depth)
				}
				f.fill(fd.MapValue(), &v, depth)
				entries.Set(k.MapKey(), v)
			}
		default:
			v := m.NewField(fd)
			f.fill(fd, &v, depth)
			m.Set(fd, v)
		}
	}
}

func (f filler) fill(fd protoreflect.FieldDescriptor, v *protoreflect.Value, depth int) {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		f.message(v.Message(), depth+1)
	case protoreflect.StringKind:
		*v = protoreflect.ValueOfString(f.text())
	case protoreflect.BytesKind:
		*v = protoreflect.ValueOfBytes([]byte(f.text()))
	case protoreflect.BoolKind:
		*v = protoreflect.ValueOfBool(f.IntN(2) == 0)
	case protoreflect.EnumKind:
		values := fd.Enum().Values()
		*v = protoreflect.ValueOfEnum(values.Get(f.IntN(values.Len())).Number())
	case protoreflect.Int32Kind:
		*v = protoreflect.ValueOfInt32(int32(f.Uint32()))
	case protoreflect.Uint32Kind:
		*v = protoreflect.ValueOfUint32(f.Uint32())
	case protoreflect.Int64Kind:
		*v = protoreflect.ValueOfInt64(int64(f.Uint64()))
	case protoreflect.Uint64Kind:
		*v = protoreflect.ValueOfUint64(f.Uint64())
	case protoreflect.DoubleKind:
		*v = protoreflect.ValueOfFloat64(f.NormFloat64() * 1e6)
	case protoreflect.FloatKind:
		*v = protoreflect.ValueOfFloat32(f.Float32())
	default:
		panic("a kind has a field of type " + fd.Kind().String() + ": the filler must support it")
	}
}

func (f filler) value(kind int) *structpb.Value {
	switch kind {
	case 0:
		s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for range f.IntN(4) {
			s.Fields[f.text()] = f.value(1 + f.IntN(6))
		}
		return structpb.NewStructValue(s)
	case 1:
		return structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{f.value(2 + f.IntN(5)), structpb.NewNullValue()}})
	case 2:
		return structpb.NewStringValue(f.text())
	case 3:
		return structpb.NewNumberValue(f.NormFloat64())
	case 4:
		return structpb.NewBoolValue(true)
	case 5:
		return structpb.NewNullValue()
	}
	return structpb.NewNumberValue(float64(f.Int32()))
}

// TestEveryMessageRoundTrips compares the decoder with the JSON mapping of protobuf for every
// kind whose spec is a message. What protojson or EncodeYAML writes of a random message, in any
// form, must be read as the same message.
func TestEveryMessageRoundTrips(t *testing.T) {
	t.Parallel()
	kinds := 0
	for _, sch := range schema.All() {
		if _, ok := sch.NewSpec().(proto.Message); !ok {
			continue
		}
		kinds++
		t.Run(string(sch.Kind), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(60) {
				spec := sch.NewSpec().(proto.Message)
				filler{rand.New(rand.NewPCG(seed, 1))}.message(spec.ProtoReflect(), 0)
				for _, text := range encodings(t, sch.Kind, spec) {
					readAs(t, text, spec)
				}
			}
		})
	}
	if kinds < 14 {
		t.Errorf("only %d kinds were tested", kinds)
	}
}

// encodings returns the forms in which a spec can be written.
func encodings(t *testing.T, kind model.Kind, spec proto.Message) [][]byte {
	t.Helper()
	var texts [][]byte
	for _, o := range []protojson.MarshalOptions{{}, {UseProtoNames: true, Multiline: true}, {UseEnumNumbers: true}} {
		raw, err := o.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, raw)
	}
	var tabs bytes.Buffer
	if err := json.Indent(&tabs, texts[0], "", "\t"); err != nil {
		t.Fatal(err)
	}
	object, err := EncodeYAML(&model.Config{Key: model.Key{Kind: kind, Namespace: "a", Name: "b"}, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return append(texts, tabs.Bytes(), object)
}

// readAs reads a spec, or an object that contains it, and compares it with want.
func readAs(t *testing.T, text []byte, want proto.Message) {
	t.Helper()
	docs, faults := Document{Text: text}.parse(&parseWork{})
	if len(docs) != 1 || len(faults) > 0 {
		t.Fatalf("%v\n%s", faults, text)
	}
	b := &builder{}
	at := docs[0]
	if h := b.head(at); h.kind != "" {
		at = h.spec
	}
	b.faults = nil
	got := want.ProtoReflect().New()
	b.message(at, got, "spec")
	if len(b.faults) > 0 || !proto.Equal(got.Interface(), want) {
		t.Fatalf("the spec differs after decoding: %v\n%s\ngot  %v\nwant %v", b.faults, text, got.Interface(), want)
	}
}

// reread writes an accepted object with EncodeYAML and checks that it is read as the same object.
func reread(t *testing.T, c *model.Config) {
	t.Helper()
	text, err := EncodeYAML(c)
	if err != nil {
		t.Errorf("%s cannot be written: %v", c.Key, err)
		return
	}
	again, problems := Decode("again", text)
	problems = slices.DeleteFunc(problems, func(p model.Problem) bool { return p.Warning })
	if len(again) != 1 || len(problems) > 0 {
		t.Errorf("%s is rejected when it is read again: %v\n%s", c.Key, problems, text)
		return
	}
	a := again[0]
	if a.Key != c.Key || !model.SameSpec(a.Spec, c.Spec) || a.APIVersion != c.APIVersion || fmt.Sprint(a.Labels, a.Annotations, a.Created) != fmt.Sprint(c.Labels, c.Annotations, c.Created) {
		t.Errorf("%s differs after decoding:\n%s\ngot  %+v\nwant %+v", c.Key, text, a, c)
	}
}

// testFiles returns all files of testdata that contain objects.
func testFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, pattern := range []string{"testdata/*.yaml", "testdata/*/*.yaml", "../validate/testdata/*/*.yaml", "testdata/*/*.json"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files[path] = data
		}
	}
	if len(files) < 20 {
		t.Fatalf("testdata has only %d files", len(files))
	}
	return files
}

// TestAcceptedObjectsRoundTrip writes and reads every accepted object of testdata, which must
// include objects of all kinds.
func TestAcceptedObjectsRoundTrip(t *testing.T) {
	t.Parallel()
	seen := map[model.Kind]int{}
	for path, data := range testFiles(t) {
		objects, _ := Decode(path, data)
		for _, c := range objects {
			seen[c.Kind]++
			reread(t, c)
		}
	}
	for _, s := range schema.All() {
		if seen[s.Kind] == 0 {
			t.Errorf("testdata has no valid %s", s.Kind)
		}
	}
}

// FuzzDecode checks for any input that Decode does not panic. Objects must be valid and unique, and
// must be the same when they are written and read again. Problems must contain a line.
func FuzzDecode(f *testing.F) {
	for _, data := range testFiles(f) {
		for c := range Documents(data) {
			if len(c.Text) < 4<<10 { // the fuzzer makes no progress with larger inputs
				f.Add(c.Text)
			}
		}
	}
	f.Add([]byte("%YAML 1.2\n---\na: !!binary x\n...\nb: ? [c]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, problems := Decode("f", data)
		seen := map[model.Key]bool{}
		for _, c := range objects {
			if errs, _ := validate.Object(c); len(errs) > 0 {
				t.Errorf("Decode returned an invalid object: %v", errs)
			}
			if seen[c.Key] {
				t.Errorf("Decode returned %s twice", c.Key)
			}
			seen[c.Key] = true
			reread(t, c)
		}
		for _, p := range problems {
			if p.Reason == "" || !strings.HasPrefix(p.Source, "f:") || strings.HasPrefix(p.Source, "f:0") {
				t.Errorf("problem %+v has no reason or no line", p)
			}
		}
	})
}
