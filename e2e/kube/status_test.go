// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// statusMesh is a cluster with the namespace shop, and the rights of a control
// plane that takes its configuration from it.
func statusMesh(t *testing.T) (c *Cluster, kubeconfig string) {
	t.Helper()
	c = configCluster(t)
	kubeconfig = install(t, c, "rbac.yaml", "rbac-config.yaml")
	if err := c.CreateNamespace(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	return c, kubeconfig
}

// statusControl creates a control plane of the cluster that accepts unauthenticated streams,
// without starting it.
func statusControl(t *testing.T, kubeconfig string) *control {
	t.Helper()
	cp := newControl(t, kubeconfig, nil, "--meshConfig", "mesh", "--kubernetesApiQPS", "400", "--kubernetesApiBurst", "800")
	cp.args = append(cp.args, "--grpcAddr", cp.plaintext())
	if err := os.WriteFile(filepath.Join(cp.dir, "mesh"), []byte("configSources: [{address: \"k8s://\"}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return cp
}

func (c *control) plaintext() string { return c.host + ":15010" }

// objectsOf returns the objects of a kind of networking.istio.io in shop.
func objectsOf(t *testing.T, c *Cluster, plural string) dynamic.ResourceInterface {
	t.Helper()
	return untyped(t, c).Resource(schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: plural}).Namespace("shop")
}

// conditionIn returns a condition of an object as text: status, reason, message.
func conditionIn(u *unstructured.Unstructured, kind string) string {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions") // an unreadable condition counts as missing
	for _, one := range list {
		if c, ok := one.(map[string]any); ok && c["type"] == kind {
			return fmt.Sprintf("%v %v: %v", c["status"], c["reason"], c["message"])
		}
	}
	return ""
}

// within waits until a condition of an object contains a text, and returns the elapsed time.
func within(t *testing.T, resource dynamic.ResourceInterface, name, kind, text string) *unstructured.Unstructured {
	t.Helper()
	start := time.Now()
	for {
		u, err := resource.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		took, got := time.Since(start), conditionIn(u, kind)
		if strings.Contains(got, text) {
			t.Logf("%s of %s says %q after %v", kind, name, text, took.Round(time.Millisecond))
			return u
		}
		if took > 2*time.Minute {
			t.Fatalf("%s of %s says %q after %v, want %q", kind, name, got, took.Round(time.Millisecond), text)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// relabel changes an object such that the configuration of all proxies changes.
func relabel(t *testing.T, resource dynamic.ResourceInterface, name, host string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"hosts": []string{host}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := resource.Patch(t.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

const statusObjects = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: changes, namespace: shop}
spec:
  hosts: [a.test]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.9.9.9}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web-1, namespace: shop}
spec: {address: 10.1.0.1, serviceAccount: web, labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web-2, namespace: shop}
spec: {address: 10.1.0.2, serviceAccount: web, labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: astray, namespace: shop}
spec:
  hosts: [a.test]
  gateways: [mesh, edge]
  http: [{route: [{destination: {host: nowhere.test}}]}]
`

// TestStatus checks the status of the objects of a real cluster, written by the real program with
// the rights of examples/kubernetes:
//   - all proxies have an object; one does not respond; one rejects it, with its message;
//   - a host and a gateway that do not exist;
//   - fields of other writers stay, and a restart writes nothing again;
//   - a status causes no push.
func TestStatus(t *testing.T) {
	t.Parallel()
	c, kubeconfig := statusMesh(t)
	if err := c.Apply(t.Context(), []byte(statusObjects)); err != nil {
		t.Fatal(err)
	}
	services, routes := objectsOf(t, c, "serviceentries"), objectsOf(t, c, "virtualservices")
	theirs, err := services.Get(t.Context(), "changes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	theirs.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Theirs", "status": "True", "reason": "R", "message": "of others"}}}
	if _, err := services.UpdateStatus(t.Context(), theirs, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	cp := statusControl(t, kubeconfig)
	if err := cp.Start(testContext(t)); err != nil {
		t.Fatal(err)
	}
	envoys := []*proxyClient{cp.proxy(t, "10.1.0.1"), cp.proxy(t, "10.1.0.2"), cp.proxy(t, "10.1.0.3")}
	soon(t, "all proxies are served, also the one of no known workload", func() error {
		if n := cp.value(t, "pilot_xds "); n != 3 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	within(t, services, "changes", "Reconciled", "True Acknowledged: in force in all proxies")
	u := within(t, routes, "astray", "PassedAnalysis", `there is no Gateway shop/edge`)
	if got := conditionIn(u, "PassedAnalysis"); !strings.Contains(got, `no service has the host "nowhere.test"`) {
		t.Errorf("the status says %q", got)
	}
	messages, _, err := unstructured.NestedSlice(u.Object, "status", "validationMessages")
	if err != nil || strings.Count(fmt.Sprint(messages), "IST0101 name:ReferencedResourceNotFound") != 2 {
		t.Errorf("the messages are %v, error %v", messages, err)
	}
	// One proxy does not respond, and then it does.
	envoys[2].silence(true)
	relabel(t, services, "changes", "b.test")
	within(t, services, "changes", "Reconciled", "False NotAcknowledged: 1 of 3 proxies has not acknowledged it yet")
	envoys[2].silence(false)
	within(t, services, "changes", "Reconciled", "True Acknowledged")
	// One proxy rejects, and then it does not.
	envoys[1].reject("no such filter")
	relabel(t, services, "changes", "c.test")
	within(t, services, "changes", "Reconciled", "False Rejected: rejected by")
	within(t, services, "changes", "Reconciled", "web.shop (identity not proven) reports for")
	u = within(t, services, "changes", "Reconciled", "no such filter")
	if got, _, _ := unstructured.NestedFieldNoCopy(u.Object, "status", "observedGeneration"); fmt.Sprint(got) != fmt.Sprint(u.GetGeneration()) {
		t.Errorf("the status is of generation %v, the object of %d", got, u.GetGeneration())
	}
	envoys[1].reject("")
	relabel(t, services, "changes", "d.test")
	within(t, services, "changes", "Reconciled", "True Acknowledged")
	u = within(t, services, "changes", "Theirs", "of others")
	pushes := cp.value(t, "pilot_xds_pushes")
	events := cp.value(t, "outrigger_control_config_events_skipped_total")
	if events < 5 {
		t.Errorf("%v events of status were left out, want some", events)
	}

	// The same again after a restart, with one proxy less.
	if err := cp.Restart(testContext(t)); err != nil {
		t.Fatal(err)
	}
	cp.proxy(t, "10.1.0.1")
	cp.proxy(t, "10.1.0.2")
	soon(t, "the control plane leads again", func() error {
		if cp.value(t, `outrigger_control_kube_leader{lease="istio-status-leader"}`) != 1 {
			return errors.New("it does not")
		}
		return nil
	})
	relabel(t, services, "web", "web2.shop.svc.cluster.local")
	within(t, services, "web", "Reconciled", "acknowledged by the 2 that were")
	soon(t, "the write of the object that has changed is the only one after the restart", func() error {
		if n := cp.value(t, "outrigger_control_status_writes_total"); n != 1 {
			return fmt.Errorf("there are %v", n)
		}
		return nil
	})
	again, err := services.Get(t.Context(), "changes", metav1.GetOptions{})
	if err != nil || again.GetResourceVersion() != u.GetResourceVersion() {
		t.Errorf("an object that has not changed was written again: %v", err)
	}
	t.Logf("%v pushes and %v events of status before the restart", pushes, events)
}

// TestStatusOfMachines checks that the status of an unhealthy machine reports that, and that the
// machine stays out of service when the control plane restarts.
func TestStatusOfMachines(t *testing.T) {
	t.Parallel()
	c, kubeconfig := statusMesh(t)
	if err := c.Apply(t.Context(), []byte(statusObjects)); err != nil {
		t.Fatal(err)
	}
	entries := objectsOf(t, c, "workloadentries")
	cp := statusControl(t, kubeconfig)
	if err := cp.Start(testContext(t)); err != nil {
		t.Fatal(err)
	}
	const cluster = "outbound|80||web.shop.svc.cluster.local"
	if got := cp.endpoints(t, cluster); got != "10.1.0.1 10.1.0.2" {
		t.Fatalf("the endpoints are %q", got)
	}
	cp.provenProxy(t, c, "10.1.0.1").unhealthy(t, "connection refused")
	within(t, entries, "web-1", "Healthy", "False AgentReport: connection refused")
	if err := cp.Restart(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if got := cp.endpoints(t, cluster); got != "10.1.0.2" {
		t.Errorf("the first endpoints after a restart are %q: the machine came back", got)
	}
	cp.provenProxy(t, c, "10.1.0.1").healthy(t)
	within(t, entries, "web-1", "Healthy", "True AgentReport")
	soon(t, "the machine is back", func() error {
		if got := cp.endpoints(t, cluster); got != "10.1.0.1 10.1.0.2" {
			return fmt.Errorf("the endpoints are %q", got)
		}
		return nil
	})
}

// TestStatusWritesLittle checks that a thousand objects, two replicas and a hundred proxies that
// connect cause one final write for each object and each change. Proxies that a busy machine
// delays may cause a write that mentions them before it, and again every 30 s.
func TestStatusWritesLittle(t *testing.T) {
	c, kubeconfig := statusMesh(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	const objects, streams = 1000, 100
	entries := objectsOf(t, c, "workloadentries")
	for n := range objects {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"address": fmt.Sprintf("10.2.%d.%d", n/250, n%250+1)}}}
		u.SetAPIVersion("networking.istio.io/v1")
		u.SetKind("WorkloadEntry")
		u.SetName(fmt.Sprintf("w-%d", n))
		if _, err := entries.Create(ctx, u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := entries.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The API server closes the watch of a slow client; this one then continues.
	events, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return entries.Watch(ctx, o) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	var done, early atomic.Int64 // writes by content: whether all proxies have the object
	go func() {
		last := map[string]any{}
		for e := range events.ResultChan() {
			u, ok := e.Object.(*unstructured.Unstructured)
			if !ok || e.Type != watch.Modified || reflect.DeepEqual(u.Object["status"], last[u.GetName()]) {
				continue // a change of the spec
			}
			last[u.GetName()] = u.Object["status"]
			if strings.HasPrefix(conditionIn(u, "Reconciled"), "True") {
				done.Add(1)
			} else {
				early.Add(1)
			}
		}
	}()
	replicas := []*control{statusControl(t, kubeconfig), statusControl(t, kubeconfig)}
	for _, cp := range replicas {
		if err := cp.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	for n := range streams {
		replicas[n%2].proxy(t, fmt.Sprintf("10.3.0.%d", n+1))
	}
	for end := time.Now().Add(3 * time.Minute); done.Load() < objects; time.Sleep(50 * time.Millisecond) {
		if time.Now().Before(end) {
			continue
		}
		for _, cp := range replicas {
			t.Logf("a replica has %v proxies, %v objects that not all of them have; it leads: %v; it has written %v", cp.value(t, "pilot_xds "),
				cp.value(t, "outrigger_control_unacknowledged_objects"), cp.value(t, `outrigger_control_kube_leader{lease="istio-status-leader"}`),
				cp.value(t, "outrigger_control_status_writes_total"))
		}
		t.Fatalf("%d of %d objects have their status; %d writes mention proxies without them", done.Load(), objects, early.Load())
	}
	wrote := func(what string, want int64) {
		t.Helper()
		time.Sleep(3 * time.Second) // the absence of further writes has no event to wait for
		took := time.Since(start).Round(time.Millisecond)
		most := want * int64(1+took/(30*time.Second))
		if n, other := done.Load(), early.Load(); n != want || other > most {
			t.Errorf("%s: %d final writes after %v, want %d; %d others, want %d at most", what, n, took, want, other, most)
		}
		t.Logf("%s: %d final writes after %v, %d others", what, done.Load(), took, early.Load())
	}
	wrote("objects are made", objects)
	const changed = 50
	for n := range changed {
		patch := fmt.Appendf(nil, `{"spec":{"address":"10.4.0.%d"}}`, n+1)
		if _, err := entries.Patch(ctx, fmt.Sprintf("w-%d", n), "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, ctx, "every changed object has its status", func() bool { return done.Load() >= objects+changed })
	wrote("objects are changed", objects+changed)
}
