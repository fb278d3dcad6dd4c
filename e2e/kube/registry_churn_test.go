// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// follower follows a registry only by its changes, as the control plane does.
type follower struct {
	*kube.Registry
	mu      sync.Mutex // guards the fields below
	pending model.Change
	state   *registry.Services
}

// follow runs a registry of a cluster.
func follow(t *testing.T, c *Cluster) *follower {
	t.Helper()
	kubeconfig, err := c.Kubeconfig("kubernetes-admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.New(kube.Config{Kubeconfig: kubeconfig, QPS: 5000, Burst: 5000})
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{}
	f.Registry, err = kube.NewRegistry(kube.RegistryConfig{
		Client: client, Cluster: "Kubernetes", Namespace: meshNamespace, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		OnChange: func(change model.Change) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.pending = f.pending.Merge(change)
		},
		SelectsPods: func(string) bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	runs(t, f.Run)
	return f
}

func (f *follower) input() registry.Input {
	return registry.Input{
		List: func(model.Kind) []*model.Config { return nil }, Get: func(model.Key) *model.Config { return nil }, Platform: f,
	}
}

// view applies the changes since the last call, and returns everything as text.
func (f *follower) view() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	change := f.pending
	f.pending = model.Change{}
	if f.state == nil {
		f.state = registry.Build(f.input())
	} else {
		f.state, _, _ = f.state.Update(f.input(), change)
	}
	var lines []string
	for key, list := range f.state.Endpoints {
		lines = append(lines, key.Hostname)
		for _, e := range list {
			lines = append(lines, fmt.Sprintf("%s %d %s:%d %s %s %s", key.Hostname, e.ServicePort, e.Address, e.Port, e.ServiceAccount, e.Workload, e.Locality))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// listed returns the view of an API server, read at once and without the code under test.
func listed(ctx context.Context, t *testing.T, api kubernetes.Interface) string {
	t.Helper()
	must := writer{t, api}.must
	services, err := api.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	must(err)
	all, err := api.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	must(err)
	pods, err := api.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	must(err)
	uids := map[string]bool{}
	for i := range pods.Items {
		uids[string(pods.Items[i].UID)] = true
	}
	var lines []string
	for _, s := range services.Items {
		host := s.Name + "." + s.Namespace + ".svc.cluster.local"
		lines = append(lines, host)
		for _, slice := range all.Items {
			if slice.Namespace != s.Namespace || slice.Labels[discoveryv1.LabelServiceName] != s.Name {
				continue
			}
			for _, e := range slice.Endpoints {
				if !*e.Conditions.Ready || e.TargetRef != nil && !uids[string(e.TargetRef.UID)] {
					continue
				}
				account, pod, locality := "default", "", "r/a"
				if pod = e.TargetRef.Name; *e.NodeName != "node-a" {
					locality = ""
				}
				for _, port := range s.Spec.Ports {
					if i := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool { return *p.Name == port.Name }); i >= 0 {
						lines = append(lines, fmt.Sprintf("%s %d %s:%d %s %s %s", host, port.Port, e.Addresses[0], *slice.Ports[i].Port, account, pod, locality))
					}
				}
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// churn changes something in a namespace at random.
type churn struct {
	r         *rand.Rand
	api       kubernetes.Interface
	namespace string
	pods      []*corev1.Pod
	number    int
}

func (c *churn) step(ctx context.Context) error {
	name := fmt.Sprint("s", c.r.IntN(4))
	services, all := c.api.CoreV1().Services(c.namespace), c.api.DiscoveryV1().EndpointSlices(c.namespace)
	switch what := c.r.IntN(10); {
	case what < 3: // a pod is created
		c.number++
		pod, err := makePod(ctx, c.api, c.namespace, fmt.Sprint("p", c.number), fmt.Sprintf("10.2.%d.%d", c.number/250, 1+c.number%250), map[string]string{"app": name})
		if err == nil {
			c.pods = append(c.pods, pod)
		}
		return err
	case what == 3 && len(c.pods) > 0: // a pod is deleted
		i := c.r.IntN(len(c.pods))
		gone := c.pods[i]
		c.pods = slices.Delete(c.pods, i, i+1)
		return c.api.CoreV1().Pods(c.namespace).Delete(ctx, gone.Name, *metav1.NewDeleteOptions(0))
	case what == 4: // a service is deleted
		return services.Delete(ctx, name, metav1.DeleteOptions{})
	case what == 5: // or comes
		_, err := services.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Name: "http", Port: int32(80 + c.r.IntN(2)), TargetPort: intstr.FromInt32(8080)}},
		}}, metav1.CreateOptions{})
		return err
	case what == 6: // a slice is deleted
		return all.Delete(ctx, fmt.Sprint(name, "-", c.r.IntN(2)), metav1.DeleteOptions{})
	}
	var some []*corev1.Pod
	for _, pod := range c.pods {
		if c.r.IntN(2) == 0 {
			some = append(some, pod)
		}
	}
	slice := sliceOf(fmt.Sprint(name, "-", c.r.IntN(2)), name, some)
	for i := range slice.Endpoints {
		ready := c.r.IntN(4) > 0
		slice.Endpoints[i].Conditions.Ready = &ready
	}
	_, err := all.Create(ctx, slice, metav1.CreateOptions{})
	if err != nil {
		_, err = all.Update(ctx, slice, metav1.UpdateOptions{})
	}
	return err
}

// TestRegistryUnderLoad creates and deletes Services, Pods and EndpointSlices with several writers,
// and kills the API server meanwhile. In the end the registry, followed only by its changes, equals
// the API server.
func TestRegistryUnderLoad(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	w := writer{t, c.Admin()}
	w.must(c.CreateNamespace(ctx, meshNamespace))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{corev1.LabelTopologyRegion: "r", corev1.LabelTopologyZone: "a"}}}
	_, err := c.Admin().CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	w.must(err)
	const writers, steps = 6, 200
	config := c.AdminConfig()
	config.QPS, config.Burst = 5000, 5000
	api, err := kubernetes.NewForConfig(config)
	w.must(err)
	f := follow(t, c)
	<-f.Synced()
	f.view()
	var running sync.WaitGroup
	var done atomic.Int64
	start := time.Now()
	for i := range writers {
		namespace := fmt.Sprint("load-", i)
		w.must(c.CreateNamespace(ctx, namespace))
		running.Go(func() {
			load := &churn{r: rand.New(rand.NewPCG(uint64(i), 3)), api: api, namespace: namespace}
			for range steps {
				_ = load.step(ctx) // objects may be missing, and the API server is killed
				done.Add(1)
			}
		})
	}
	eventually(t, ctx, "a part is written", func() bool { f.view(); return done.Load() > writers*steps/3 })
	c.APIServer.Kill()
	w.must(c.APIServer.Start(ctx))
	running.Wait()
	t.Logf("%d steps in %v", done.Load(), time.Since(start))
	w.pod("load-0", "last", "10.3.0.1", nil)
	soonEnough, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for f.view() != listed(ctx, t, api) {
		select {
		case <-soonEnough.Done():
			t.Fatalf("the registry says\n%s\n\nthe API server says\n%s", f.view(), listed(ctx, t, api))
		case <-time.After(5 * probeEvery):
		}
	}
	if len(strings.Split(f.view(), "\n")) < 20 {
		t.Errorf("too few objects were left to compare:\n%s", f.view())
	}
	whole := follow(t, c)
	<-whole.Synced()
	if a, b := f.view(), whole.view(); a != b {
		t.Errorf("one that followed and one that began again differ:\n%s\n\n%s", a, b)
	}
}

// TestRegistryWaitsForPods creates an EndpointSlice before its pod: the endpoint exists exactly as
// long as the pod, regardless of the slice.
func TestRegistryWaitsForPods(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	ctx := testContext(t)
	w := writer{t, c.Admin()}
	f := follow(t, c)
	<-f.Synced()
	w.service("default", "web", nil)
	late := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}, Spec: corev1.PodSpec{NodeName: "node-a"}, Status: corev1.PodStatus{PodIP: "10.4.0.1"},
	}
	there := w.pod("default", "web-1", "10.4.0.2", nil)
	w.slice("default", "web-x", "web", late, there)
	const one, two = "10.4.0.1:8080 default late", "10.4.0.2:8080 default web-1"
	eventually(t, ctx, "the pod that is there is used", func() bool { return strings.Contains(f.view(), two) })
	if strings.Contains(f.view(), "10.4.0.1") {
		t.Error("a pod that is not there is used")
	}
	w.pod("default", "late", "10.4.0.1", nil)
	eventually(t, ctx, "the pod that has come is used", func() bool { return strings.Contains(f.view(), one) })
	w.must(c.Admin().CoreV1().Pods("default").Delete(ctx, "web-1", *metav1.NewDeleteOptions(0)))
	eventually(t, ctx, "the pod that is gone is not used", func() bool { return !strings.Contains(f.view(), two) })
	if !strings.Contains(f.view(), one) {
		t.Error("another pod went with it")
	}
}
