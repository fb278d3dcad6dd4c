// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

const rootsMap = "istio-ca-root-cert"

// bundle is a set of roots that a test changes.
type bundle struct {
	mu      sync.Mutex
	pem     []byte
	changed chan struct{}
}

func (b *bundle) set(pem []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pem = pem
	if b.changed != nil {
		close(b.changed)
	}
	b.changed = make(chan struct{})
}

func (b *bundle) get() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pem
}

func (b *bundle) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// distributor runs one replica; its lease is short.
func distributor(t *testing.T, c *Cluster, b *bundle, identity string) (stop func()) {
	t.Helper()
	r, err := kube.NewRoots(kube.RootsConfig{
		Client: connect(t, c), Bundle: b.get, Changed: b.wait, Logger: silent, Ignore: []string{"left-alone"},
		Lease: kube.Lease{Namespace: "istio-system", Identity: identity, Duration: 2 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	return runs(t, r.Run)
}

// holds checks that the given namespaces have the roots, and that others have none.
func holds(ctx context.Context, c *Cluster, want []byte, namespaces ...string) error {
	for _, namespace := range namespaces {
		m, err := c.Admin().CoreV1().ConfigMaps(namespace).Get(ctx, rootsMap, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if m.Data["root-cert.pem"] != string(want) || m.Labels["istio.io/config"] != "true" {
			return fmt.Errorf("%s has other roots, labels %v", namespace, m.Labels)
		}
	}
	return nil
}

// TestRoots runs two replicas that distribute the roots to each namespace:
//   - existing namespaces, and dozens of new ones;
//   - edited, deleted and immutable ConfigMaps are restored, additions of others stay;
//   - namespaces of Kubernetes, ignored ones and terminating ones have none;
//   - new roots are distributed everywhere; an empty bundle, or a key, nowhere;
//   - when the leader stops, the other replica takes over.
func TestRoots(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	ctx := t.Context()
	var names []string
	for n := range 5 {
		names = append(names, fmt.Sprint("before-", n))
	}
	for _, name := range append([]string{"istio-system", "left-alone"}, names...) {
		if err := c.CreateNamespace(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	first, second := certs.EncodeChain(newIssuer(t).cert), certs.EncodeChain(newIssuer(t).cert, newIssuer(t).cert)
	b := &bundle{}
	b.set(first)
	stop := distributor(t, c, b, "one")
	soon(t, "namespaces that were there", func() error { return holds(ctx, c, first, append(names, "default", "istio-system")...) })
	distributor(t, c, b, "two")
	for n := range 30 {
		name := fmt.Sprint("after-", n)
		names = append(names, name)
		go func() { _ = c.CreateNamespace(ctx, name) }() // polling would miss it
	}
	soon(t, "new namespaces", func() error { return holds(ctx, c, first, names...) })

	maps := func(namespace string) interface {
		Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.ConfigMap, error)
	} {
		return c.Admin().CoreV1().ConfigMaps(namespace)
	}
	patch := func(namespace, patch string) {
		t.Helper()
		if _, err := maps(namespace).Patch(ctx, rootsMap, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch("after-1", `{"data":{"root-cert.pem":"mine","other":"stays"},"metadata":{"annotations":{"note":"stays"}}}`)
	patch("after-2", `{"metadata":{"labels":{"istio.io/config":null}}}`)
	patch("after-3", `{"data":{"root-cert.pem":"mine"},"immutable":true}`)
	if err := c.Admin().CoreV1().ConfigMaps("after-4").Delete(ctx, rootsMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Admin().CoreV1().Namespaces().Delete(ctx, "after-5", metav1.DeleteOptions{}); err != nil { // it stays in the state Terminating
		t.Fatal(err)
	}
	soon(t, "ConfigMaps that somebody changed", func() error { return holds(ctx, c, first, names...) })
	m, err := c.Admin().CoreV1().ConfigMaps("after-1").Get(ctx, rootsMap, metav1.GetOptions{})
	if err != nil || m.Data["other"] != "stays" || m.Annotations["note"] != "stays" {
		t.Errorf("what others added is gone: %v, error %v", m, err)
	}

	for _, bad := range []string{"", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		b.set([]byte(bad))
		time.Sleep(300 * time.Millisecond) // nothing should happen
		if err := holds(ctx, c, first, names...); err != nil {
			t.Errorf("after a bundle of %d bytes: %v", len(bad), err)
		}
	}
	b.set(second)
	var there []string
	for _, name := range names {
		if name != "after-5" {
			there = append(there, name)
		}
	}
	soon(t, "other roots", func() error { return holds(ctx, c, second, there...) })
	for _, name := range []string{"kube-system", "kube-public", "kube-node-lease", "left-alone"} {
		if _, err := c.Admin().CoreV1().ConfigMaps(name).Get(ctx, rootsMap, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s has roots, error %v", name, err)
		}
	}

	lease, err := c.Admin().CoordinationV1().Leases("istio-system").Get(ctx, "istio-namespace-controller-election", metav1.GetOptions{})
	if err != nil || *lease.Spec.HolderIdentity != "one" {
		t.Fatalf("the lease is %v, error %v", lease, err)
	}
	stop()
	b.set(first)
	if err := c.CreateNamespace(ctx, "late"); err != nil {
		t.Fatal(err)
	}
	soon(t, "the other replica", func() error { return holds(ctx, c, first, append(there, "late")...) })
}

// TestLead checks that only one of two replicas writes at a time, also when the API server is
// killed and restarted.
func TestLead(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	var mu sync.Mutex
	leaders := map[string]bool{}
	led := map[string]int{}
	work := func(identity string) func(context.Context) error {
		return func(ctx context.Context) error {
			mu.Lock()
			leaders[identity] = true
			led[identity]++
			if len(leaders) > 1 {
				t.Errorf("these lead at once: %v", leaders)
			}
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			delete(leaders, identity)
			mu.Unlock()
			return nil
		}
	}
	for _, identity := range []string{"one", "two"} {
		client := connect(t, c)
		runs(t, func(ctx context.Context) error {
			return client.Lead(ctx, kube.Lease{Namespace: "default", Name: "test", Identity: identity, Duration: 4 * time.Second}, work(identity))
		})
	}
	count := func(want int) func() error {
		return func() error {
			mu.Lock()
			defer mu.Unlock()
			if len(leaders) != want {
				return fmt.Errorf("%v lead", leaders)
			}
			return nil
		}
	}
	soon(t, "a leader", count(1))
	c.APIServer.Kill()
	soon(t, "no leader without an API server", count(0))
	if err := c.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	soon(t, "a leader again", count(1))
	mu.Lock()
	defer mu.Unlock()
	if led["one"]+led["two"] < 2 {
		t.Error(errors.New("no replica led twice"))
	}
}
