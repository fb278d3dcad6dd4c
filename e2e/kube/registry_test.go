// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const catalog = "outbound|80||catalog.shop.svc.cluster.local"

// TestRegistryServes tests services from the cluster to the proxy:
//   - a control plane with the rights of examples/kubernetes is ready;
//   - a Service and the pods of its EndpointSlice become a cluster and its endpoints;
//   - when a pod is deleted its endpoint is removed, and nothing else is sent;
//   - a ServiceEntry selects pods, a Service selects WorkloadEntries;
//   - an ExternalName and a headless Service, and a Service exported to some namespaces.
func TestRegistryServes(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	ctx := testContext(t)
	w := writer{t, c.Admin()}
	w.must(c.CreateNamespace(ctx, "shop"))
	plane := newControl(t, install(t, c, "rbac.yaml"), nil)
	plane.args = append(plane.args, "--grpcAddr", plane.host+":15010")
	w.must(plane.Start(ctx))
	_, err := c.Admin().CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "node-a", Labels: map[string]string{corev1.LabelTopologyRegion: "r", corev1.LabelTopologyZone: "a"},
	}}, metav1.CreateOptions{})
	w.must(err)
	labels := map[string]string{"app": "catalog", "security.istio.io/tlsMode": "istio"}
	one, two := w.pod("shop", "catalog-1", "10.1.0.1", labels), w.pod("shop", "catalog-2", "10.1.0.2", labels)
	w.service("shop", "catalog", nil)
	w.slice("shop", "catalog-x", "catalog", one, two)
	v := watchControl(t, plane.host+":15010", "shop")
	defer v.explain(t)
	eventually(t, ctx, "both pods", v.has(catalog, "10.1.0.1:8080 mtls in a", "10.1.0.2:8080 mtls in a"))
	if text := v.cluster(catalog).String(); !strings.Contains(text, "spiffe://cluster.local/ns/shop/sa/default") {
		t.Errorf("the cluster does not name the identity of its pods: %s", text)
	}
	clusters := v.count(clusterType)
	w.slice("shop", "catalog-x", "catalog", two)
	eventually(t, ctx, "one pod", v.has(catalog, "10.1.0.2:8080 mtls in a"))
	w.slice("shop", "catalog-x", "catalog")
	eventually(t, ctx, "no pod", v.has(catalog))
	w.slice("shop", "catalog-x", "catalog", two)
	eventually(t, ctx, "one pod again", v.has(catalog, "10.1.0.2:8080 mtls in a"))
	if now := v.count(clusterType); now != clusters {
		t.Errorf("%d responses with clusters arrived after changes of endpoints", now-clusters)
	}

	plane.configure(t, "pods.yaml", `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: pods, namespace: shop}
spec:
  hosts: [pods.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 90, name: http, protocol: HTTP, targetPort: 9090}]
  workloadSelector: {labels: {app: catalog}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: machine, namespace: shop}
spec: {address: 10.9.9.9, labels: {app: catalog}, ports: {http: 8888}}`)
	const pods = "outbound|90||pods.example.com"
	eventually(t, ctx, "the ServiceEntry has the pods and the machine", v.has(pods, "10.1.0.1:9090 mtls in a", "10.1.0.2:9090 mtls in a", "10.9.9.9:8888"))
	eventually(t, ctx, "the Service has the machine", v.has(catalog, "10.1.0.2:8080 mtls in a", "10.9.9.9:8888"))
	w.must(c.Admin().CoreV1().Pods("shop").Delete(ctx, "catalog-1", *metav1.NewDeleteOptions(0)))
	eventually(t, ctx, "a pod is gone", v.has(pods, "10.1.0.2:9090 mtls in a", "10.9.9.9:8888"))
	three := w.pod("shop", "catalog-3", "10.1.0.3", labels)
	eventually(t, ctx, "a pod has come", v.has(pods, "10.1.0.2:9090 mtls in a", "10.1.0.3:9090 mtls in a", "10.9.9.9:8888"))

	w.service("shop", "outside", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName, s.Spec.Selector = corev1.ServiceTypeExternalName, "api.example.com", nil
	})
	w.service("shop", "hidden", func(s *corev1.Service) { s.Annotations = map[string]string{"networking.istio.io/exportTo": "other"} })
	w.service("shop", "pets", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone })
	w.slice("shop", "pets-x", "pets", three)
	eventually(t, ctx, "a headless service", v.has("outbound|80||pets.shop.svc.cluster.local", "10.1.0.3:8080 mtls in a"))
	eventually(t, ctx, "an ExternalName", func() bool {
		found := v.cluster("outbound|80||outside.shop.svc.cluster.local")
		return found != nil && strings.Contains(found.String(), "api.example.com")
	})
	if v.cluster("outbound|80||hidden.shop.svc.cluster.local") != nil {
		t.Error("a service for another namespace is seen")
	}
	w.must(c.Admin().CoreV1().Services("shop").Delete(ctx, "catalog", metav1.DeleteOptions{}))
	eventually(t, ctx, "the service is gone", func() bool { return v.cluster(catalog) == nil })
}
