// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// object returns a ProxyConfig that sets the variable WHO to its name, and a variable of that name.
func object(name string, selector map[string]string, more func(*networkingv1beta1.ProxyConfig)) *model.Config {
	spec := &networkingv1beta1.ProxyConfig{EnvironmentVariables: map[string]string{"WHO": name, strings.ToUpper(name): "yes"}}
	if selector != nil {
		spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: selector}
	}
	if more != nil {
		more(spec)
	}
	return &model.Config{Key: model.Key{Kind: model.ProxyConfig, Name: name}, Spec: spec}
}

// TestProxyConfigObjects checks which ProxyConfig objects apply to a pod, and in which order.
func TestProxyConfigObjects(t *testing.T) {
	t.Parallel()
	threads := func(n int32) func(*networkingv1beta1.ProxyConfig) {
		return func(spec *networkingv1beta1.ProxyConfig) { spec.Concurrency = wrapperspb.Int32(n) }
	}
	image := func(name string) func(*networkingv1beta1.ProxyConfig) {
		return func(spec *networkingv1beta1.ProxyConfig) {
			spec.Image = &networkingv1beta1.ProxyImage{ImageType: name}
		}
	}
	objects := map[string][]*model.Config{
		"istio-system": {object("root", nil, threads(7)), object("younger", nil, threads(9)), object("other", map[string]string{"app": "web"}, nil)},
		"shop":         {object("none", map[string]string{"app": "nobody"}, threads(1)), object("own", map[string]string{}, image("debug")), object("web", map[string]string{"app": "web"}, image("distroless"))},
	}
	for name, c := range map[string]struct {
		namespace, app, annotation string
		who                        string
		threads                    string // in PROXY_CONFIG
		tag                        string
		without                    []string
	}{
		"root":                {"elsewhere", "web", "", "root", `"concurrency":7`, "proxy:1", []string{"OWN", "WEB", "OTHER", "YOUNGER"}},
		"in the root":         {"istio-system", "web", "", "other", `"concurrency":7`, "proxy:1", []string{"OWN", "WEB", "YOUNGER"}},
		"namespace":           {"shop", "db", "", "own", `"concurrency":7`, "proxy:1-debug", []string{"WEB", "NONE"}},
		"selected":            {"shop", "web", "", "web", `"concurrency":7`, "proxy:1-distroless", []string{"NONE"}},
		"annotation":          {"shop", "db", `{concurrency: 3, proxyMetadata: {WHO: me}}`, "me", `"concurrency":3`, "proxy:1-debug", nil},
		"selected, annotated": {"shop", "web", `{concurrency: 3, proxyMetadata: {WHO: me, MORE: "1"}}`, "web", `"concurrency":3`, "proxy:1-distroless", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInjector(t, "", "global: {hub: h, tag: 1}", "")
			in.ProxyConfigs = func(namespace string) []*model.Config { return objects[namespace] }
			before := proto.CloneOf(in.Mesh)
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": c.app}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "example/app:1"}}},
			}
			if c.annotation != "" {
				pod.Annotations = map[string]string{nameProxyConfig: c.annotation}
			}
			got, err := in.Inject(Request{Pod: pod, Namespace: c.namespace})
			if err != nil {
				t.Fatal(err)
			}
			proxy := findContainer(proxyName, got.Pod)
			env := map[string]string{}
			for _, v := range proxy.Env {
				env[v.Name] = v.Value
			}
			if env["WHO"] != c.who || !strings.Contains(env["PROXY_CONFIG"], c.threads) || proxy.Image != "h/"+c.tag {
				t.Errorf("WHO: got %q, PROXY_CONFIG: got %s, image: got %s", env["WHO"], env["PROXY_CONFIG"], proxy.Image)
			}
			for _, variable := range c.without {
				if _, ok := env[variable]; ok {
					t.Errorf("the variable %s of an object that does not apply is set", variable)
				}
			}
			if !proto.Equal(before, in.Mesh) {
				t.Error("the injection changed the mesh config")
			}
			again, err := in.Inject(Request{Pod: got.Pod, Namespace: c.namespace})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got.Pod, again.Pod); diff != "" {
				t.Errorf("a second injection changed the pod (-first +second):\n%s", diff)
			}
		})
	}
}
