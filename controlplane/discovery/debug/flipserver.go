// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/authorization"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// serverFlips tries requests to the ports of a proxy.
type serverFlips struct {
	*flips
	proxy     affected
	now, then *decision.Envoy
	size      int // of the listeners, in bytes
	// listed are the results that change, and opaque the connections whose requests are not read.
	listed map[sender][]listedFlip
	opaque map[sender]bool
}

// sender is what a server knows of a connection before it reads a request.
type sender struct {
	port     uint32
	identity string
	peer     netip.Addr
	sni      string
}

// listedFlip is a result that changes, with the request.
type listedFlip struct {
	*flip
	probe *probe
}

// inboundOf returns the listeners of a set that accept connections as a server, and their size.
func (f *flips) inboundOf(listeners *xds.Set, p *model.Proxy) (set *xds.Set, size int) {
	set = &xds.Set{}
	for _, r := range listeners.Resources {
		if p.Role == node.Router || f.accepts(r) {
			set.Resources, size = append(set.Resources, r), size+len(r.Any)
		}
	}
	return set, size
}

// atServer tries the requests of all clients to the ports of a proxy.
func (f *flips) atServer(p affected) error {
	same := func(typeURL string) bool { return p.before[typeURL].Version == p.after[typeURL].Version }
	if same(xds.TypeListener) && same(xds.TypeExtension) {
		return nil
	}
	s := serverFlips{flips: f, proxy: p, listed: map[sender][]listedFlip{}, opaque: map[sender]bool{}}
	var sets [2]*xds.Set
	for i, side := range []map[string]*xds.Set{p.before, p.after} {
		set, size := f.inboundOf(side[xds.TypeListener], p.st.Proxy)
		sets[i], s.size = set, s.size+size
	}
	if !f.read(s.size) {
		return nil
	}
	var err error
	if s.now, err = decision.Load(sets[0], p.before[xds.TypeExtension], p.st.Proxy); err != nil {
		return err
	}
	if s.then, err = decision.Load(sets[1], p.after[xds.TypeExtension], p.st.Proxy); err != nil {
		return err
	}
	return s.run(f.probesOf(sets[0], sets[1]))
}

// fewClients is how many clients send every request before others do.
const fewClients = 3

// run tries requests, each at all ports before the next one, so that a limit leaves out the special
// ones: at last, most clients.
func (s *serverFlips) run(list *probes) error {
	ports, names := s.ports(list), map[uint32][]string{}
	for _, port := range ports {
		names[port] = s.hostsAt(port)
	}
	requests := list.list
	if s.proxy.st.Proxy.Role == node.Router {
		requests = slices.Clone(requests)
		for _, port := range ports {
			for _, name := range names[port][1:] {
				requests = append(requests, &probe{Request: decision.Request{Method: "GET", Path: "/", Host: name, Port: port}})
			}
		}
	}
	for pass := range 2 {
		for _, q := range requests {
			clients := s.clients[:min(len(s.clients), fewClients)]
			switch {
			case q.as != nil && pass > 0:
				continue
			case q.as != nil:
				from := s.connected[*q.as]
				from.identity = *q.as
				clients = []client{from}
			case pass > 0:
				clients = s.clients[len(clients):]
			}
			for _, port := range ports {
				if q.Port != 0 && q.Port != port {
					continue
				}
				for _, from := range clients {
					if err := s.try(q, from, port, names[port][0]); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// ports returns the ports to try: first those that rules name, then the others.
func (s *serverFlips) ports(list *probes) []uint32 {
	var named []uint32
	for _, q := range list.list {
		if q.Port != 0 {
			named = append(named, q.Port)
		}
	}
	slices.Sort(named)
	others := slices.Concat(s.now.Ports(), s.then.Ports())
	slices.Sort(others)
	var out []uint32
	for _, port := range slices.Concat(named, others) {
		if !slices.Contains(out, port) {
			out = append(out, port)
		}
	}
	s.untried.ports += max(0, len(out)-maxFlipPorts)
	return out[:min(len(out), maxFlipPorts)]
}

// hostsAt returns the hosts of requests to a port: that of the service of a workload, or those of the
// TLS servers of a gateway.
func (s *serverFlips) hostsAt(port uint32) []string {
	proxy := s.proxy.st.Proxy
	if proxy.Role == node.Router {
		var out []string
		for _, name := range slices.Concat(s.now.ServerNames(port), s.then.ServerNames(port)) {
			if name = concrete(name); !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
		slices.Sort(out)
		s.untried.hosts += max(0, len(out)-maxFlipNames)
		if len(out) > 0 {
			return out[:min(len(out), maxFlipNames)]
		}
	}
	for _, instance := range s.mesh.Instances.At(proxy.IPs) {
		if instance.Endpoint.Port == port {
			return []string{instance.Service.Hostname}
		}
	}
	return []string{proxy.ID}
}

// try tries a request of a client to a port.
func (s *serverFlips) try(q *probe, from client, port uint32, host string) error {
	r := q.Request
	r.Host, r.Identity, r.Server, r.Port = cmp.Or(r.Host, host), from.identity, firstAddress(s.proxy.st.Proxy), port
	r.ALPN, r.Brief = sidecarALPN(), true
	if !r.Peer.IsValid() {
		r.Peer = from.address
	}
	if r.SNI == "" && (r.Identity == "" || s.proxy.st.Proxy.Role == node.Router) {
		r.SNI, _, _ = strings.Cut(r.Host, ":") // as a client outside of the mesh
	}
	key := sender{port, r.Identity, r.Peer, r.SNI}
	if s.opaque[key] {
		return nil
	}
	if !s.request(s.size) {
		return nil
	}
	before, err := s.now.Decide(r)
	if err != nil {
		return err
	}
	after, err := s.then.Decide(r)
	if err != nil {
		return err
	}
	s.opaque[key] = !before.HTTP && !after.HTTP
	if outcome(before) != outcome(after) {
		s.list(q, r, before, after)
	}
	return nil
}

// outcome describes what a server decides about a request.
func outcome(v decision.Verdict) string {
	switch {
	case !v.Allowed:
		return "denied"
	case len(v.Asked) == 0:
		return "allowed"
	}
	var names []string
	for _, a := range v.Asked {
		names = append(names, cmp.Or(a.Provider, a.Cluster))
	}
	return "allowed if " + strings.Join(names, " and ") + " allows it"
}

// list adds a result that changes, unless a listed request with fewer attributes changes in the same
// way.
func (s *serverFlips) list(q *probe, r decision.Request, before, after decision.Verdict) {
	decides := after
	if !before.Allowed {
		decides = before
	}
	x := report.Flipped{Host: r.Host, Port: r.Port, Before: outcome(before), After: outcome(after), Fails: before.Allowed && !after.Allowed}
	if !before.Allowed || !after.Allowed {
		x.By, x.Reason = string(decides.By), decides.Reason
	}
	if before.HTTP || after.HTTP {
		x.Method, x.Path = r.Method, r.Path
		q.describe(&x)
	} else {
		q = &probe{Request: decision.Request{SNI: q.SNI, Peer: q.Peer, Port: q.Port}}
		q.describe(&x)
	}
	if x.By != "" && decides.Rule != "" {
		x.Rule, _ = s.ruleOf(decides.Rule)
		if key, _, ok := authorization.ParseRule(decides.Rule); ok && before.Allowed && s.change[key] != nil {
			x.Rule.Source = s.change[key].Source
		}
	}
	at := sender{port: r.Port, identity: r.Identity}
	for _, same := range s.listed[at] {
		if q.extends(same.probe) && same.Before == x.Before && same.After == x.After && same.By == x.By && same.Reason == x.Reason && (same.Rule == nil) == (x.Rule == nil) && (x.Rule == nil || *same.Rule == *x.Rule) {
			same.others[q] = true
			return
		}
	}
	if added := s.add(x, cmp.Or(r.Identity, "none"), s.proxy); added != nil {
		s.listed[at] = append(s.listed[at], listedFlip{added, q})
	}
}
