// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debugtest

import (
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	kubenetworkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// Objects are objects of a store.
type Objects []*model.Config

// Schemas implements [debug.StoredObjects].
func (s Objects) Schemas() []schema.Schema { return schema.All() }

// Get implements [debug.StoredObjects].
func (s Objects) Get(key model.Key) *model.Config {
	if i := slices.IndexFunc(s, func(c *model.Config) bool { return c.Key == key }); i >= 0 {
		return s[i]
	}
	return nil
}

// List implements [debug.StoredObjects].
func (s Objects) List(kind model.Kind, _ string) (out []*model.Config) {
	for _, c := range s {
		if c.Kind == kind {
			out = append(out, c)
		}
	}
	return out
}

// Changed returns the objects after a change; nil deletes one.
func (s Objects) Changed(change map[model.Key]*model.Config) Objects {
	next := slices.DeleteFunc(slices.Clone(s), func(c *model.Config) bool { _, ok := change[c.Key]; return ok })
	for _, c := range change {
		if c != nil {
			next = append(next, c)
		}
	}
	return next
}

// Mesh returns the snapshot of the objects that follows another one; nil for none.
func (s Objects) Mesh(prev *snapshot.Mesh) *snapshot.Mesh {
	settings := meshconfig.Default()
	settings.ProxyHttpPort = 15080
	return snapshot.Build(prev, snapshot.Input{Mesh: settings, List: func(k model.Kind) []*model.Config { return s.List(k, "") }, Get: s.Get}, model.Change{All: true})
}

// Stored returns an object that a file holds.
func Stored(kind model.Kind, namespace, name string, spec any) *model.Config {
	return &model.Config{Key: model.Key{Kind: kind, Namespace: namespace, Name: name}, Spec: spec, Source: "shop.yaml:1"}
}

// Shop returns a mesh of one service with two workloads, and of one that is outside.
func Shop() Objects {
	entry := func(name, version, address string) *model.Config {
		return Stored(model.WorkloadEntry, "default", name, &networkingv1alpha3.WorkloadEntry{
			Address: address, Labels: map[string]string{"app": "web", "version": version},
		})
	}
	return Objects{
		Stored(model.ServiceEntry, "default", "web", &networkingv1alpha3.ServiceEntry{
			Hosts: []string{"web.default.svc.cluster.local"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC, Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL,
			Ports:            []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			WorkloadSelector: &networkingv1alpha3.WorkloadSelector{Labels: map[string]string{"app": "web"}},
		}),
		External("a", "240.0.0.1"),
		entry("web-1", "v1", "127.77.51.8"), entry("web-2", "v2", "127.77.51.9"),
		Stored(model.VirtualService, "default", "web", &networkingv1alpha3.VirtualService{
			Hosts: []string{"web"}, Http: []*networkingv1alpha3.HTTPRoute{{Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "web"}}}}},
		}),
		Stored(model.DestinationRule, "default", "web", &networkingv1alpha3.DestinationRule{
			Host: "web", Subsets: []*networkingv1alpha3.Subset{{Name: "v1", Labels: map[string]string{"version": "v1"}}},
		}),
		Stored(model.Sidecar, "default", "shop", &networkingv1alpha3.Sidecar{
			Ingress: []*networkingv1alpha3.IstioIngressListener{{Port: &networkingv1alpha3.SidecarPort{Number: 8080, Protocol: "HTTP", Name: "http"}, DefaultEndpoint: "127.0.0.1:18080"}},
		}),
		Stored(model.PeerAuthentication, "istio-system", "default", &securityv1beta1.PeerAuthentication{
			Mtls: &securityv1beta1.PeerAuthentication_MutualTLS{Mode: securityv1beta1.PeerAuthentication_MutualTLS_STRICT},
		}),
		Stored(model.EnvoyFilter, "default", "logs", &networkingv1alpha3.EnvoyFilter{}),
	}
}

// GatewayObjects returns a Gateway with a route, and two Ingresses of one host.
func GatewayObjects() Objects {
	web := gatewayv1.BackendObjectReference{Name: "web", Port: new(gatewayv1.PortNumber(80))}
	ingress := func(name, path string) *model.Config {
		return Stored(model.Ingress, "default", name, &kubenetworkingv1.IngressSpec{
			IngressClassName: new("istio"),
			Rules: []kubenetworkingv1.IngressRule{{Host: "in.test", IngressRuleValue: kubenetworkingv1.IngressRuleValue{HTTP: &kubenetworkingv1.HTTPIngressRuleValue{Paths: []kubenetworkingv1.HTTPIngressPath{{
				Path: path, PathType: new(kubenetworkingv1.PathTypePrefix),
				Backend: kubenetworkingv1.IngressBackend{Service: &kubenetworkingv1.IngressServiceBackend{Name: "web", Port: kubenetworkingv1.ServiceBackendPort{Number: 80}}},
			}}}}}},
		})
	}
	return Objects{
		Stored(model.GatewayClass, "", "istio", &gatewayv1.GatewayClassSpec{ControllerName: gatewayapi.Controller}),
		Stored(model.KubernetesGateway, "default", "front", &gatewayv1.GatewaySpec{
			GatewayClassName: "istio", Listeners: []gatewayv1.Listener{{Name: "http.one", Port: 8081, Protocol: gatewayv1.HTTPProtocolType}},
		}),
		Stored(model.HTTPRoute, "default", "to.web", &gatewayv1.HTTPRouteSpec{
			CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "front"}}},
			Hostnames:       []gatewayv1.Hostname{"front.test"},
			Rules:           []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{BackendObjectReference: web}}}}},
		}),
		Stored(model.IngressClass, "", "istio", &kubenetworkingv1.IngressClassSpec{Controller: "istio.io/ingress-controller"}),
		ingress("one", "/one"), ingress("two", "/two"),
	}
}

// External returns the ServiceEntry of a host outside the mesh.
func External(name string, addresses ...string) *model.Config {
	return &model.Config{
		Key: model.Key{Kind: model.ServiceEntry, Namespace: "default", Name: name},
		Spec: &networkingv1alpha3.ServiceEntry{
			Hosts: []string{name + ".example.com"}, Addresses: addresses, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
			Ports:     []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: "127.77.54.9"}},
		},
	}
}
