// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// tlsRoutes converts each TLSRoute to routes that match the SNI.
func (c *converter) tlsRoutes() {
	for _, o := range specs[gatewayv1.TLSRouteSpec](c, model.TLSRoute) {
		status := c.convert(&route{Config: o.Config, hostnames: texts(o.spec.Hostnames), byHost: true}, o.spec.ParentRefs, func(r *route, places []attachment) {
			if len(o.spec.Rules) == 0 {
				return
			}
			to := c.streams(r, o.spec.Rules[0].BackendRefs, "spec.rules[0].backendRefs")
			for _, at := range places {
				for _, host := range at.hosts {
					one := at
					one.hosts = []string{host}
					if l := at.listener; l != nil && tlsMode(l.Listener) == gatewayv1.TLSModeTerminate {
						l.ended[host], one.gateway = true, l.hostGatewayName(host)
						c.join(r, one, layerTLS, []entry{{tcp: &networkingv1alpha3.TCPRoute{Route: to}}})
						continue
					}
					match := &networkingv1alpha3.TLSMatchAttributes{SniHosts: []string{host}, Port: at.port}
					c.join(r, one, layerTLS, []entry{{tls: &networkingv1alpha3.TLSRoute{Match: []*networkingv1alpha3.TLSMatchAttributes{match}, Route: to}}})
				}
			}
		})
		c.result.Status[o.Key] = &gatewayv1.TLSRouteStatus{RouteStatus: status}
	}
}

// tcpRoutes converts each TCPRoute.
func (c *converter) tcpRoutes() {
	for _, o := range specs[gatewayv1.TCPRouteSpec](c, model.TCPRoute) {
		status := c.convert(&route{Config: o.Config}, o.spec.ParentRefs, func(r *route, places []attachment) {
			if len(o.spec.Rules) == 0 {
				return
			}
			to := c.streams(r, o.spec.Rules[0].BackendRefs, "spec.rules[0].backendRefs")
			for _, at := range places {
				made := &networkingv1alpha3.TCPRoute{Route: to}
				if at.port != 0 {
					made.Match = []*networkingv1alpha3.L4MatchAttributes{{Port: at.port}}
				}
				c.join(r, at, layerTCP, []entry{{tcp: made}})
			}
		})
		c.result.Status[o.Key] = &gatewayv1.TCPRouteStatus{RouteStatus: status}
	}
}
