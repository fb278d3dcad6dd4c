// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// l4Match is what the matches of TLS and TCP routes have in common.
type l4Match interface {
	GetDestinationSubnets() []string
	GetPort() uint32
	GetSourceLabels() map[string]string
	GetGateways() []string
	GetSourceNamespace() string
}

func (c *checker) l4Match(m l4Match, path string) {
	for i, s := range m.GetDestinationSubnets() {
		c.ipRange(s, field.Index(path+".destinationSubnets", i))
	}
	c.optionalPort(m.GetPort(), path+".port")
	c.longLabels(m.GetSourceLabels(), path+".sourceLabels")
	c.gatewayNames(m.GetGateways(), path+".gateways")
	if ns := m.GetSourceNamespace(); ns != "" {
		c.fault(path+".sourceNamespace", labelNameFault(ns))
	}
}

func (c *checker) tlsRoute(r *networkingv1alpha3.TLSRoute, hosts *hostSet, path string) {
	if len(r.GetMatch()) == 0 {
		c.errorf(path+".match", "is empty: write a match with sniHosts")
	}
	for i, m := range r.GetMatch() {
		at := field.Index(path+".match", i)
		if len(m.GetSniHosts()) == 0 {
			c.errorf(at+".sniHosts", "is empty: write the server names that the route is for")
		}
		for j, sni := range m.GetSniHosts() {
			c.serverName(sni, hosts, field.Index(at+".sniHosts", j))
		}
		c.l4Match(m, at)
	}
	c.l4Destinations(r.GetRoute(), path+".route")
}

// serverName checks that a server name falls under a host of the object.
func (c *checker) serverName(sni string, hosts *hostSet, path string) {
	if isIP(sni) {
		c.warnf(path, "is %s: TLS clients send no IP address as server name; write a host", field.Quote(sni))
		return
	}
	if fault := hostFault(sni, anyWildcard); strings.HasPrefix(sni, snatPrefix) {
		c.fault(path, snatFault(sni))
	} else if fault != "" {
		c.fault(path, fault)
		return
	}
	if !hosts.includes(sni) {
		c.errorf(path, "is %s, which no host of spec.hosts includes: write one of them, or add it there", field.Quote(sni))
	}
}

func (c *checker) tcpRoute(r *networkingv1alpha3.TCPRoute, path string) {
	for i, m := range r.GetMatch() {
		c.l4Match(m, field.Index(path+".match", i))
	}
	c.l4Destinations(r.GetRoute(), path+".route")
}

func (c *checker) l4Destinations(routes []*networkingv1alpha3.RouteDestination, path string) {
	if len(routes) == 0 {
		c.errorf(path, "is empty: write the destinations of the connections")
	}
	weights := make([]int32, 0, len(routes))
	for i, d := range routes {
		c.requiredDestination(d.GetDestination(), field.Index(path, i)+".destination")
		weights = append(weights, d.GetWeight())
	}
	c.weights(weights, path)
}
