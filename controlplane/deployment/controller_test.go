// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package deployment

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/inject"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// fakeStore contains a Gateway and its class.
type fakeStore struct {
	config.Reader
	objects map[model.Key]*model.Config
}

func (s fakeStore) Get(key model.Key) *model.Config { return s.objects[key] }

func (s fakeStore) List(kind model.Kind, _ string) (out []*model.Config) {
	for key, o := range s.objects {
		if key.Kind == kind {
			out = append(out, o)
		}
	}
	return out
}

// fakeCluster is a cluster whose cache is always up to date. It counts requests.
type fakeCluster struct {
	mu             sync.Mutex // guards the fields below
	objects        map[string]*unstructured.Unstructured
	reads, applies int
	fail           error // of Apply
	changed        func(namespace, gateway string)
}

func nameOf(kind, name string) string { return kind + "/" + name }

func (f *fakeCluster) Get(_ context.Context, kind schema.GroupVersionKind, _, name string) (*unstructured.Unstructured, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	return f.objects[nameOf(kind.Kind, name)], nil
}

func (f *fakeCluster) Apply(_ context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applies++
	if f.fail != nil {
		return nil, f.fail
	}
	name := nameOf(o.GetKind(), o.GetName())
	if f.objects[name] != nil && o.GetResourceVersion() == "" {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: o.GetKind()}, o.GetName())
	}
	o.SetResourceVersion("1")
	f.objects[name] = o.DeepCopy()
	return o, nil
}

func (f *fakeCluster) Delete(_ context.Context, o *unstructured.Unstructured) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.objects, nameOf(o.GetKind(), o.GetName()))
	return nil
}

func (f *fakeCluster) owned(uid string) (out []*unstructured.Unstructured) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.objects {
		if owners := o.GetOwnerReferences(); len(owners) > 0 && string(owners[0].UID) == uid {
			out = append(out, o)
		}
	}
	return out
}

func fingerprint(o *unstructured.Unstructured) string {
	doc, _ := json.Marshal(o.Object) // cannot fail for JSON values
	return fmt.Sprintf("%x", sha256.Sum256(doc))
}

// change modifies an object like another client, and reports it like the watch.
func (f *fakeCluster) change(kind, name string, with func(*unstructured.Unstructured)) {
	f.mu.Lock()
	o := f.objects[nameOf(kind, name)].DeepCopy()
	with(o)
	f.objects[nameOf(kind, name)] = o
	f.mu.Unlock()
	f.changed("shop", "edge")
}

// counts returns the requests since the last call.
func (f *fakeCluster) counts() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := fmt.Sprintf("%d reads, %d applies", f.reads, f.applies)
	f.reads, f.applies = 0, 0
	return out
}

// deploying runs a controller with a Gateway whose ConfigMap exists, in a synctest bubble.
func deploying(t *testing.T, cluster *fakeCluster) *Controller {
	t.Helper()
	text := strings.Replace(edge, "listeners:", `infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: large}}, listeners:`, 1) +
		"---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: istio}\nspec: {controllerName: istio.io/gateway-controller}\n"
	list, problems := codec.Decode("in.yaml", []byte(text))
	if len(list) != 2 {
		t.Fatalf("%d objects, problems %v", len(list), problems)
	}
	store := fakeStore{objects: map[model.Key]*model.Config{}}
	for _, o := range list {
		o.UID = "1234"
		store.objects[o.Key] = o
	}
	live := &unstructured.Unstructured{Object: map[string]any{}}
	live.SetUID("1234")
	cluster.objects = map[string]*unstructured.Unstructured{
		nameOf("Gateway", "edge"):    live,
		nameOf("ConfigMap", "large"): {Object: map[string]any{"data": map[string]any{"deployment": "spec: {replicas: 2}", "horizontalPodAutoscaler": "{}", "podDisruptionBudget": "{}"}}},
	}
	in := injector(t)
	c, err := New(Config{
		Store: store, Cluster: cluster, Owned: cluster.owned, Fingerprint: fingerprint,
		Follow: func(ctx context.Context, _ string, ready func(), changed func(namespace, gateway string)) error {
			cluster.changed = changed
			ready()
			<-ctx.Done()
			return nil
		},
		Mine: func(string) bool { return true }, Injector: func() *inject.Injector { return in },
		Added: func(string, string) ([]gatewayv1.Listener, bool) { return nil, true }, OnFault: func(model.Key) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestSteadyGateway checks that after the deployment, requests are made only when something
// changes.
func TestSteadyGateway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := &fakeCluster{}
		deploying(t, cluster)
		step := func(what, want string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if got := cluster.counts(); got != want {
				t.Errorf("%s: got %s, want %s", what, got, want)
			}
		}
		step("the deployment", "7 reads, 5 applies")
		time.Sleep(time.Minute)
		step("a minute without a change", "6 reads, 0 applies")
		cluster.changed("shop", "edge")
		step("an event without a change", "1 reads, 0 applies")
		cluster.change("Service", "edge-istio", func(o *unstructured.Unstructured) { o.SetLabels(nil) })
		step("a Service that was changed", "3 reads, 1 applies")
		cluster.mu.Lock()
		delete(cluster.objects, nameOf("Deployment", "edge-istio"))
		cluster.mu.Unlock()
		cluster.changed("shop", "edge")
		step("a Deployment that was deleted", "3 reads, 1 applies")
		cluster.change("ConfigMap", "large", func(o *unstructured.Unstructured) {
			o.Object["data"] = map[string]any{"deployment": "spec: {replicas: 3}"}
		})
		step("another ConfigMap", "3 reads, 1 applies")
		if n := len(cluster.owned("1234")); n != 3 {
			t.Errorf("%d objects without autoscaler and budget, want 3", n)
		}
	})
}

// TestFailingGateway checks that there is at most one attempt per pause, however many events
// arrive.
func TestFailingGateway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := &fakeCluster{fail: errors.New("no connection")}
		deploying(t, cluster)
		time.Sleep(time.Minute)
		synctest.Wait()
		cluster.counts()
		for range 1000 {
			cluster.changed("shop", "edge")
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		cluster.mu.Lock()
		if most := int(10*time.Second/eventPause) + 1; cluster.applies == 0 || cluster.applies > most {
			t.Errorf("%d attempts for 1000 events in 10 s, want 1 to %d", cluster.applies, most)
		}
		cluster.fail = nil
		cluster.mu.Unlock()
		cluster.changed("shop", "edge")
		time.Sleep(2 * eventPause)
		synctest.Wait()
		if n := len(cluster.owned("1234")); n != 5 {
			t.Errorf("%d objects after the fault, want 5", n)
		}
	})
}
