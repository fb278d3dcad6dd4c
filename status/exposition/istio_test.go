// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

const istioText = `# TYPE envoy_server_live gauge
envoy_server_live{} 1
# TYPE envoy_istiocustom_istio_requests_total counter
envoy_istiocustom_istio_requests_total{reporter="source",source_app="-",destination_workload="",destination_canonical_revision="",request_protocol="",grpc_response_status="",response_flags="-",own="a\"b,c=\"\"",path="envoy_istiocustom_x"} 3
envoy_istiocustom_istio_requests_total{source_principal="spiffe://td/ns/a/sa/b",source_workload_namespace="",destination_principal="",destination_workload_namespace=""} 3
envoy_istiocustom_istio_requests_total{source_principal="spiffe://td/ns/a/x/sa/b",source_workload_namespace="",destination_principal="spiffe://td/ns/a/sa/b",destination_workload_namespace="c"} 3
envoy_cluster_x{label="envoy_istiocustom_istio_requests_total{"} 4
# TYPE envoy_istiocustom_istio_request_bytes histogram
envoy_istiocustom_istio_request_bytes_bucket{reporter="source",le="0.5"} 0
envoy_istiocustom_istio_request_bytes_sum{} 0
`

const istioWant = `# TYPE envoy_server_live gauge
envoy_server_live{} 1
# TYPE istio_requests_total counter
istio_requests_total{reporter="source",source_app="unknown",destination_workload="unknown",destination_canonical_revision="latest",request_protocol="http",grpc_response_status="",response_flags="-",own="a\"b,c=\"\"",path="envoy_istiocustom_x"} 3
istio_requests_total{source_principal="spiffe://td/ns/a/sa/b",source_workload_namespace="a",destination_principal="unknown",destination_workload_namespace="unknown"} 3
istio_requests_total{source_principal="spiffe://td/ns/a/x/sa/b",source_workload_namespace="unknown",destination_principal="spiffe://td/ns/a/sa/b",destination_workload_namespace="c"} 3
envoy_cluster_x{label="envoy_istiocustom_istio_requests_total{"} 4
# TYPE istio_request_bytes histogram
istio_request_bytes_bucket{reporter="source",le="0.5"} 0
istio_request_bytes_sum{} 0
`

func TestIstio(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2*maxLine)
	for name, c := range map[string]struct{ in, want string }{
		"as Envoy writes it": {istioText, istioWant},
		"many":               {strings.Repeat(istioText, 200), strings.Repeat(istioWant, 200)},
		"no final newline":   {strings.TrimSpace(istioText), strings.TrimSpace(istioWant)},
		"nothing":            {"", ""},
		"a line too long":    {long + "\n" + istioText, long + "\n" + istioWant},
		"broken labels":      {"envoy_istiocustom_a{b=\"\n", "a{b=\"\n"},
	} {
		for how, r := range map[string]io.Reader{"whole": strings.NewReader(c.in), "by half": iotest.HalfReader(strings.NewReader(c.in)), "by byte": iotest.OneByteReader(strings.NewReader(c.in)), "with the end": iotest.DataErrReader(strings.NewReader(c.in))} {
			got, err := io.ReadAll(newIstio(r))
			if err != nil || string(got) != c.want {
				t.Errorf("%s, %s: got error %v and\n%.2000s\nwant\n%.2000s", name, how, err, got, c.want)
			}
		}
	}
	if _, err := io.ReadAll(newIstio(iotest.TimeoutReader(strings.NewReader(strings.Repeat(istioText, 200))))); err == nil {
		t.Error("an error of the source was not returned")
	}
}

// TestIstioProtobuf checks that Envoy's protobuf results in the same metrics as its text, and that
// native histograms are kept.
func TestIstioProtobuf(t *testing.T) {
	t.Parallel()
	families := func(text string) []*dto.MetricFamily {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		named, err := parser.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		bare := func(f *dto.MetricFamily) string { return strings.TrimPrefix(f.GetName(), string(istioPrefix)) }
		return slices.SortedFunc(maps.Values(named), func(a, b *dto.MetricFamily) int { return strings.Compare(bare(a), bare(b)) })
	}
	histogram := &dto.Histogram{Schema: proto.Int32(3), ZeroThreshold: proto.Float64(0.1), PositiveSpan: []*dto.BucketSpan{{Offset: proto.Int32(1), Length: proto.Uint32(1)}}, PositiveDelta: []int64{2}}
	native := func(name, revision string) []*dto.MetricFamily {
		label := &dto.LabelPair{Name: proto.String("source_canonical_revision"), Value: proto.String(revision)}
		return []*dto.MetricFamily{{Name: proto.String(name), Type: dto.MetricType_HISTOGRAM.Enum(), Metric: []*dto.Metric{{Label: []*dto.LabelPair{label}, Histogram: histogram}}}}
	}
	for name, c := range map[string]struct{ in, want []*dto.MetricFamily }{
		"text of Envoy":     {families(istioText), families(istioWant)},
		"native histograms": {native("envoy_istiocustom_istio_request_bytes", ""), native("istio_request_bytes", "latest")},
		"of Envoy itself":   {native("envoy_request_bytes", ""), native("envoy_request_bytes", "")},
	} {
		for _, accept := range []string{acceptProto, acceptText} {
			var out bytes.Buffer
			m := NewMerger(&out, Negotiate(http.Header{"Accept": {accept}}))
			if err := errors.Join(m.CopyEnvoy(strings.NewReader(delimited(t, c.in...)), acceptProto), m.Close()); err != nil {
				t.Fatalf("%s as %s: %v", name, accept, err)
			}
			if want := merge(t, accept, source{acceptProto, delimited(t, c.want...)}); messages(t, accept, out.String()) != messages(t, accept, want) {
				t.Errorf("%s as %s:\n%q\nwant\n%q", name, accept, out.String(), want)
			}
		}
	}
	m := NewMerger(io.Discard, Negotiate(http.Header{"Accept": {acceptProto}}))
	large := native("envoy_istiocustom_istio_request_bytes", "")
	for range maxMessage >> 10 { // like those of a busy gateway
		label := &dto.LabelPair{Name: proto.String("request_path"), Value: proto.String(strings.Repeat("x", 1<<10))}
		large[0].Metric = append(large[0].Metric, &dto.Metric{Label: []*dto.LabelPair{label}, Histogram: histogram})
	}
	if err := m.CopyEnvoy(strings.NewReader(delimited(t, large...)), acceptProto); err != nil {
		t.Errorf("a large family: Copy() = %v", err)
	}
	for _, broken := range []string{"\x0a\x12envoy_istiocustom_\x22\x09", "\x0a\x12envoy_istiocustom_\x22\x01\xff"} {
		if err := m.CopyEnvoy(strings.NewReader(string(binary.AppendUvarint(nil, uint64(len(broken))))+broken), acceptProto); err == nil {
			t.Errorf("%q was copied", broken)
		}
	}
}

// messages returns families in protobuf as text, and text unchanged.
func messages(t *testing.T, accept, body string) string {
	t.Helper()
	if accept != acceptProto {
		return body
	}
	var all []string
	for in := bufio.NewReader(strings.NewReader(body)); ; {
		family := &dto.MetricFamily{}
		if err := protodelim.UnmarshalFrom(in, family); errors.Is(err, io.EOF) {
			return strings.Join(all, "\n")
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, prototext.Format(family))
	}
}

func FuzzIstio(f *testing.F) {
	f.Add(istioText)
	f.Fuzz(func(t *testing.T, text string) {
		whole, err := io.ReadAll(newIstio(strings.NewReader(text)))
		if err != nil {
			t.Fatal(err)
		}
		if parts, err := io.ReadAll(newIstio(iotest.HalfReader(strings.NewReader(text)))); len(text) < maxLine/2 && (err != nil || string(parts) != string(whole)) {
			t.Errorf("got %q in parts, %q as a whole, error %v", parts, whole, err)
		}
	})
}

func BenchmarkIstio(b *testing.B) {
	text := strings.Repeat(istioText, 1000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, newIstio(strings.NewReader(text))); err != nil {
			b.Fatal(err)
		}
	}
}
