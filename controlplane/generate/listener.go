// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/extension"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/telemetry"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// listeners returns the LDS resources of a proxy.
func (g *Generator) listeners(s *target) *xds.Set {
	in, out := ingressOf(s), g.planOf(s)
	key := setKey{typeURL: xds.TypeListener, vhds: s.proxy.VHDS, inbound: in.listenerKey(), unknown: s.unknownBy(), plugins: s.plugins.Key, policies: s.tokens.Key + s.policies.Key, recorded: s.recorded.Key, settings: s.settings.String()}
	if out != &noPlan {
		key.outbound, key.route = s.outbound, s.routeKey()
		key.inbound.own = out.own
	}
	return g.sets.get(key, s.mesh.Sequence, inputs{out, in.sidecar(), s.mesh.Config, s.mesh.Denied}, func(prev *xds.Set) *xds.Set {
		made := *s
		s, in.target = &made, &made
		s.client, s.server = s.recorded.Observe(telemetry.Chain{}), s.recorded.Observe(telemetry.Chain{Server: &telemetry.Server{}})
		s.validated, s.enforced = g.validate(s.mesh, s.tokens), g.enforce(s.mesh, s.policies)
		for i, e := range in.entries {
			in.entries[i].validated, in.entries[i].enforced = g.validate(s.mesh, in.tokens(e)), g.enforce(s.mesh, in.policies(e))
		}
		own := in.listeners()
		if s.intercepts() {
			own = append(own, s.virtualOutbound())
		}
		p := g.apart(s, out, own)
		return xds.NewSet(prev, p.resources, slices.Concat(out.problems, in.problems, p.problems, in.refusals(), s.recorded.Problems))
	})
}

// ownListener is a listener of one proxy and the objects that it is built from.
type ownListener struct {
	message *listenerv3.Listener
	from    xds.Sources
}

// listeners returns the inbound listeners and the HTTP proxy.
func (in *ingress) listeners() []ownListener {
	s := in.target
	var out []ownListener
	if port := httpProxyPort(s); port != 0 {
		out = append(out, httpProxyListener(s, port))
	}
	for _, e := range in.entries {
		if e.bound {
			out = append(out, in.listener(e))
		}
	}
	if s.intercepts() {
		out = append(out, in.virtual())
	}
	return out
}

// refusals returns the problems of policies: authorizers that cannot be asked, and attributes of
// requests at ports where requests are not read.
func (in *ingress) refusals() []model.Problem {
	var all []model.Problem
	rules := map[string]bool{}
	for _, e := range in.entries {
		all = append(all, e.enforced.Problems...)
		if !e.protocol.IsHTTP() && !e.protocol.Sniffed() {
			all = append(all, in.policies(e).Unread(e.port, rules)...)
		}
	}
	seen := map[model.Problem]bool{}
	return slices.DeleteFunc(slices.Concat(in.target.enforced.Problems, all), func(p model.Problem) bool {
		was := seen[p]
		seen[p] = true
		return was
	})
}

// httpProxyPort returns the port of the HTTP proxy listener, or 0 if there is none.
func httpProxyPort(s *target) uint32 {
	if s.proxy.HTTPProxyPort != 0 {
		return s.proxy.HTTPProxyPort
	}
	return uint32(max(s.mesh.Config.GetProxyHttpPort(), 0))
}

// httpProxyAddress returns the loopback address of the workload. Workloads that share a machine
// may each have their own.
func httpProxyAddress(s *target) string {
	if ip, err := netip.ParseAddr(s.proxy.IPs[0]); err == nil && ip.IsLoopback() {
		return s.proxy.IPs[0]
	}
	return "127.0.0.1"
}

func httpProxyListener(s *target, port uint32) ownListener {
	from := slices.Clone(s.recorded.ClientSources)
	address := httpProxyAddress(s)
	name := address + "_" + envoyconf.Number(port)
	hcm := envoyconf.OutboundHTTP(s.mesh.Config, s.statName("outbound_"+name), envoyconf.Filters{
		Plugins: s.plugins.HTTP(extension.Client, port, &from), Sessions: s.sessions, Records: s.settings.Recorded(), Observed: s.client,
	})
	hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: envoyconf.OverADS(), RouteConfigName: configuration{name: httpProxyRoute}.fullName(s.proxy.VHDS)}}
	to, unknown := s.forwarded()
	if to == cluster.ForwardName {
		hcm.LocalReplyConfig = unresolved()
	}
	return ownListener{from: append(from, unknown...), message: &listenerv3.Listener{
		Name:             name,
		Address:          envoyconf.SocketAddress(address, port),
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		AccessLog:        s.client.ListenerLog,
		FilterChains:     []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{envoyconf.HTTPFilter(hcm)}}},
	}}
}
