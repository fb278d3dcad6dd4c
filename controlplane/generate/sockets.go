// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
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

// take takes the addresses of a listener; false, and none, if one is taken.
func (t sockets) take(l *listenerv3.Listener) bool {
	names := []string{socketOf(l.GetAddress())}
	for _, a := range l.GetAdditionalAddresses() {
		names = append(names, socketOf(a.GetAddress()))
	}
	if slices.ContainsFunc(names, func(name string) bool { return t[name] }) {
		return false
	}
	for _, name := range names {
		t[name] = true
	}
	return true
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
	return parts.HostPort(host, a.GetSocketAddress().GetPortValue())
}

// apart gives the listeners of a proxy, each at an address of its own, and the
// problems of those that are left out: those that redirected traffic arrives at
// stay, then those through which the workload is reached, then those of the plan.
func (s *scope) apart(p *plan, outbound, own []*listenerv3.Listener) (out []*listenerv3.Listener, problems []model.Problem) {
	taken := sockets{}
	for _, wildcard := range []string{"0.0.0.0", "::"} {
		taken[parts.HostPort(wildcard, readyPort)], taken[parts.HostPort(wildcard, metricsPort)] = true, true
	}
	lost := func(object model.Key, l *listenerv3.Listener) {
		problems = append(problems, model.Problem{
			Object: object, Warning: true,
			Reason: "the proxy has another listener at " + socketOf(l.GetAddress()) + " already, and this one is left out: use another port, or an address of its own",
		})
	}
	planned, rest := outbound[:len(p.listeners)], slices.Concat(outbound[len(p.listeners):], own)
	slices.SortStableFunc(rest, func(a, b *listenerv3.Listener) int { return redirected(b) - redirected(a) })
	for _, l := range rest {
		if taken.take(l) {
			out = append(out, l)
		} else {
			lost(s.author(model.Key{}), l)
		}
	}
	for i, l := range planned {
		switch from := p.listeners[i]; {
		case taken.take(l):
			out = append(out, l)
		case from.locked:
			lost(s.author(from.from), l)
		default:
			lost(from.from, l)
		}
	}
	return out, problems
}

// redirected is 1 for the listeners that redirected traffic arrives at.
func redirected(l *listenerv3.Listener) int {
	if strings.HasPrefix(l.GetName(), "virtual") {
		return 1
	}
	return 0
}

// author is the Sidecar, or who else is to hear of a problem without one.
func (s *scope) author(otherwise model.Key) model.Key {
	if s.sidecar == nil {
		return otherwise
	}
	return s.sidecar.Config.Key
}
