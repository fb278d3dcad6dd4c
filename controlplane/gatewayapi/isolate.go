// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"maps"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// HTTP listeners that share a port are a single Envoy listener, but the specification requires
// isolation: a request belongs to the listener with the most specific host only, even if that
// listener has no route for it.

// within reports whether the hosts of the listener are a subset of those of a wider listener on
// the same port.
func (l *listener) within(wider *listener) bool {
	own, others := string(deref(l.Hostname)), string(deref(wider.Hostname))
	return l != wider && l.Port == wider.Port && l.Protocol == gatewayv1.HTTPProtocolType && wider.Protocol == gatewayv1.HTTPProtocolType &&
		own != "" && (others == "" || covers(others, own))
}

// owns reports whether requests for a host, or for all hosts of a wildcard, belong to the
// listener.
func (l *listener) owns(host string) bool {
	return !slices.ContainsFunc(l.of.listeners, func(m *listener) bool {
		own := string(deref(m.Hostname))
		return m.within(l) && m.serves() && (own == host || covers(own, host))
	})
}

// isolate adds a 404 response to listeners without a route for their whole hostname. Otherwise, a
// wider listener would receive the requests that no route matches.
func (c *converter) isolate() {
	for _, n := range slices.SortedFunc(maps.Keys(c.gateways), compareNames) {
		g := c.gateways[n]
		for _, l := range g.listeners {
			host := string(deref(l.Hostname))
			key := groupKey{gateway: g.Namespace + "/" + l.gatewayName(), host: host, layer: layerHTTP}
			if c.groups[key] != nil || !l.serves() || !slices.ContainsFunc(g.listeners, l.within) {
				continue
			}
			c.add(model.VirtualService, g.Config, &model.Config{
				Key:         model.Key{Namespace: g.Namespace, Name: l.gatewayName() + "-isolated"},
				Annotations: map[string]string{semanticsAnnotation: "gateway", parentsAnnotation: kindGateway + "/" + g.Name + "." + g.Namespace},
				Spec: &networkingv1alpha3.VirtualService{
					Hosts: []string{host}, Gateways: []string{key.gateway},
					Http: []*networkingv1alpha3.HTTPRoute{{DirectResponse: &networkingv1alpha3.HTTPDirectResponse{Status: 404}}},
				},
			})
		}
	}
}
