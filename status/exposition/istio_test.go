// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
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
		"no end":             {strings.TrimSpace(istioText), strings.TrimSpace(istioWant)},
		"nothing":            {"", ""},
		"a line too long":    {long + "\n" + istioText, long + "\n" + istioWant},
		"broken labels":      {"envoy_istiocustom_a{b=\"\n", "a{b=\"\n"},
	} {
		for how, r := range map[string]io.Reader{"whole": strings.NewReader(c.in), "by half": iotest.HalfReader(strings.NewReader(c.in)), "by byte": iotest.OneByteReader(strings.NewReader(c.in)), "with the end": iotest.DataErrReader(strings.NewReader(c.in))} {
			got, err := io.ReadAll(NewIstio(r))
			if err != nil || string(got) != c.want {
				t.Errorf("%s, %s: %v\n%.2000s\nwant\n%.2000s", name, how, err, got, c.want)
			}
		}
	}
	if _, err := io.ReadAll(NewIstio(iotest.TimeoutReader(strings.NewReader(strings.Repeat(istioText, 200))))); err == nil {
		t.Error("an error of the source is lost")
	}
}

func FuzzIstio(f *testing.F) {
	f.Add(istioText)
	f.Fuzz(func(t *testing.T, text string) {
		whole, err := io.ReadAll(NewIstio(strings.NewReader(text)))
		if err != nil {
			t.Fatal(err)
		}
		if parts, err := io.ReadAll(NewIstio(iotest.HalfReader(strings.NewReader(text)))); len(text) < maxLine/2 && (err != nil || string(parts) != string(whole)) {
			t.Errorf("%q in parts, %q as a whole: %v", parts, whole, err)
		}
	})
}

func BenchmarkIstio(b *testing.B) {
	text := strings.Repeat(istioText, 1000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, NewIstio(strings.NewReader(text))); err != nil {
			b.Fatal(err)
		}
	}
}
