// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
)

// objects decodes YAML. Objects without a creation time are ordered by position: the first is the
// oldest.
func objects(t testing.TB, text string) map[model.Kind][]*model.Config {
	t.Helper()
	list, problems := codec.Decode("in.yaml", []byte(text))
	for _, p := range problems {
		if !p.Warning {
			t.Fatal(p)
		}
	}
	out := map[model.Kind][]*model.Config{}
	for i, o := range list {
		if o.Created.IsZero() {
			o.Created = time.Unix(int64(i), 0)
		}
		o.Generation = 1
		out[o.Kind] = append(out[o.Kind], o)
	}
	return out
}

// readable decodes text. It returns false if none of its objects can be converted.
func readable(text []byte) (map[model.Kind][]*model.Config, bool) {
	list, _ := codec.Decode("in.yaml", text)
	out := map[model.Kind][]*model.Config{}
	for _, o := range list {
		out[o.Kind] = append(out[o.Kind], o)
	}
	return out, len(list) > 0
}

// input returns the input for the objects of a text. Every namespace has the label team with its
// own name. Secrets and ConfigMaps are valid unless their name starts with "bad".
func input(t testing.TB, text string) Input {
	t.Helper()
	all := objects(t, text)
	return Input{
		List: func(kind model.Kind) []*model.Config { return all[kind] },
		NamespaceLabels: func(name string) map[string]string {
			return map[string]string{"kubernetes.io/metadata.name": name, "team": name}
		},
		Certificate: func(namespace, name string) error {
			if strings.HasPrefix(name, "bad") {
				return fmt.Errorf("Secret %s/%s: it holds no certificate", namespace, name)
			}
			return nil
		},
		Roots: func(namespace, name string) error {
			if strings.HasPrefix(name, "bad") {
				return fmt.Errorf("the ConfigMap %s/%s has no key ca.crt", namespace, name)
			}
			return nil
		},
		Mesh: &meshv1alpha1.MeshConfig{IngressControllerMode: meshv1alpha1.MeshConfig_STRICT},
		Service: func(namespace, name string) *model.Service {
			if namespace != "istio-system" || name != "istio-ingressgateway" {
				return nil
			}
			return &model.Service{
				ServiceKey:        model.ServiceKey{Hostname: "istio-ingressgateway.istio-system.svc.cluster.local", Namespace: namespace},
				ExternalAddresses: map[string][]string{"Kubernetes": {"lb.example.com", "203.0.113.7"}},
			}
		},
	}
}

// show formats the result of a conversion as text.
func show(t testing.TB, r *Result) string {
	t.Helper()
	var b strings.Builder
	for _, kind := range []model.Kind{model.Gateway, model.VirtualService, model.DestinationRule} {
		for _, o := range r.Objects[kind] {
			plain := o.Clone()
			plain.Created, plain.Generation, plain.Source = time.Time{}, 0, ""
			text, err := codec.EncodeYAML(plain)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "---\n# of %s\n%s", r.Origin[o.Key], text)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(r.Status), func(a, b model.Key) int { return strings.Compare(a.String(), b.String()) }) {
		text, err := codec.EncodeSpec(r.Status[key])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "---\n# status of %s\n%s\n", key, text)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "# problem: %s\n", p)
	}
	return b.String()
}

// TestConvert converts testdata/*.yaml and compares the results with the .want files.
func TestConvert(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) < 5 {
		t.Fatalf("golden files: got %v, error %v", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := show(t, Convert(input(t, string(text))))
			if again := show(t, Convert(input(t, string(text)))); again != got {
				t.Errorf("a second conversion differs (-first +second):\n%s", cmp.Diff(got, again))
			}
			want := strings.TrimSuffix(path, ".yaml") + ".want"
			goldentest.Check(t, want, got)
		})
	}
}
