// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/storetest"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// definitionsOf returns the directory of a module that contains its definitions.
func definitionsOf(t *testing.T, module, folder string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("find the module %s: %v", module, err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), folder)
}

// seeded is the data of an etcd, created by the first test that needs it.
type seeded struct {
	once sync.Once
	dir  string
	err  error
}

// data returns the directory, which contains what fill writes into a new cluster.
func (s *seeded) data(t *testing.T, fill func(context.Context, *Cluster) error) string {
	t.Helper()
	s.once.Do(func() {
		var c *Cluster
		if c, s.err = startForTest(testContext(t), Options{}); s.err != nil {
			return
		}
		if s.err = fill(testContext(t), c); s.err == nil {
			s.dir, s.err = os.MkdirTemp("", directories+"data-")
		}
		c.APIServer.Kill()
		c.Etcd.Kill()
		if s.err == nil {
			s.err = os.Rename(c.work.file("etcd"), filepath.Join(s.dir, "etcd"))
		}
		s.err = errors.Join(s.err, c.close(false))
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return filepath.Join(s.dir, "etcd")
}

func (s *seeded) remove() {
	if s.dir != "" {
		_ = os.RemoveAll(s.dir) // the tests have ended
	}
}

// configCluster returns a separate cluster for the test with the definitions of Istio and of the
// Gateway API.
func configCluster(t *testing.T) *Cluster {
	t.Helper()
	folders := []string{
		definitionsOf(t, "istio.io/api", "kubernetes"),
		definitionsOf(t, "sigs.k8s.io/gateway-api", "config/crd/standard"),
	}
	return New(t, Options{Etcd: EtcdOptions{Data: definitions.data(t, func(ctx context.Context, c *Cluster) error {
		for _, folder := range folders {
			if err := c.ApplyCRDs(ctx, folder); err != nil {
				return err
			}
		}
		return nil
	})}})
}

// configStore opens the store of a cluster for its administrator.
func configStore(t *testing.T, c *Cluster) *kube.ConfigStore {
	t.Helper()
	kubeconfig, err := c.Kubeconfig("kubernetes-admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.New(kube.Config{Kubeconfig: kubeconfig, QPS: 5000, Burst: 5000})
	if err != nil {
		t.Fatal(err)
	}
	s, err := kube.NewConfigStore(kube.ConfigStoreConfig{Client: client, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// untyped returns a client for any kind.
func untyped(t *testing.T, c *Cluster) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// empty removes all configuration of a cluster.
func empty(t *testing.T, c *Cluster) {
	t.Helper()
	client := untyped(t, c)
	err := each(schema.All(), func(k schema.Schema) error {
		resource := client.Resource(kubeschema.GroupVersionResource{Group: k.Group, Version: k.Versions[0], Resource: k.Plural})
		all, err := resource.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", k.Plural, err)
		}
		var of []string
		for _, o := range all.Items {
			if namespace := o.GetNamespace(); !slices.Contains(of, namespace) {
				of = append(of, namespace)
			}
		}
		for _, namespace := range of {
			err := resource.Namespace(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
			if err != nil {
				return fmt.Errorf("delete %s: %w", k.Plural, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestConfigStoreConforms runs the suite of all stores on a real API server.
func TestConfigStoreConforms(t *testing.T) {
	t.Parallel()
	c := configCluster(t)
	for _, name := range []string{"shop", "other", "ns0", "ns1", "ns2", "ns3", "ns4", "ns5", "ns6", "ns7"} {
		if err := c.CreateNamespace(testContext(t), name); err != nil {
			t.Fatal(err)
		}
	}
	storetest.Run(t, func(t *testing.T) config.Store {
		empty(t, c)
		return configStore(t, c)
	}, storetest.Options{
		Serial: true,
		Reopen: func(t *testing.T, _ config.Store) config.Store { return configStore(t, c) },
	})
}

// workloadEntry returns a small object.
func workloadEntry(namespace, name, address string) *model.Config {
	return &model.Config{
		Key:  model.Key{Kind: model.WorkloadEntry, Namespace: namespace, Name: name},
		Spec: &networkingv1alpha3.WorkloadEntry{Address: address},
	}
}

// TestConfigStoreFollowsDefinitions creates the definitions after the store has started, changes
// their versions, and deletes them. The store follows: it serves the objects of existing
// definitions, and no others.
func TestConfigStoreFollowsDefinitions(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	s := configStore(t, c)
	runs(t, s.Run)
	ctx := testContext(t)
	eventually(t, ctx, "a store without definitions has synced", s.HasSynced)
	if _, err := s.Create(ctx, workloadEntry("default", "early", "10.0.0.1")); config.StatusCode(err) != 404 || !strings.Contains(err.Error(), "install it") {
		t.Errorf("create before the definition is there: %v", err)
	}
	if err := c.ApplyCRDs(ctx, definitionsOf(t, "istio.io/api", "kubernetes")); err != nil {
		t.Fatal(err)
	}
	key := workloadEntry("default", "late", "10.0.0.1").Key
	eventually(t, ctx, "an object of the new kind can be written", func() bool {
		_, err := s.Create(ctx, workloadEntry("default", "late", "10.0.0.1"))
		return err == nil || config.StatusCode(err) == 409
	})
	eventually(t, ctx, "the object of the new kind is there", func() bool { return s.Get(key) != nil })

	definitions := untyped(t, c).Resource(kubeschema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	// v1 is no longer served: the store continues with an older version.
	crd, err := definitions.Get(ctx, "workloadentries.networking.istio.io", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range crd.Object["spec"].(map[string]any)["versions"].([]any) {
		if version := v.(map[string]any); version["name"] == "v1" {
			version["served"] = false
		}
	}
	if _, err := definitions.Update(ctx, crd, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "the object is followed and written in the older version", func() bool {
		_, err := s.Patch(ctx, key, func(c *model.Config) error {
			if c.APIVersion != "networking.istio.io/v1beta1" {
				return errors.New("the older version is not in use yet")
			}
			c.Spec.(*networkingv1alpha3.WorkloadEntry).Address = "10.0.0.2"
			return nil
		})
		return err == nil
	})
	eventually(t, ctx, "a change in the older version is seen", func() bool {
		return s.Get(key).Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress() == "10.0.0.2"
	})
	if err := definitions.Delete(ctx, "workloadentries.networking.istio.io", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "the object is gone with its definition", func() bool { return s.Get(key) == nil })
}

// TestConfigStoreMissesNothing kills and restarts the API server and its etcd during the watch: no
// write is missed.
func TestConfigStoreMissesNothing(t *testing.T) {
	t.Parallel()
	c := configCluster(t)
	s := configStore(t, c)
	var events atomic.Int64
	s.RegisterEventHandler(func(list []config.Event) { events.Add(int64(len(list))) }, model.WorkloadEntry)
	var troubles atomic.Int64
	s.SetWatchErrorHandler(func(error) { troubles.Add(1) })
	runs(t, s.Run)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	eventually(t, ctx, "the store has synced", s.HasSynced)

	writer := configStore(t, c)
	const writes = 300
	var acknowledged sync.Map
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range writes {
			for ctx.Err() == nil {
				_, err := writer.Create(ctx, workloadEntry("default", fmt.Sprintf("w-%d", i), "10.0.0.1"))
				if err == nil || config.StatusCode(err) == 409 {
					acknowledged.Store(i, true)
					break
				}
				time.Sleep(20 * time.Millisecond) // the API server is down
			}
		}
	}()
	has := func(n int) func() bool {
		return func() bool { _, ok := acknowledged.Load(n); return ok }
	}
	eventually(t, ctx, "a part is written", has(writes/3))
	c.APIServer.Kill()
	eventually(t, ctx, "somebody heard that the API server is down", func() bool { return troubles.Load() > 0 })
	if err := c.APIServer.Start(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "another part is written", has(2*writes/3))
	c.Etcd.Kill()
	if err := c.Etcd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	<-done
	eventually(t, ctx, "every object is there", func() bool { return len(s.List(model.WorkloadEntry, "default")) == writes })
	eventually(t, ctx, "every object was reported", func() bool { return events.Load() >= writes })
}

// TestConfigStoreLeavesOut checks that objects of another revision are not served, nor those that
// change to one. The last valid version of an object that becomes invalid stays in force.
func TestConfigStoreLeavesOut(t *testing.T) {
	t.Parallel()
	c := configCluster(t)
	s := configStore(t, c)
	runs(t, s.Run)
	ctx := testContext(t)
	eventually(t, ctx, "the store has synced", s.HasSynced)
	canary := workloadEntry("default", "canary", "10.0.0.1")
	canary.Labels = map[string]string{"istio.io/rev": "canary"}
	plain := workloadEntry("default", "plain", "10.0.0.1")
	for _, o := range []*model.Config{canary, plain} {
		if _, err := s.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, ctx, "the object of every revision is there", func() bool { return s.Get(plain.Key) != nil })
	if s.Get(canary.Key) != nil {
		t.Error("the object of another revision is there")
	}
	// The API server accepts it, because the webhook of the control plane is not installed.
	entries := untyped(t, c).Resource(kubeschema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "workloadentries"}).Namespace("default")
	bad, err := entries.Get(ctx, "plain", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bad.Object["spec"] = map[string]any{"address": "not an address!"}
	if _, err := entries.Update(ctx, bad, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "the problem is reported", func() bool { return len(s.Problems()) == 1 })
	if p := s.Problems()[0]; p.Object != plain.Key || !strings.Contains(p.Reason, "spec.address") || !strings.Contains(p.Reason, "last good version") {
		t.Errorf("the problem is %v", p)
	}
	if got := s.Get(plain.Key).Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress(); got != "10.0.0.1" {
		t.Errorf("the address is %s: the last good version is not in force", got)
	}
	if _, err := s.Patch(ctx, plain.Key, func(c *model.Config) error {
		c.Spec.(*networkingv1alpha3.WorkloadEntry).Address = "10.0.0.3"
		c.Labels = map[string]string{"istio.io/rev": "canary"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "the object that went to another revision is gone", func() bool { return s.Get(plain.Key) == nil })
	if p := s.Problems(); len(p) > 0 {
		t.Errorf("problems stay: %v", p)
	}
}

// TestConfigStoreWithoutRights checks that a store without permission to read reports the missing
// right, does not sync, and continues automatically once the right is granted.
func TestConfigStoreWithoutRights(t *testing.T) {
	t.Parallel()
	c := configCluster(t)
	kubeconfig, err := c.Kubeconfig("nobody")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.New(kube.Config{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	s, err := kube.NewConfigStore(kube.ConfigStoreConfig{Client: client, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan error, 1000)
	s.SetWatchErrorHandler(func(err error) { heard <- err })
	runs(t, s.Run)
	ctx := testContext(t)
	if err := <-heard; !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("the trouble is %v", err)
	}
	if s.HasSynced() {
		t.Error("a store that may not read has synced")
	}
	rules, err := os.ReadFile("../../examples/kubernetes/rbac-config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CreateNamespace(ctx, meshNamespace); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, rules); err != nil {
		t.Fatal(err)
	}
	binding := fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: nobody}\n"+
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s}\nsubjects: [{kind: User, name: nobody}]\n", "outrigger-config")
	if err := c.Apply(ctx, []byte(binding)); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "the store has synced", s.HasSynced)
	rule := &model.Config{
		Key:  model.Key{Kind: model.DestinationRule, Namespace: "default", Name: "r"},
		Spec: &networkingv1alpha3.DestinationRule{Host: "a"},
	}
	if _, err := s.Create(ctx, rule); !apierrors.IsForbidden(unwrapAll(err)) {
		t.Errorf("a write without the right: %v", err)
	}
}

// unwrapAll returns the innermost error.
func unwrapAll(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = inner.Unwrap()
	}
}
