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

// Listeners of plain HTTP that share a port are one listener of Envoy, and the
// specification wants them apart all the same: a request is for the listener with
// the most specific host, and for no other one, even if that one has no route for
// it.

// within reports whether another listener of the port takes over part of the
// hosts of this one.
func (l *listener) within(wider *listener) bool {
	own, others := string(deref(l.Hostname)), string(deref(wider.Hostname))
	return l != wider && l.Port == wider.Port && l.Protocol == gatewayv1.HTTPProtocolType && wider.Protocol == gatewayv1.HTTPProtocolType &&
		own != "" && (others == "" || covers(others, own))
}

// owns reports whether requests for a host, or for all hosts of a wildcard, are
// those of the listener.
func (l *listener) owns(host string) bool {
	return !slices.ContainsFunc(l.of.listeners, func(m *listener) bool {
		own := string(deref(m.Hostname))
		return m.within(l) && m.serves() && (own == host || covers(own, host))
	})
}

// isolate answers 404 for hosts of listeners that have no route for all of them,
// where requests would go to a wider listener otherwise.
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
