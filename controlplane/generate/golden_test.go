// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

var update = flag.Bool("update", false, "write the want files of testdata again, and delete stale ones")

// goldenFiles are the want files of a case, by type.
var goldenFiles = map[string]string{
	xds.TypeCluster: "want.clusters.yaml", xds.TypeEndpoint: "want.endpoints.yaml",
	xds.TypeListener: "want.listeners.yaml", xds.TypeRoute: "want.routes.yaml", xds.TypeExtension: "want.extensions.yaml",
}

const goldenProblems = "want.problems.txt"

// testCase is a folder of testdata: in.yaml contains the user objects, mesh.yaml the differences
// from the default settings, proxy.yaml those from the default proxy, and generator.yaml the settings
// of the generator.
type testCase struct {
	name     string
	dir      string
	objects  []*model.Config
	mesh     *meshv1alpha1.MeshConfig
	proxy    *model.Proxy
	settings Config
}

func testCases(t *testing.T) []testCase {
	t.Helper()
	dirs, err := filepath.Glob("testdata/*/in.yaml")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no cases in testdata: %v", err)
	}
	cases := make([]testCase, 0, len(dirs))
	for _, in := range dirs {
		cases = append(cases, loadCase(t, filepath.Dir(in)))
	}
	return cases
}

func loadCase(t *testing.T, dir string) testCase {
	t.Helper()
	c := testCase{name: filepath.Base(dir), dir: dir}
	c.objects = decode(t, string(read(t, filepath.Join(dir, "in.yaml"))))
	settings := string(read(t, filepath.Join(dir, "mesh.yaml")))
	if !strings.Contains(settings, "proxyHttpPort") {
		settings += "\nproxyHttpPort: 15080\n"
	}
	mesh, err := meshconfig.Parse([]byte(settings))
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	c.mesh = mesh
	c.proxy = &model.Proxy{
		ID: "frontend.default", Role: "sidecar", IPs: []string{"127.1.0.2"}, Namespace: "default", ServiceAccount: "frontend",
		Domain: "default.svc.cluster.local", Labels: map[string]string{"app": "frontend"}, ClusterID: "Kubernetes",
		Interception: model.InterceptionNone,
	}
	if err := yaml.UnmarshalStrict(read(t, filepath.Join(dir, "proxy.yaml")), c.proxy); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	if err := yaml.UnmarshalStrict(read(t, filepath.Join(dir, "generator.yaml")), &c.settings); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return c
}

// decode decodes objects without validation: the generator accepts more than users may write.
func decode(t testing.TB, text string) []*model.Config {
	t.Helper()
	var out []*model.Config
	line := 1
	for doc := range strings.SplitSeq(text, "---\n") {
		var object struct {
			Kind     model.Kind
			Metadata struct {
				Name, Namespace   string
				CreationTimestamp time.Time
				Annotations       map[string]string
				Labels            map[string]string
			}
			Spec json.RawMessage
		}
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			t.Fatalf("line %d: %v", line, err)
		}
		spec := map[model.Kind]proto.Message{
			model.VirtualService: &networkingv1alpha3.VirtualService{}, model.DestinationRule: &networkingv1alpha3.DestinationRule{},
			model.ServiceEntry: &networkingv1alpha3.ServiceEntry{}, model.WorkloadEntry: &networkingv1alpha3.WorkloadEntry{},
			model.Sidecar: &networkingv1alpha3.Sidecar{}, model.Gateway: &networkingv1alpha3.Gateway{}, model.PeerAuthentication: &securityv1beta1.PeerAuthentication{},
			model.WasmPlugin: &extensionsv1alpha1.WasmPlugin{}, model.TrafficExtension: &extensionsv1alpha1.TrafficExtension{}, model.AuthorizationPolicy: &securityv1beta1.AuthorizationPolicy{},
			model.RequestAuthentication: &securityv1beta1.RequestAuthentication{}, model.Telemetry: &telemetryv1alpha1.Telemetry{},
			model.EnvoyFilter: &networkingv1alpha3.EnvoyFilter{},
		}[object.Kind]
		if err := protojson.Unmarshal(object.Spec, spec); err != nil {
			t.Fatalf("line %d: %v", line, err)
		}
		out = append(out, &model.Config{
			Key:     model.Key{Kind: object.Kind, Namespace: object.Metadata.Namespace, Name: object.Metadata.Name},
			Created: object.Metadata.CreationTimestamp, Source: fmt.Sprintf("in.yaml:%d", line), Spec: spec, Annotations: object.Metadata.Annotations, Labels: object.Metadata.Labels,
		})
		line += strings.Count(doc, "\n") + 1
	}
	return out
}

// read returns the content of a file, or nothing if it does not exist.
func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return b
}

func (c testCase) input() snapshot.Input { return inputOf(c.objects, c.mesh) }

func inputOf(objects []*model.Config, mesh *meshv1alpha1.MeshConfig) snapshot.Input {
	return snapshot.Input{Mesh: mesh, List: func(kind model.Kind) []*model.Config {
		var out []*model.Config
		for _, o := range objects {
			if o.Kind == kind {
				out = append(out, o)
			}
		}
		return out
	}}
}

func (c testCase) build() *snapshot.Mesh {
	return snapshot.Build(nil, c.input(), model.Change{All: true})
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for _, c := range testCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mesh, g := c.build(), New(c.settings)
			got := make(map[string]string)
			problems := mesh.Problems
			for _, typeURL := range slices.Concat(xds.Types, []string{xds.TypeExtension}) {
				set := g.Generate(mesh, c.proxy, typeURL)
				problems = append(problems, set.Problems...)
				if len(set.Resources) > 0 {
					got[goldenFiles[typeURL]] = render(t, set)
				}
			}
			if names := renderNames(t, g.Generate(mesh, c.proxy, xds.TypeNameTable)); names != "" {
				got["want.names.yaml"] = names
			}
			for _, p := range problems {
				got[goldenProblems] += p.String() + "\n"
			}
			compareGolden(t, c.dir, got)
		})
	}
}

// compareGolden compares the want files of a folder, or writes them.
func compareGolden(t *testing.T, dir string, got map[string]string) {
	t.Helper()
	present, err := filepath.Glob(filepath.Join(dir, "want.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range present {
		if got[filepath.Base(path)] != "" {
			continue
		}
		if !*update {
			t.Errorf("%s is stale: nothing is generated for it; -update deletes it", path)
		} else if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range got {
		path := filepath.Join(dir, name)
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if diff := cmp.Diff(string(read(t, path)), text); diff != "" {
			t.Errorf("%s (-want +got; -update accepts it):\n%s", path, diff)
		}
	}
}

// render returns the resources of a set as YAML.
func render(t *testing.T, set *xds.Set) string {
	t.Helper()
	var b strings.Builder
	for i, r := range set.Resources {
		if i > 0 {
			b.WriteString("---\n")
		}
		msg := unpack(t, r)
		j, err := protojson.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		y, err := yaml.JSONToYAML(j)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(y)
	}
	return b.String()
}

// renderNames returns the name table as YAML, or nothing if it is empty.
func renderNames(t *testing.T, set *xds.Set) string {
	t.Helper()
	if len(set.Resources) == 0 {
		return ""
	}
	table := nameTableOf(t, set)
	if len(table.Hosts) == 0 {
		return ""
	}
	b, err := yaml.Marshal(table)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// nameTableOf decodes the single resource of a set of names.
func nameTableOf(t *testing.T, set *xds.Set) *nds.Table {
	t.Helper()
	a := &anypb.Any{}
	if len(set.Resources) != 1 {
		t.Fatalf("%d name tables", len(set.Resources))
	}
	if err := proto.Unmarshal(set.Resources[0].Any, a); err != nil || a.GetTypeUrl() != xds.TypeNameTable {
		t.Fatalf("a resource of type %s: %v", a.GetTypeUrl(), err)
	}
	table, err := nds.Unmarshal(a.GetValue())
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func unpack(t testing.TB, r *xds.Resource) proto.Message {
	t.Helper()
	a := &anypb.Any{}
	if err := proto.Unmarshal(r.Any, a); err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	msg, err := a.UnmarshalNew()
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	return msg
}

// compactJSON returns a message as JSON.
func compactJSON(t testing.TB, msg proto.Message) json.RawMessage {
	t.Helper()
	b, err := protojson.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
