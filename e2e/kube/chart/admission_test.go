// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/e2e/kube"
)

// labeled returns a new namespace with a label.
func labeled(t *testing.T, key, value string) string {
	t.Helper()
	c, namespace := shared.Namespace(t)
	label(t, c, namespace, key, value)
	return namespace
}

func label(t *testing.T, c *kube.Cluster, namespace, key, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %q}}}`, key, value)
	if _, err := c.Admin().CoreV1().Namespaces().Patch(t.Context(), namespace, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// admitted creates a pod in dry-run mode and returns it as the API server admits it.
func (r *release) admitted(namespace string, pod *corev1.Pod) (*corev1.Pod, error) {
	r.t.Helper()
	pod = pod.DeepCopy()
	if pod.Name == "" {
		pod.Name = "probe"
	}
	if len(pod.Spec.Containers) == 0 {
		pod.Spec.Containers = []corev1.Container{{Name: "application", Image: "registry.invalid/application:1"}}
	}
	return r.cluster.Admin().CoreV1().Pods(namespace).Create(r.t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// admit is admitted, and reports whether the pod has a proxy.
func (r *release) admit(namespace string, pod *corev1.Pod) (proxy bool, err error) {
	r.t.Helper()
	if pod, err = r.admitted(namespace, pod); err != nil {
		return false, err
	}
	for _, c := range append(pod.Spec.Containers, pod.Spec.InitContainers...) {
		proxy = proxy || c.Name == "istio-proxy"
	}
	return proxy, nil
}

// TestWebhookIsDown checks which pods start while the control plane is down: its own, others of its
// namespace that request no proxy, and those of Kubernetes. Pods that need a proxy do not start
// without one.
func TestWebhookIsDown(t *testing.T) {
	t.Parallel()
	r := newRelease(t)
	r.mustInstall(map[string]any{"revision": "down"}, false)
	label(t, r.cluster, r.namespace, "istio.io/rev", "down")
	if err := r.cluster.CreateNamespace(t.Context(), "kube-system"); err != nil {
		t.Fatal(err)
	}
	label(t, r.cluster, "kube-system", "istio.io/rev", "down")
	mesh, plain := labeled(t, "istio.io/rev", "down"), labeled(t, "a", "b")
	deployment, err := r.cluster.Admin().AppsV1().Deployments(r.namespace).Get(t.Context(), "outrigger-control-down", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own := &corev1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
	with := func(labels map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
	}
	refused := func(namespace string, pod *corev1.Pod) (bool, error) {
		_, err := r.admit(namespace, pod)
		if err != nil && strings.Contains(err.Error(), `failed calling webhook "rev.`) {
			return true, nil
		}
		return false, err
	}
	for name, c := range map[string]struct {
		namespace string
		pod       *corev1.Pod
	}{
		"in the mesh": {mesh, with(nil)},
		"that asks for a proxy outside of the mesh": {plain, with(map[string]string{"istio.io/rev": "down"})},
	} {
		eventually(t, "a pod "+name+" is refused", func() error { // once the API server knows webhooks and labels
			is, err := refused(c.namespace, c.pod)
			if err == nil && !is {
				err = errors.New("it starts")
			}
			return err
		})
	}
	for name, c := range map[string]struct {
		namespace string
		pod       *corev1.Pod
	}{
		"the control plane":                     {namespace: r.namespace, pod: own},
		"in the namespace of the control plane": {namespace: r.namespace, pod: with(nil)},
		"of Kubernetes":                         {namespace: "kube-system", pod: with(nil)},
		"of Kubernetes, with the label":         {namespace: "kube-system", pod: with(map[string]string{"istio.io/rev": "down"})},
		"outside of the mesh":                   {namespace: plain, pod: with(nil)},
		"in the mesh, without a proxy":          {namespace: mesh, pod: with(map[string]string{"sidecar.istio.io/inject": "false"})},
	} {
		if is, err := refused(c.namespace, c.pod); is || err != nil {
			t.Errorf("a pod %s does not start: refused %t, %v", name, is, err)
		}
	}
}

// TestTags checks that a tag selects a revision. outrigger install moves it to another one without
// a moment in which pods of the tag's namespaces start without a proxy.
func TestTags(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	r := releaseIn(t, c, namespace)
	admin := kubeconfig(t, c)
	install := func(args ...string) {
		t.Helper()
		if out, err := tool(t, admin, append([]string{"install", "--wait=false", "--namespace=" + namespace}, args...)...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	install("--revision=old", "--set=tags={stable}")
	r.newControl("-old").start()
	install("--revision=new")
	r.newControl("-new").start()
	eventually(t, "the webhooks have roots", func() error { return errors.Join(r.patched("old", 5), r.patched("new", 3)) })
	mesh := labeled(t, "istio.io/rev", "stable")
	// started reports whether pods of the namespace receive a proxy.
	started := func() error {
		proxy, err := r.admit(mesh, &corev1.Pod{})
		if err == nil && !proxy {
			err = errors.New("a pod starts without a proxy")
		}
		return err
	}
	eventually(t, "pods get a proxy", started)

	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := started(); err != nil {
				stopped <- fmt.Errorf("pod %d: %w", n, err)
				return
			}
		}
	}()
	install("--revision=new", "--set=tags={stable}")
	install("--revision=old")
	eventually(t, "the tag is of the new revision", func() error { return errors.Join(r.patched("old", 3), r.patched("new", 5)) })
	close(stop)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if out, err := tool(t, admin, "uninstall", "--revision=old", "--namespace="+namespace); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := started(); err != nil {
		t.Errorf("without the old revision: %v", err)
	}
}
