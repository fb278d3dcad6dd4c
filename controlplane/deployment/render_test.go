// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package deployment

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/inject"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
)

func injector(t testing.TB) *inject.Injector {
	t.Helper()
	in := &inject.Injector{}
	var err error
	if in.Config, err = inject.ParseConfig(nil); err != nil {
		t.Fatal(err)
	}
	if in.Values, err = inject.ParseValues([]byte("global: {hub: registry.test, tag: v1}"), ""); err != nil {
		t.Fatal(err)
	}
	if in.Mesh, err = meshconfig.Parse(nil); err != nil {
		t.Fatal(err)
	}
	return in
}

// inputOf reads a Gateway, optionally followed by a line of dashes and the data of a ConfigMap.
func inputOf(t testing.TB, text string) Input {
	t.Helper()
	doc, params, has := strings.Cut(text, "\n---\n")
	list, problems := codec.Decode("in.yaml", []byte(doc))
	if len(list) != 1 {
		t.Fatalf("%d objects, problems %v", len(list), problems)
	}
	in := Input{Gateway: list[0], Pod: injector(t).Managed}
	in.Gateway.UID = "1234"
	if has {
		if err := yaml.Unmarshal([]byte(params), &in.Overlays); err != nil {
			t.Fatal(err)
		}
	}
	return in
}

func TestRender(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no test cases", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := Render(inputOf(t, string(text)))
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			for _, o := range objects {
				doc, err := yaml.Marshal(o.Object)
				if err != nil {
					t.Fatal(err)
				}
				out.WriteString("---\n" + string(doc))
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".want"
			goldentest.Check(t, golden, out.String())
		})
	}
}

const edge = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
`

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"a long name":          {strings.Replace(edge, "name: edge", "name: "+strings.Repeat("e", 64), 1), "64 letters"},
		"an unknown key":       {edge + "---\nconfigMap: '{}'\n", `has the key "configMap": write one of serviceAccount, deployment`},
		"another name":         {edge + "---\ndeployment: 'metadata: {name: mine}'\n", "the key deployment in the ConfigMap of spec.infrastructure.parametersRef sets metadata.name: only labels and annotations"},
		"an owner":             {edge + "---\nservice: 'metadata: {ownerReferences: []}'\n", "sets metadata.ownerReferences"},
		"no YAML":              {edge + "---\nservice: '{'\n", "is not the YAML of a Service"},
		"aliases that expand":  {edge + "---\ndeployment: 'metadata: {annotations: {a: &a " + strings.Repeat("x", 50_000) + ", b: [" + strings.Repeat("*a, ", 1000) + "]}}'\n", "the key deployment in the ConfigMap of spec.infrastructure.parametersRef is refused: line 1: the aliases"},
		"a wrong type":         {edge + "---\ndeployment: 'spec: {template: {spec: {containers: [1]}}}'\n", "cannot be merged with the Deployment"},
		"metadata":             {edge + "---\nservice: 'metadata: 1'\n", "metadata that is not a map"},
		"a wrong annotation":   {strings.Replace(edge, "name: edge,", "name: edge, annotations: {sidecar.istio.io/proxyCPU: much},", 1), "sidecar.istio.io/proxyCPU"},
		"a wrong proxy config": {strings.Replace(edge, "name: edge,", "name: edge, annotations: {proxy.istio.io/config: 'concurrency: x'},", 1), "proxy.istio.io/config"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Render(inputOf(t, c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %d objects, error %v; want an error with %q", len(got), err, c.want)
			}
		})
	}
}

// TestAddedPorts checks that the Service has the ports of ListenerSets, each once.
func TestAddedPorts(t *testing.T) {
	t.Parallel()
	in := inputOf(t, edge)
	in.Added = []gatewayv1.Listener{
		{Name: "http", Port: 8443, Protocol: gatewayv1.HTTPSProtocolType},
		{Name: "again", Port: 80, Protocol: gatewayv1.HTTPProtocolType},
		{Name: "http", Port: 9000, Protocol: gatewayv1.TCPProtocolType},
	}
	objects, err := Render(in)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		if o.GetKind() != "Service" {
			continue
		}
		ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
		for _, p := range ports {
			port, _ := p.(map[string]any)
			got = append(got, fmt.Sprint(port["name"], " ", port["port"]))
		}
	}
	if want := "status-port 15021,http 80,http-8443 8443,http-9000 9000"; strings.Join(got, ",") != want {
		t.Errorf("the ports are %v, want %s", got, want)
	}
}

// TestHTTP3Ports checks that the Service has a UDP port for each port of HTTPS.
func TestHTTP3Ports(t *testing.T) {
	t.Parallel()
	in := inputOf(t, edge)
	in.HTTP3 = true
	in.Added = []gatewayv1.Listener{{Name: "a", Port: 443, Protocol: gatewayv1.HTTPSProtocolType}, {Name: "b", Port: 443, Protocol: gatewayv1.HTTPSProtocolType}}
	r := &renderer{Input: in, spec: in.Gateway.Spec.(*gatewayv1.GatewaySpec)}
	var got []string
	for _, p := range r.ports() {
		port, _ := p.(object)
		got = append(got, fmt.Sprint(port["name"], " ", port["port"], "/", port["protocol"]))
	}
	if want := "status-port 15021/TCP,http 80/TCP,http3-443 443/UDP,a 443/TCP"; strings.Join(got, ",") != want {
		t.Errorf("the ports are %v, want %s", got, want)
	}
}

// FuzzOverlay checks that no overlay causes a panic or changes the identity or owner of an object.
func FuzzOverlay(f *testing.F) {
	f.Add("spec: {replicas: 2}")
	f.Add("metadata: {labels: {gateway.istio.io/managed: null}}\nspec: {template: {spec: {containers: [{$patch: replace}, {name: istio-proxy, $patch: delete}]}}}")
	f.Add("apiVersion: v1\nkind: Pod\n$retainKeys: [a]\n$patch: delete")
	f.Add("spec: {template: {spec: {$setElementOrder/containers: [{name: a}], containers: [{name: a}]}}}")
	in := inputOf(f, edge)
	f.Fuzz(func(t *testing.T, doc string) {
		for _, k := range kinds() {
			next := in
			next.Overlays = map[string]string{k.overlay: doc}
			objects, err := Render(next)
			if err != nil {
				continue
			}
			for _, o := range objects {
				owners := o.GetOwnerReferences()
				if o.GetName() != "edge-istio" || o.GetNamespace() != "shop" || len(owners) != 1 || owners[0].UID != "1234" || o.GetLabels()[ManagedLabel] != ManagedValue {
					t.Errorf("%s: the overlay changed the identity or owner: %v", o.GetKind(), o.Object["metadata"])
				}
				if !isKind(o.GetKind()) {
					t.Errorf("unexpected kind %s", o.GetKind())
				}
			}
		}
	})
}

func isKind(name string) bool {
	for _, k := range kinds() {
		if k.Kind == name {
			return true
		}
	}
	return false
}

func TestOwned(t *testing.T) {
	t.Parallel()
	in := inputOf(t, edge)
	objects, err := Render(in)
	if err != nil {
		t.Fatal(err)
	}
	of := func(change func(*model.Config)) *model.Config {
		out := in.Gateway.Clone()
		change(out)
		return out
	}
	for _, o := range objects {
		if !owned(o, in.Gateway) || owned(o, of(func(g *model.Config) { g.UID = "other" })) {
			t.Errorf("%s: owned() does not follow the owner reference", o.GetKind())
		}
		o.SetOwnerReferences(nil) // as older versions of Istio create service accounts
		if !owned(o, in.Gateway) || owned(o, of(func(g *model.Config) { g.Name = "another" })) {
			t.Errorf("%s: owned() without an owner reference does not follow the labels", o.GetKind())
		}
		o.SetLabels(map[string]string{"gateway.networking.k8s.io/gateway-name": "edge"})
		if owned(o, in.Gateway) {
			t.Errorf("%s: owned() = true because of the label of proxies", o.GetKind())
		}
	}
}
