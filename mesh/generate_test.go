// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
)

const pairMesh = `
trustDomain: example.org
mesh:
  accessLogFile: /dev/stdout
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
  proxyHttpPort: 15081
  defaultConfig: {concurrency: 2, proxyMetadata: {A: b}}
workloads:
- {name: web, command: [sh], port: 9000, servicePort: 80}
- {name: api-v1, service: api, namespace: back, command: [sh], port: 9001, servicePort: 8080, protocol: GRPC, labels: {version: v1}}
- {name: api-v2, service: api, namespace: back, command: [sh], port: 9002, servicePort: 8080, protocol: GRPC, labels: {version: v2}}
`

// TestGenerated decodes everything strictly with Istio's own API and compares it with the golden
// file.
func TestGenerated(t *testing.T) {
	t.Parallel()
	m := mustLoad(t, pairMesh)
	got, err := m.generated()
	if err != nil {
		t.Fatal(err)
	}
	golden := "testdata/generated.yaml"
	goldentest.Check(t, golden, string(got))
	kinds := map[string]int{}
	d := yaml.NewDecoder(bytes.NewReader(got))
	for {
		var o struct {
			Kind string
			Spec map[string]any
		}
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		kinds[o.Kind]++
		spec := map[string]proto.Message{
			"ServiceEntry":  &networkingv1alpha3.ServiceEntry{},
			"WorkloadEntry": &networkingv1alpha3.WorkloadEntry{},
			"Sidecar":       &networkingv1alpha3.Sidecar{},
		}[o.Kind]
		text, err := json.Marshal(o.Spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal(text, spec); err != nil {
			t.Errorf("%s: %v", o.Kind, err)
		}
	}
	if diff := cmp.Diff(map[string]int{"ServiceEntry": 2, "WorkloadEntry": 3, "Sidecar": 3}, kinds); diff != "" {
		t.Error(diff)
	}
}

func TestMeshConfig(t *testing.T) {
	t.Parallel()
	m := mustLoad(t, pairMesh)
	m.configDir = "/my config"
	text, err := m.meshConfig("/s/config")
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := sigsyaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	var got meshv1alpha1.MeshConfig
	if err := protojson.Unmarshal(asJSON, &got); err != nil {
		t.Fatal(err)
	}
	if got.GetTrustDomain() != "example.org" || got.GetProxyHttpPort() != 15081 || got.GetRootNamespace() != "istio-system" ||
		got.GetAccessLogFile() != "/dev/stdout" || got.GetOutboundTrafficPolicy().GetMode() != meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY {
		t.Errorf("mesh config: %s", text)
	}
	if !slices.Equal(got.GetDefaultProviders().GetMetrics(), []string{"prometheus"}) {
		t.Errorf("default providers: %v", got.GetDefaultProviders())
	}
	var sources []string
	for _, s := range got.GetConfigSources() {
		sources = append(sources, s.GetAddress())
	}
	if diff := cmp.Diff([]string{"fs:///s/config", "fs:///my%20config"}, sources); diff != "" {
		t.Error(diff)
	}
}

func TestProxyConfig(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(mustLoad(t, pairMesh).proxyConfig("/bin/envoy"))
	if err != nil {
		t.Fatal(err)
	}
	var got meshv1alpha1.ProxyConfig
	if err := protojson.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.GetConcurrency().GetValue() != 2 || got.GetStatusPort() != 15020 || got.GetDiscoveryAddress() != "127.1.0.1:15012" ||
		got.GetBinaryPath() != "/bin/envoy" || got.GetTerminationDrainDuration().GetSeconds() != 1 || got.GetProxyMetadata()["A"] != "b" {
		t.Errorf("proxy config: %s", text)
	}
}
