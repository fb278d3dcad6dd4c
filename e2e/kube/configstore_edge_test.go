// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"log/slog"
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestConfigStoreEdges checks behaviour of objects that only a cluster has: finalizers, names that
// are reused at once, definitions without a field, numbers that are not strings, and readers of one
// kind.
func TestConfigStoreEdges(t *testing.T) {
	t.Parallel()
	c := configCluster(t)
	s := configStore(t, c)
	runs(t, s.Run)
	ctx := testContext(t)
	eventually(t, ctx, "the store has synced", s.HasSynced)

	t.Run("finalizers", func(t *testing.T) { edgeFinalizers(t, c, s) })
	t.Run("a name that is used again", func(t *testing.T) { edgeNames(t, c, s) })
	t.Run("fields that the definition lacks", func(t *testing.T) { edgeFields(t, c, s) })
	t.Run("numbers of 64 bits", func(t *testing.T) { edgeNumbers(t, c, s) })
	t.Run("one kind", func(t *testing.T) { edgeOneKind(t, c, s) })
}

func edgeFinalizers(t *testing.T, c *Cluster, s *kube.ConfigStore) {
	t.Helper()
	ctx := testContext(t)
	entries := untyped(t, c).Resource(schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "workloadentries"}).Namespace("default")
	held := workloadEntry("default", "held", "10.0.0.1")
	if _, err := s.Create(ctx, held); err != nil {
		t.Fatal(err)
	}
	finalizers := func(list ...any) {
		t.Helper()
		o, err := entries.Get(ctx, "held", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.Object["metadata"].(map[string]any)["finalizers"] = list
		if _, err := entries.Update(ctx, o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	finalizers("example.com/keep")
	if err := s.Delete(ctx, held.Key, ""); err != nil {
		t.Fatal(err)
	}
	o, err := entries.Get(ctx, "held", metav1.GetOptions{})
	if err != nil || o.GetDeletionTimestamp() == nil {
		t.Fatalf("%v, %v: it is not being deleted", o, err)
	}
	eventually(t, ctx, "an object that is being deleted stays in force until it is gone", func() bool {
		got := s.Get(held.Key)
		return got != nil && got.ResourceVersion == o.GetResourceVersion()
	})
	finalizers()
	eventually(t, ctx, "the object is gone with its last finalizer", func() bool { return s.Get(held.Key) == nil })
}

func edgeNames(t *testing.T, c *Cluster, s *kube.ConfigStore) {
	t.Helper()
	ctx := testContext(t)
	version := ""
	for range 50 {
		o := workloadEntry("default", "again", "10.0.0.1")
		var err error
		if version, err = s.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(ctx, o.Key, version); err != nil {
			t.Fatal(err)
		}
	}
	last := workloadEntry("default", "again", "10.0.0.2")
	now, err := s.Create(ctx, last)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "the last object of the name is there", func() bool {
		got := s.Get(last.Key)
		return got != nil && got.ResourceVersion == now
	})
	if err := s.Delete(ctx, last.Key, version); config.StatusCode(err) != 409 {
		t.Errorf("delete with the version of a former object: %v", err)
	}
}

func edgeFields(t *testing.T, c *Cluster, s *kube.ConfigStore) {
	t.Helper()
	ctx := testContext(t)
	// Only the experimental definitions have it.
	scope := gatewayv1.GatewayDefaultScopeAll
	gateway := &model.Config{
		Key: model.Key{Kind: model.KubernetesGateway, Namespace: "default", Name: "edge"},
		Spec: &gatewayv1.GatewaySpec{
			GatewayClassName: "istio", DefaultScope: scope,
			Listeners: []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType}},
		},
	}
	_, err := s.Create(ctx, gateway)
	if config.StatusCode(err) != 422 || !strings.Contains(err.Error(), `"spec.defaultScope"`) || !strings.Contains(err.Error(), "newer definition") {
		t.Errorf("it was taken, and a field dropped: %v", err)
	}
}

func edgeNumbers(t *testing.T, c *Cluster, s *kube.ConfigStore) {
	t.Helper()
	ctx := testContext(t)
	rule := &model.Config{
		Key: model.Key{Kind: model.DestinationRule, Namespace: "default", Name: "ring"},
		Spec: &networkingv1alpha3.DestinationRule{Host: "a", TrafficPolicy: &networkingv1alpha3.TrafficPolicy{
			LoadBalancer: &networkingv1alpha3.LoadBalancerSettings{LbPolicy: &networkingv1alpha3.LoadBalancerSettings_ConsistentHash{
				ConsistentHash: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB{
					HashKey:       &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName{HttpHeaderName: "x"},
					HashAlgorithm: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_RingHash_{RingHash: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_RingHash{MinimumRingSize: 4096}},
				},
			}},
		}},
	}
	if _, err := s.Create(ctx, rule); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "it is read as it was written", func() bool {
		got := s.Get(rule.Key)
		return got != nil && model.SameSpec(got.Spec, rule.Spec)
	})
}

func edgeOneKind(t *testing.T, c *Cluster, s *kube.ConfigStore) {
	t.Helper()
	ctx := testContext(t)
	kubeconfig, err := c.Kubeconfig("kubernetes-admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.New(kube.Config{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	one, err := kube.NewConfigStore(kube.ConfigStoreConfig{
		Client: client, Kinds: []model.Kind{model.DestinationRule}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	runs(t, one.Run)
	eventually(t, ctx, "the store of one kind has synced", one.HasSynced)
	if n := len(one.Schemas()); n != 1 || len(one.List(model.DestinationRule, "")) != 1 || len(one.List(model.WorkloadEntry, "")) != 0 {
		t.Errorf("it serves %d kinds, %v", n, one.List(model.WorkloadEntry, ""))
	}
	if err := one.Delete(ctx, workloadEntry("default", "again", "").Key, ""); config.StatusCode(err) != 404 {
		t.Errorf("delete of another kind: %v", err)
	}
}
