// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"go.yaml.in/yaml/v3"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// readMessage fills a message from YAML and returns the faults.
func readMessage(t *testing.T, text string, m proto.Message) string {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	b := &builder{}
	b.message(doc.Content[0], m.ProtoReflect(), "spec")
	texts := make([]string, 0, len(b.faults))
	for _, f := range b.faults {
		texts = append(texts, f.text)
	}
	return strings.Join(texts, "\n")
}

// TestWellKnownTypes reads messages that have a JSON form of their own, and texts similar to these
// forms.
func TestWellKnownTypes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		into, want proto.Message
		fault      string
	}{
		{"bool", "true", &wrapperspb.BoolValue{}, wrapperspb.Bool(true), ""},
		{"bool as text", `"true"`, &wrapperspb.BoolValue{}, &wrapperspb.BoolValue{}, `spec is the text "true": it must be true or false`},
		{"int32", `"-5"`, &wrapperspb.Int32Value{}, wrapperspb.Int32(-5), ""},
		{"int32 too small", "-2147483649", &wrapperspb.Int32Value{}, &wrapperspb.Int32Value{}, "spec is -2147483649: it must be between -2147483648 and 2147483647"},
		{"uint32 with exponent", "8e1", &wrapperspb.UInt32Value{}, wrapperspb.UInt32(80), ""},
		{"uint32 below zero", "-1", &wrapperspb.UInt32Value{}, &wrapperspb.UInt32Value{}, "spec is -1: it must be between 0 and 4294967295"},
		{"int64 as text", `"-9223372036854775808"`, &wrapperspb.Int64Value{}, wrapperspb.Int64(-1 << 63), ""},
		{"int64 too large", "9223372036854775808", &wrapperspb.Int64Value{}, &wrapperspb.Int64Value{}, "spec is 9223372036854775808: it must be between -9223372036854775808 and 9223372036854775807"},
		{"uint64", "18446744073709551615", &wrapperspb.UInt64Value{}, wrapperspb.UInt64(1<<64 - 1), ""},
		{"uint64 as text", `"18446744073709551615"`, &wrapperspb.UInt64Value{}, wrapperspb.UInt64(1<<64 - 1), ""},
		{"fraction", "1.5", &wrapperspb.UInt64Value{}, &wrapperspb.UInt64Value{}, "spec is the number 1.5: it must be a whole number"},
		{"float", "0.5", &wrapperspb.FloatValue{}, wrapperspb.Float(0.5), ""},
		{"float too large", "1e300", &wrapperspb.FloatValue{}, &wrapperspb.FloatValue{}, "spec is the number 1e300: it is too large"},
		{"double", `"1e300"`, &wrapperspb.DoubleValue{}, wrapperspb.Double(1e300), ""},
		{"not a number", ".nan", &wrapperspb.DoubleValue{}, &wrapperspb.DoubleValue{}, "spec is the number .nan: it must be a number"},
		{"string", "2030-01-01", &wrapperspb.StringValue{}, wrapperspb.String("2030-01-01"), ""},
		{"string of digits", "80", &wrapperspb.StringValue{}, &wrapperspb.StringValue{}, `spec is the number 80: it must be text; put it in quotes: "80"`},
		{"bytes", "aGk/Pj8=", &wrapperspb.BytesValue{}, wrapperspb.Bytes([]byte("hi?>?")), ""},
		{"bytes for URLs", "aGk_Pj8", &wrapperspb.BytesValue{}, wrapperspb.Bytes([]byte("hi?>?")), ""},
		{"no bytes", "a b!", &wrapperspb.BytesValue{}, &wrapperspb.BytesValue{}, `spec is the text "a b!": it must be bytes in base64`},
		{"time", "2030-01-31T12:00:00.5+01:00", &timestamppb.Timestamp{}, &timestamppb.Timestamp{Seconds: 1896087600, Nanos: 5e8}, ""},
		{"no time", "yesterday", &timestamppb.Timestamp{}, &timestamppb.Timestamp{}, `spec is the text "yesterday": it must be a time such as 2030-01-31T12:00:00Z`},
		{"empty", "{}", &emptypb.Empty{}, &emptypb.Empty{}, ""},
		{"empty with a field", "{a: b}", &emptypb.Empty{}, &emptypb.Empty{}, `unknown field "a" in spec`},
		{"struct", `{a: 1, b: [x, null, true, 1.5], "<<": {c: 2030-01-01}}`, &structpb.Struct{}, mustStruct(t, `{"a":1,"b":["x",null,true,1.5],"<<":{"c":"2030-01-01"}}`), ""},
		{"struct with infinity", "{a: {b: [.inf]}}", &structpb.Struct{}, mustStruct(t, `{"a":{"b":[".inf"]}}`), "spec.a.b[0] is the number .inf: JSON has no such number; put it in quotes, or write another one"},
		{"no struct", "[a]", &structpb.Struct{}, &structpb.Struct{}, "spec is a list: it must be a mapping"},
		{"list", "[a, {}]", &structpb.ListValue{}, &structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue("a"), structpb.NewStructValue(&structpb.Struct{})}}, ""},
		{"no list", "a", &structpb.ListValue{}, &structpb.ListValue{}, `spec is the text "a": it must be a list (each item begins with "- ")`},
		{"value", "null", &structpb.Value{}, structpb.NewNullValue(), ""},
		{"null in a message", "{pluginConfig: {a: null}, url: null}", &extensionsv1alpha1.WasmPlugin{}, &extensionsv1alpha1.WasmPlugin{PluginConfig: mustStruct(t, `{"a":null}`)}, ""},
		{"enum by name, number and text", "{mode: ISTIO_MUTUAL}", &networkingv1alpha3.ClientTLSSettings{}, &networkingv1alpha3.ClientTLSSettings{Mode: 3}, ""},
		{"enum by number", "{mode: 3}", &networkingv1alpha3.ClientTLSSettings{}, &networkingv1alpha3.ClientTLSSettings{Mode: 3}, ""},
		{"no enum", "{mode: STRICT}", &networkingv1alpha3.ClientTLSSettings{}, &networkingv1alpha3.ClientTLSSettings{}, `spec.mode is the text "STRICT": it must be one of DISABLE, SIMPLE, MUTUAL, ISTIO_MUTUAL`},
		{"two of one", "{exact: a, prefix: b}", &networkingv1alpha3.StringMatch{}, &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Exact{Exact: "a"}}, "exact and prefix in spec exclude each other: remove one"},
		{"names of protobuf", "{retry_on: a, per_try_timeout: 1h30m}", &networkingv1alpha3.HTTPRetry{}, mustRead(t, `{"retryOn":"a","perTryTimeout":"5400s"}`), ""},
		{"nearest name", "{retryon: a, per-try-timeout: 1s, wat: 1}", &networkingv1alpha3.HTTPRetry{}, &networkingv1alpha3.HTTPRetry{}, `unknown field "retryon" in spec: did you mean "retryOn"?
unknown field "per-try-timeout" in spec: did you mean "perTryTimeout"?
unknown field "wat" in spec: it knows attempts, perTryTimeout, retryOn, retryRemoteLocalities, retryIgnorePreviousHosts, backoff`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.fault, readMessage(t, tc.text, tc.into)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if !proto.Equal(tc.into, tc.want) {
				t.Errorf("got %v, want %v", tc.into, tc.want)
			}
		})
	}
}

func mustStruct(t *testing.T, text string) *structpb.Struct {
	t.Helper()
	s := &structpb.Struct{}
	if err := protojson.Unmarshal([]byte(text), s); err != nil {
		t.Fatal(err)
	}
	return s
}

func mustRead(t *testing.T, text string) *networkingv1alpha3.HTTPRetry {
	t.Helper()
	m := &networkingv1alpha3.HTTPRetry{}
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestWellKnownTypesOfKinds checks that no kind contains a message of google.protobuf that the
// decoder would read field by field.
func TestWellKnownTypesOfKinds(t *testing.T) {
	t.Parallel()
	seen := map[protoreflect.FullName]bool{}
	var visit func(protoreflect.MessageDescriptor)
	visit = func(md protoreflect.MessageDescriptor) {
		name := md.FullName()
		if seen[name] {
			return
		}
		seen[name] = true
		if strings.HasPrefix(string(name), "google.protobuf.") {
			m := messageOf(t, name)
			if !(&builder{}).wellKnown(&yaml.Node{Kind: yaml.AliasNode}, m, "x") && name != "google.protobuf.Empty" {
				t.Errorf("%s is not read in its JSON form", name)
			}
			return
		}
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			if fd.IsMap() {
				fd = fd.MapValue()
			}
			if fd.Message() != nil {
				visit(fd.Message())
			}
		}
	}
	for _, s := range schema.All() {
		if m, ok := s.NewSpec().(proto.Message); ok {
			visit(m.ProtoReflect().Descriptor())
		}
	}
	if !seen["google.protobuf.Struct"] || !seen["google.protobuf.Duration"] {
		t.Errorf("only %v were reached", seen)
	}
}

func messageOf(t *testing.T, name protoreflect.FullName) protoreflect.Message {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return mt.New()
}

// TestJSONIsReadAsJSON checks that what JSON allows and YAML does not is accepted, and that faults
// have the right line.
func TestJSONIsReadAsJSON(t *testing.T) {
	t.Parallel()
	text := "{\"apiVersion\": \"networking.istio.io/v1\", \"kind\": \"WorkloadEntry\", \"metadata\": {\"name\": \"a\",\n" +
		"\t\"annotations\": {\"a\": \"\\ud83d\\ude00\\/\u0085\u2028\", \"<<\": \"merge\"}},\n\"spec\": {\"address\": \"10.0.0.1\", \"weight\": 1e1}}"
	for _, prefix := range []string{"", "---\n", "\n\n"} {
		objects, problems := Decode("a.json", []byte(prefix+text))
		if len(objects) != 1 || len(problems) > 0 {
			t.Fatalf("%v %v", objects, problems)
		}
		want := map[string]string{"a": "😀/\u0085\u2028", "<<": "merge"}
		if diff := cmp.Diff(want, objects[0].Annotations); diff != "" {
			t.Errorf("annotations: %s", diff)
		}
		if got := objects[0].Spec.(*networkingv1alpha3.WorkloadEntry).GetWeight(); got != 10 {
			t.Errorf("weight: got %d, want 10", got)
		}
		_, problems = Decode("a.json", []byte(prefix+strings.Replace(text, "weight", "wieght", 1)))
		line := "a.json:" + string(rune('3'+strings.Count(prefix, "\n")))
		if len(problems) != 1 || problems[0].Source != line || !strings.Contains(problems[0].Reason, `did you mean "weight"?`) {
			t.Errorf("problems: got %v, want one at line %s", problems, line)
		}
	}
	deep := strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)
	if objects, problems := Decode("a.json", []byte(deep)); len(objects) != 0 || len(problems) == 0 {
		t.Errorf("deeply nested JSON: got %v, %v; want only problems", objects, problems)
	}
	if _, problems := Decode("a.json", []byte(`{"kind": "Sidecar", "kind": "Gateway"}`)); len(problems) == 0 || !strings.Contains(problems[0].Reason, "a duplicate") {
		t.Errorf("duplicate keys: got %v, want a problem with \"a duplicate\"", problems)
	}
}
