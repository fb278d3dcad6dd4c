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

// The ports at which Envoy's bootstrap listens on all addresses: readiness and metrics.
const (
	readyPort   = 15021
	metricsPort = 15090
)

// sockets is the set of addresses that listeners use. Envoy rejects a listener whose address is in
// use, even if neither listener binds it. It could reject the wrong one: for a service on the
// proxy's own port, the listener that receives all redirected traffic.
type sockets map[string]bool

// take adds addresses to the set. It adds none and returns false if one is in use.
func (t sockets) take(names []string) bool {
	if slices.ContainsFunc(names, func(name string) bool { return t[name] }) {
		return false
	}
	for _, name := range names {
		t[name] = true
	}
	return true
}

// socketsOf returns the addresses of a listener. The first one is used in messages.
func socketsOf(l *listenerv3.Listener) []string {
	names := []string{socketOf(l.GetAddress())}
	for _, a := range l.GetAdditionalAddresses() {
		names = append(names, socketOf(a.GetAddress()))
	}
	return names
}

// socketOf returns a canonical key for an address.
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

// madeListener is a listener, or the reason why it is missing, and its addresses.
type madeListener struct {
	resource *xds.Resource
	err      error
	sockets  []string
}

// plannedKey identifies the listeners of a plan. Proxies of several workloads share them, although
// each has its own inbound listeners.
type plannedKey struct {
	plan     *plan
	vhds     bool
	unknown  string
	by       model.Key // see [target.unknownBy]
	plugins  string
	recorded string
	settings string
}

// planned builds the listeners of a plan.
func (g *Generator) planned(s *target, p *plan) []madeListener {
	key := plannedKey{p, s.proxy.VHDS, s.unknownKey(), s.unknownBy(), s.plugins.Key, s.recorded.Key, s.settings.String()}
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

// madeOf builds the resource of a listener.
func (g *Generator) madeOf(s *target, l ownListener) madeListener {
	m := madeListener{sockets: socketsOf(l.message)}
	if m.err = envoyconf.ApplyListener(l.message, s.settings, false); m.err == nil {
		g.deniedIn(s.mesh).Guard(l.message)
		m.resource, m.err = g.table.Put(xds.TypeListener, l.message.GetName(), l.message, l.from)
	}
	return m
}

// apart returns the listeners of a proxy, each with a distinct address, and the problems of the
// listeners that it omits because of a conflict. Listeners that receive redirected traffic take
// precedence, then the other inbound listeners, then those of the plan.
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
				Reason: "the proxy has another listener at " + m.sockets[0] + " already, so this one is ignored: use another port, or a separate address",
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

// redirected returns 1 for listeners that receive redirected traffic, and 0 otherwise.
func redirected(l *listenerv3.Listener) int {
	if strings.HasPrefix(l.GetName(), "virtual") {
		return 1
	}
	return 0
}

// author returns the Sidecar, or the object that receives a problem if there is no Sidecar.
func (s *target) author(otherwise model.Key) model.Key {
	if s.sidecar == nil {
		return otherwise
	}
	return s.sidecar.Config.Key
}
