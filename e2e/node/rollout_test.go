// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rollReplicas and rollRate are how many Pods are replaced under how many requests a second. A slow
// machine may send fewer.
const (
	rollReplicas = 20
	rollRate     = "500"
	loadPort     = "8082" // port of the client, which the test calls without a proxy
	writeEvery   = 50 * time.Millisecond
)

// load is locked by tests that send all the requests that the machine can take.
var load sync.Mutex

// loader is a Pod that sends requests to the server. The verb is its rate.
const loader = `
apiVersion: v1
kind: Pod
metadata: {name: load, labels: {app: load}, annotations: {traffic.sidecar.istio.io/excludeInboundPorts: "` + loadPort + `"}}
spec:
  containers: [{name: app, image: "` + appImage + `", args: [load, "http://server", "%s", ":` + loadPort + `"]}]
`

// sent returns the current result of the client.
type sent struct {
	Sent, Done, Failed int
	Errors             []string
}

// TestRollout replaces the Pods of a Deployment, then those of the control plane, under load. No
// request fails, and while the control plane is replaced, no object is refused.
func TestRollout(t *testing.T) {
	t.Parallel()
	load.Lock()
	defer load.Unlock()
	n := mesh.Node(t)
	n.meshed(t, "rollout")
	n.apply(t, "rollout", strict+"---"+strings.TrimSuffix(fmt.Sprintf(server, "server"), "---\n"))
	scale := fmt.Appendf(nil, `{"spec": {"replicas": %d, "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%%"}}}}`, rollReplicas)
	n.patch(t, "rollout", "server", scale)
	n.rolledOut(t, "rollout", "server")
	n.apply(t, "rollout", fmt.Sprintf(loader, rollRate)) // a single Pod cannot serve so many
	from := n.Pod(t, "rollout", "load", Ready).Status.PodIP
	so := func() (r sent) {
		t.Helper()
		n.eventually(t, "rollout", func(ctx context.Context) error {
			text, err := fetch(ctx, "http://"+from+":"+loadPort)
			if err != nil {
				return err
			}
			return json.Unmarshal([]byte(text), &r)
		})
		return r
	}
	n.eventually(t, "rollout", func(context.Context) error {
		if r := so(); r.Done < 100 {
			return fmt.Errorf("%d of %d requests are done, %d failed: %q", r.Done, r.Sent, r.Failed, r.Errors)
		}
		return nil
	})
	before, began := so(), time.Now()
	again := []byte(`{"spec": {"template": {"metadata": {"annotations": {"example.com/again": "1"}}}}}`)
	n.patch(t, "rollout", "server", again)
	n.rolledOut(t, "rollout", "server")
	written := n.whileWriting(t, func() {
		old := n.controlPods(t)
		n.patch(t, "istio-system", "outrigger-control", again)
		n.rolledOut(t, "istio-system", "outrigger-control")
		n.eventually(t, "istio-system", func(context.Context) error { // until the last one has ended
			for name := range n.controlPods(t) {
				if old[name] {
					return fmt.Errorf("Pod %s is still there", name)
				}
			}
			return nil
		})
	})
	middle, took := so(), time.Since(began)
	n.eventually(t, "rollout", func(context.Context) error {
		if r := so(); r.Done < middle.Sent {
			return fmt.Errorf("%d of %d requests are done", r.Done, middle.Sent)
		}
		return nil
	})
	after := so()
	if after.Failed != 0 || after.Done == before.Done {
		t.Errorf("%d of %d requests failed: %q", after.Failed, after.Done, after.Errors)
	}
	fmt.Printf("node: %d Pods and the control plane replaced in %s: %d requests, %d failed; %d objects written\n",
		rollReplicas, took.Round(100*time.Millisecond), after.Done-before.Done, after.Failed, written)
}

// controlPods returns the names of the control plane's Pods, those that end among them.
func (n *Node) controlPods(t *testing.T) map[string]bool {
	t.Helper()
	pods, err := n.Admin().CoreV1().Pods("istio-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, pod := range pods.Items {
		names[pod.Name] = true
	}
	return names
}

// whileWriting runs a function, and meanwhile writes objects that the webhooks of the control plane
// check: a VirtualService, and Pods in dry-run mode. It returns their number. A refused one fails
// the test.
func (n *Node) whileWriting(t *testing.T, run func()) (written int) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			if err := n.writeBoth(t.Context(), written); err != nil {
				t.Errorf("object %d at %s: %v", written, began.Format("15:04:05.000"), err)
				return
			}
			written++
			select {
			case <-ctx.Done():
			case <-time.After(writeEvery):
			}
		}
	})
	run()
	end()
	writer.Wait()
	if written == 0 {
		t.Error("no object was written")
	}
	return written
}

// writeBoth writes a VirtualService, and a Pod in dry-run mode, which must receive a proxy.
func (n *Node) writeBoth(ctx context.Context, number int) error {
	object := fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: written, namespace: rollout}
spec: {hosts: [written.example.com], http: [{timeout: %ds, route: [{destination: {host: server}}]}]}
`, number+1)
	if err := n.ApplyIn(ctx, "rollout", []byte(object)); err != nil {
		return fmt.Errorf("write a VirtualService: %w", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "written-"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: appImage}}}}
	pod, err := n.Admin().CoreV1().Pods("rollout").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return fmt.Errorf("write a Pod: %w", err)
	}
	if len(pod.Spec.InitContainers) == 0 {
		return fmt.Errorf("Pod %s got no proxy", pod.Name)
	}
	return nil
}

func (n *Node) patch(t testing.TB, namespace, deployment string, patch []byte) {
	t.Helper()
	_, err := n.Admin().AppsV1().Deployments(namespace).Patch(t.Context(), deployment, "application/strategic-merge-patch+json", patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// rolledOut waits until all Pods of a Deployment are those of its last version.
func (n *Node) rolledOut(t testing.TB, namespace, name string) {
	t.Helper()
	n.eventually(t, namespace, func(ctx context.Context) error {
		d, err := n.Admin().AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		want, s := *d.Spec.Replicas, d.Status
		if s.ObservedGeneration < d.Generation || s.UpdatedReplicas != want || s.Replicas != want || s.AvailableReplicas != want {
			return fmt.Errorf("Deployment %s: %+v", name, appsv1.DeploymentStatus{Replicas: s.Replicas, UpdatedReplicas: s.UpdatedReplicas, AvailableReplicas: s.AvailableReplicas})
		}
		return nil
	})
}
