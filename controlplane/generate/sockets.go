// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// The ports of all addresses at which the listeners of Envoy's bootstrap are:
// readiness, and metrics.
const (
	readyPort   = 15021
	metricsPort = 15090
)

// sockets are the addresses that listeners have. Envoy refuses a listener whose
// address another has, also where neither or one of them is bound, and it would
// be the wrong one: of a service on the port of the proxy itself, the listener
// that takes all redirected traffic.
type sockets map[string]bool

// take takes some addresses; false, and none, if one is taken.
func (t sockets) take(names []string) bool {
	if slices.ContainsFunc(names, func(name string) bool { return t[name] }) {
		return false
	}
	for _, name := range names {
		t[name] = true
	}
	return true
}

// socketsOf are the addresses of a listener, the first one is for display.
func socketsOf(l *listenerv3.Listener) []string {
	names := []string{socketOf(l.GetAddress())}
	for _, a := range l.GetAdditionalAddresses() {
		names = append(names, socketOf(a.GetAddress()))
	}
	return names
}

// socketOf is equal for addresses that are the same, however they are written.
func socketOf(a *corev3.Address) string {
	if pipe := a.GetPipe(); pipe != nil {
		return "unix://" + pipe.GetPath()
	}
	host := a.GetSocketAddress().GetAddress()
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.String()
	}
	return envoyconf.HostPort(host, a.GetSocketAddress().GetPortValue())
}

// madeListener is a listener, or why there is none, and the addresses that it
// has.
type madeListener struct {
	resource *xds.Resource
	err      error
	sockets  []string
}

// plannedKey decides the listeners of a plan: proxies of many workloads, each
// with inbound listeners of its own, share them.
type plannedKey struct {
	plan     *plan
	vhds     bool
	unknown  string
	by       model.Key // see [target.unknownBy]
	plugins  string
	settings string
}

// planned makes the listeners of a plan.
func (g *Generator) planned(s *target, p *plan) []madeListener {
	key := plannedKey{p, s.proxy.VHDS, s.unknownKey(), s.unknownBy(), s.plugins.Key, s.settings.String()}
	return *g.outgoing.get(key, s.mesh.Sequence, inputs{s.mesh.Config, s.mesh.Denied}, func(*[]madeListener) *[]madeListener {
		out := make([]madeListener, 0, len(p.listeners))
		for _, l := range p.listeners {
			var from xds.Sources
			message := s.outboundListener(l, &from)
			out = append(out, g.madeOf(s, ownListener{message, from}))
		}
		return &out
	})
}

// madeOf makes a resource of a listener.
func (g *Generator) madeOf(s *target, l ownListener) madeListener {
	m := madeListener{sockets: socketsOf(l.message)}
	if m.err = envoyconf.ApplyListener(l.message, s.settings, false); m.err == nil {
		g.deniedIn(s.mesh).Guard(l.message)
		m.resource, m.err = g.table.Put(xds.TypeListener, l.message.GetName(), l.message, l.from)
	}
	return m
}

// apart returns the listeners of a proxy, each at an address of its own, and the
// problems of those that are left out: those that redirected traffic arrives at
// stay, then those through which the workload is reached, then those of the plan.
func (g *Generator) apart(s *target, p *plan, own []ownListener) *part {
	taken, out := sockets{}, &part{}
	for _, wildcard := range []string{"0.0.0.0", "::"} {
		taken[envoyconf.HostPort(wildcard, readyPort)], taken[envoyconf.HostPort(wildcard, metricsPort)] = true, true
	}
	put := func(object model.Key, m madeListener) {
		switch {
		case !taken.take(m.sockets):
			out.problems = append(out.problems, model.Problem{
				Object: object, Warning: true,
				Reason: "the proxy has another listener at " + m.sockets[0] + " already, and this one is left out: use another port, or an address of its own",
			})
		case m.err != nil:
			out.problems = append(out.problems, envoyconf.Left(s.author(model.Key{}), m.err))
		default:
			out.resources = append(out.resources, m.resource)
		}
	}
	slices.SortStableFunc(own, func(a, b ownListener) int { return redirected(b.message) - redirected(a.message) })
	for _, l := range own {
		put(s.author(model.Key{}), g.madeOf(s, l))
	}
	for i, m := range g.planned(s, p) {
		from := p.listeners[i].from
		if p.listeners[i].locked {
			from = s.author(from)
		}
		put(from, m)
	}
	return out
}

// redirected is 1 for the listeners that redirected traffic arrives at.
func redirected(l *listenerv3.Listener) int {
	if strings.HasPrefix(l.GetName(), "virtual") {
		return 1
	}
	return 0
}

// author is the Sidecar, or who else is to hear of a problem without one.
func (s *target) author(otherwise model.Key) model.Key {
	if s.sidecar == nil {
		return otherwise
	}
	return s.sidecar.Config.Key
}
