// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// showModel renders a service of a registry, or "" if it does not exist.
func showModel(p *registry.PlatformService) string {
	if p == nil {
		return ""
	}
	s := p.Service
	var out []string
	for _, port := range s.Ports {
		out = append(out, fmt.Sprintf("%s:%s", port.Name, port.Protocol))
	}
	for _, mark := range []struct {
		is   bool
		text string
	}{
		{s.Headless, "headless"},
		{s.NodeLocal, "local"},
		{s.Distribution != "", string(s.Distribution)},
		{len(s.ExternalAddresses) > 0, fmt.Sprint(s.ExternalAddresses)},
		{len(s.ExternalPorts) > 0, "ports by node"},
		{s.Labels["app"] != "", "app " + s.Labels["app"]},
	} {
		if mark.is {
			out = append(out, mark.text)
		}
	}
	for _, g := range p.Gateways {
		out = append(out, fmt.Sprintf("gateway of %s at %s", g.Network, g.Address))
	}
	for _, e := range p.Endpoints {
		text := e.Address
		if e.Network != "" {
			text += " in " + e.Network
		}
		if e.Draining {
			text += " draining"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// TestRegistryModel reads the properties of services from an API server:
//   - protocols, headless, trafficDistribution, internalTrafficPolicy;
//   - external addresses of a load balancer and of nodes, as they change;
//   - the gateway of a network, the network of the cluster, a pod that drains;
//   - namespaces, while their selectors and labels change.
func TestRegistryModel(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	ctx := testContext(t)
	w := writer{t, c.Admin()}
	f := follow(t, c)
	<-f.Synced()
	w.must(c.CreateNamespace(ctx, "shop"))
	shows := func(name, want string) {
		t.Helper()
		last := ""
		defer func() {
			if t.Failed() {
				t.Logf("%s is %q, want %q", name, last, want)
			}
		}()
		eventually(t, ctx, name+" is "+want, func() bool { last = showModel(f.Service("shop", name)); return last == want })
	}
	mongo := "mongo"
	w.service("shop", "many", func(s *corev1.Service) {
		s.Labels = map[string]string{"app": "x"}
		s.Spec.Ports = []corev1.ServicePort{{Name: "grpc-web-a", Port: 80}, {Name: "b", Port: 81}, {Name: "http-c", AppProtocol: &mongo, Port: 82}, {Name: "d", Port: 3306}, {Name: "e", Port: 83, Protocol: corev1.ProtocolUDP}}
		local, near := corev1.ServiceInternalTrafficPolicyLocal, "PreferClose"
		s.Spec.InternalTrafficPolicy, s.Spec.TrafficDistribution = &local, &near
	})
	shows("many", "grpc-web-a:GRPC-Web, b:unsupported, http-c:Mongo, d:TCP, local, PreferSameZone, app x")
	w.service("shop", "none", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone })
	shows("none", "http:HTTP, headless")
	testOutside(ctx, t, w, shows)
	testPlaces(ctx, t, w, shows)

	// Namespaces.
	on := &meshv1alpha1.LabelSelector{MatchLabels: map[string]string{"mesh": "on"}}
	w.must(f.SelectNamespaces([]*meshv1alpha1.LabelSelector{on}))
	if p := f.Service("shop", "none"); p != nil || len(f.Services()) > 0 {
		t.Errorf("services of namespaces that are not chosen: %s", showModel(p))
	}
	label(ctx, t, c.Admin(), "shop", "mesh", "on")
	shows("none", "http:HTTP, headless")
	eventually(t, ctx, "the change is reported", func() bool {
		return strings.Contains(f.view(), "none.shop") && !strings.Contains(f.view(), "kubernetes.default")
	})
	label(ctx, t, c.Admin(), "shop", "mesh", "off")
	shows("none", "")
	w.must(f.SelectNamespaces(nil))
	eventually(t, ctx, "all namespaces count", func() bool {
		return strings.Contains(f.view(), "none.shop") && strings.Contains(f.view(), "kubernetes.default")
	})
}

// testOutside assigns addresses to a load balancer and a node.
func testOutside(ctx context.Context, t *testing.T, w writer, shows func(name, want string)) {
	t.Helper()
	services := w.api.CoreV1().Services("shop")
	w.service("shop", "edge", func(s *corev1.Service) {
		s.Labels = map[string]string{"topology.istio.io/network": "one"}
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
	})
	shows("edge", "http:HTTP")
	edge, err := services.Get(ctx, "edge", metav1.GetOptions{})
	w.must(err)
	mode := corev1.LoadBalancerIPModeVIP
	edge.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: &mode}}
	edge, err = services.UpdateStatus(ctx, edge, metav1.UpdateOptions{})
	w.must(err)
	shows("edge", "http:HTTP, map[Kubernetes:[192.0.2.1]], gateway of one at 192.0.2.1")
	edge.Status.LoadBalancer.Ingress = nil
	_, err = services.UpdateStatus(ctx, edge, metav1.UpdateOptions{})
	w.must(err)
	shows("edge", "http:HTTP")

	w.service("shop", "nodes", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Annotations = map[string]string{"traffic.istio.io/nodeSelector": `{"role": "edge"}`}
	})
	shows("nodes", "http:HTTP, ports by node")
	nodes := w.api.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-e", Labels: map[string]string{"role": "edge"}}}, metav1.CreateOptions{})
	w.must(err)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.9"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.9"}}
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	w.must(err)
	shows("nodes", "http:HTTP, map[Kubernetes:[192.0.2.9]], ports by node")
	w.must(nodes.Delete(ctx, "node-e", metav1.DeleteOptions{}))
	shows("nodes", "http:HTTP, ports by node")
}

// testPlaces drains a pod, and sets the network of the cluster.
func testPlaces(ctx context.Context, t *testing.T, w writer, shows func(name, want string)) {
	t.Helper()
	pod := w.pod("shop", "p", "10.1.0.1", nil)
	for name, label := range map[string]string{"plain": "other", "sticky": "istio.io/persistent-session"} {
		w.service("shop", name, func(s *corev1.Service) { s.Labels = map[string]string{label: "cookie"} })
		w.slice("shop", name+"-x", name, pod)
		shows(name, "http:HTTP, 10.1.0.1")
		slice := sliceOf(name+"-x", name, []*corev1.Pod{pod})
		yes, no := true, false
		slice.Endpoints[0].Conditions.Ready, slice.Endpoints[0].Conditions.Serving, slice.Endpoints[0].Conditions.Terminating = &no, &yes, &yes
		_, err := w.api.DiscoveryV1().EndpointSlices("shop").Update(ctx, slice, metav1.UpdateOptions{})
		w.must(err)
	}
	shows("plain", "http:HTTP")
	shows("sticky", "http:HTTP, 10.1.0.1 draining")
	_, err := w.api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: meshNamespace}}, metav1.CreateOptions{})
	w.must(ignoreExists(err))
	label(ctx, t, w.api, meshNamespace, "topology.istio.io/network", "one")
	shows("sticky", "http:HTTP, 10.1.0.1 in one draining")
}

// label sets a label of a namespace.
func label(ctx context.Context, t *testing.T, api kubernetes.Interface, namespace, key, value string) {
	t.Helper()
	n, err := api.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[key] = value
	if _, err := api.CoreV1().Namespaces().Update(ctx, n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
