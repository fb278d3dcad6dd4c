// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// TestClusterSet serves a Service of two clusters by the Multi-Cluster Services API, whose kinds are
// defined after the control plane has started: only exported endpoints of the other cluster are
// discovered, and the name of the cluster set exists while it is imported.
func TestClusterSet(t *testing.T) {
	t.Parallel()
	first, second := New(t, Options{}), New(t, Options{})
	ctx := testContext(t)
	one, two := writer{t, first.Admin()}, writer{t, second.Admin()}
	for i, w := range []writer{one, two} {
		c := []*Cluster{first, second}[i]
		w.must(c.CreateNamespace(ctx, "shop"))
		pod := w.pod("shop", "catalog-1", []string{"10.1.0.1", "10.2.0.1"}[i], nil)
		w.service("shop", "catalog", nil)
		w.slice("shop", "catalog-x", "catalog", pod)
	}
	plane := newControl(t, install(t, first, "rbac.yaml"), []string{"ENABLE_MCS_SERVICE_DISCOVERY=true", "ENABLE_MCS_HOST=true"})
	plane.args = append(plane.args, "--grpcAddr", plane.host+":15010")
	path, err := second.Kubeconfig("kubernetes-admin", "system:masters")
	one.must(err)
	kubeconfig, err := os.ReadFile(path)
	one.must(err)
	_, err = first.Admin().CoreV1().Secrets(meshNamespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "second", Labels: map[string]string{"istio/multiCluster": "true"}},
		StringData: map[string]string{"second": string(kubeconfig)},
	}, metav1.CreateOptions{})
	one.must(err)
	one.must(plane.Start(ctx))
	v := watchControl(t, plane.host+":15010", "shop")
	defer v.explain(t)
	const set = "outbound|80||catalog.shop.svc.clusterset.local"
	eventually(t, ctx, "without the kinds, the own cluster", v.has(catalog, "10.1.0.1:8080"))

	const export, imported = `{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceExport, metadata: {name: catalog, namespace: shop}}`,
		`{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceImport, metadata: {name: catalog, namespace: shop}, spec: {type: ClusterSetIP, ips: [10.100.0.1], ports: [{port: 80}]}}`
	for _, c := range []*Cluster{first, second} {
		one.must(c.ApplyCRDs(ctx, "testdata/mcs"))
	}
	one.must(second.Apply(ctx, []byte(export)))
	eventually(t, ctx, "an exported endpoint of the other cluster", v.has(catalog, "10.1.0.1:8080", "10.2.0.1:8080"))
	one.must(first.Apply(ctx, []byte(imported)))
	eventually(t, ctx, "the name of the cluster set", v.has(set, "10.1.0.1:8080", "10.2.0.1:8080"))
	two.slice("shop", "catalog-x", "catalog", two.pod("shop", "catalog-2", "10.2.0.2", nil))
	eventually(t, ctx, "a change of the other cluster", v.has(set, "10.1.0.1:8080", "10.2.0.2:8080"))
	exports, err := dynamic.NewForConfig(second.AdminConfig())
	one.must(err)
	one.must(exports.Resource(schema.GroupVersionResource{Group: "multicluster.x-k8s.io", Version: "v1alpha1", Resource: "serviceexports"}).
		Namespace("shop").Delete(ctx, "catalog", metav1.DeleteOptions{}))
	eventually(t, ctx, "the endpoints are exported no more", v.has(set, "10.1.0.1:8080"))
	definitions, err := dynamic.NewForConfig(first.AdminConfig())
	one.must(err)
	one.must(definitions.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
		Delete(ctx, "serviceimports.multicluster.x-k8s.io", metav1.DeleteOptions{}))
	eventually(t, ctx, "the name is gone with its kind", func() bool { return v.cluster(set) == nil })
}
