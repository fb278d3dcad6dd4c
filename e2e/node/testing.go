// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// patience is the timeout of each wait. No test depends on a shorter time.
const patience = 5 * time.Minute

// Shared is one node for all tests of a package, started by the first that needs it. Each test uses
// its own namespaces.
type Shared struct {
	once sync.Once
	node *Node
	err  error
}

// Node returns the node. If it cannot start, every test fails with the reason.
func (s *Shared) Node(t testing.TB) *Node {
	t.Helper()
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		began := time.Now()
		if s.node, s.err = start(ctx); s.err == nil {
			fmt.Printf("node: ready after %s\n", time.Since(began).Round(100*time.Millisecond))
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.node.tails())
		}
	})
	return s.node
}

// tails returns the last lines of the programs' logs.
func (n *Node) tails() string {
	var all strings.Builder
	for _, p := range n.programs {
		text, err := os.ReadFile(p.Log())
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&all, "last lines of %s: %v\n%s\n", p.Log(), err, strings.Join(lines[max(0, len(lines)-tailLines):], "\n"))
	}
	return all.String()
}

const tailLines = 25

// apply applies the objects of YAML documents. Objects without a namespace are created in the given
// one.
func (n *Node) apply(t testing.TB, namespace, manifests string) {
	t.Helper()
	if err := n.ApplyIn(t.Context(), namespace, []byte(manifests)); err != nil {
		t.Fatal(err)
	}
}

// Pod waits until a Pod is in a state, and returns it.
func (n *Node) Pod(t testing.TB, namespace, name string, in func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := poll(ctx, func() (err error) {
		if pod, err = n.Admin().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return in(pod)
	})
	if err != nil {
		t.Fatalf("Pod %s/%s: %v\n%s", namespace, name, err, n.Explain(t.Context(), namespace))
	}
	return pod
}

// Selected waits until a Pod with a label is in a state, and returns it.
func (n *Node) Selected(t testing.TB, namespace, label string, in func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := poll(ctx, func() error {
		pods, err := n.Admin().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil {
			return err
		}
		err = errors.New("there is none")
		for i := range pods.Items {
			if err = in(&pods.Items[i]); err == nil {
				found = &pods.Items[i]
				return nil
			}
		}
		return err
	})
	if err != nil {
		t.Fatalf("Pod with %s in %s: %v\n%s", label, namespace, err, n.Explain(t.Context(), namespace))
	}
	return found
}

// eventually waits until done returns nil. If it does not, the test fails with the reason and the
// state of the Pods of a namespace.
func (n *Node) eventually(t testing.TB, namespace string, done func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := poll(ctx, func() error { return done(ctx) }); err != nil {
		t.Fatalf("%v\n%s", err, n.Explain(t.Context(), namespace))
	}
}

// Ready returns why a Pod is not ready.
func Ready(pod *corev1.Pod) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			if c.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("it is %s and not ready: %s: %s", pod.Status.Phase, c.Reason, c.Message)
		}
	}
	return fmt.Errorf("it is %s", pod.Status.Phase)
}

// Succeeded returns why a Pod has not succeeded.
func Succeeded(pod *corev1.Pod) error {
	if pod.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	return fmt.Errorf("it is %s", pod.Status.Phase)
}

// Logs returns the log of a container so far, or why there is none.
func (n *Node) Logs(ctx context.Context, namespace, pod, container string) string {
	text, err := n.Admin().CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Explain returns the state of the Pods of a namespace: conditions, events, ends of logs.
func (n *Node) Explain(ctx context.Context, namespace string) string {
	var all strings.Builder
	pods, err := n.Admin().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, pod := range pods.Items[:min(len(pods.Items), 5)] {
		fmt.Fprintf(&all, "%s %s\n", pod.Name, pod.Status.Phase)
		for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
			log := n.Logs(ctx, namespace, pod.Name, s.Name)
			fmt.Fprintf(&all, "  %s ready=%t restarts=%d waiting=%v terminated=%v\n%s\n", s.Name, s.Ready, s.RestartCount, s.State.Waiting, s.State.Terminated, log[max(0, len(log)-3000):])
		}
	}
	events, err := n.Admin().CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return all.String() + err.Error()
	}
	for _, e := range events.Items[max(0, len(events.Items)-40):] {
		fmt.Fprintf(&all, "%s %s %s: %s\n", e.Type, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	return all.String()
}

// Delete deletes a namespace, and waits until its Pods have ended.
func (n *Node) Delete(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return poll(ctx, func() error {
		if err := n.end(ctx, namespace); err != nil {
			return err
		}
		pods, err := n.Admin().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("Pod %s is still there", pods.Items[0].Name)
		}
		return err
	})
}

// end starts the deletion of a namespace. Its Pods are killed, because Kubernetes waits half of
// their longest grace period before it looks at them again.
func (n *Node) end(ctx context.Context, namespace string) error {
	err := n.Admin().CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	grace := int64(1)
	return n.Admin().CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &grace}, metav1.ListOptions{})
}
