// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/authorization"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Bounds of the requests that what-if tries.
const (
	flipTime       = 700 * time.Millisecond
	maxFlips       = 100 // that fail, and as many others
	maxFlipProxies = 200
	maxAlike       = 2 // proxies with the same labels
	maxClients     = 16
	maxFlipPorts   = 8  // of a proxy
	maxFlipHosts   = 20 // of the routes of a proxy
	maxFlipPaths   = 8
	maxFlipErrors  = 5
)

// affected is a proxy with its sets before and after a change.
type affected struct {
	st            *Stream
	before, after map[string]*xds.Set
}

// flips tries requests before and after a change.
type flips struct {
	*comparison
	change   map[model.Key]*model.Config
	clients  []client
	requests []decision.Request // for each client and port
	found    map[string]*flip
	count    map[bool]int // of found, by Fails
	tried    int
	// left are flips that are not listed; proxies, hosts and ports are those that are not tried, and
	// errors say why others cannot be decided, with failed more of them.
	left, proxies, hosts, ports, failed int
	errors                              []string
	inbound                             map[*xds.Resource]bool
	routed                              map[routeSets][]report.Flipped
}

// flip is a request whose result changes, and all its clients and proxies.
type flip struct {
	report.Flipped
	clients, proxies map[string]bool
}

// keep remembers a proxy whose configuration changes, as long as there are not too many.
func (c *comparison) keep(p affected) {
	workload := fmt.Sprint(p.st.Proxy.Namespace, " ", p.st.Proxy.ServiceAccount, p.st.Proxy.OwnLabels())
	if c.alike[workload] >= maxAlike || len(c.kept) >= maxFlipProxies {
		c.unkept++
		return
	}
	c.alike[workload]++
	c.kept = append(c.kept, p)
}

// addFlips adds the requests whose result changes. It stops when its time is over, but tries at least
// one proxy and port.
func (c *comparison) addFlips(change map[model.Key]*model.Config, out *report.WhatIf) error {
	f := flips{
		comparison: c, change: change, found: map[string]*flip{}, count: map[bool]int{}, proxies: c.unkept,
		inbound: map[*xds.Resource]bool{}, routed: map[routeSets][]report.Flipped{},
	}
	all := f.allClients()
	f.clients = all[:min(len(all), maxClients+1)]
	f.requests = f.literal()
	limit := cmp.Or(c.cfg.FlipTime, flipTime)
	end := time.Now().Add(limit)
	for i, p := range c.kept {
		select {
		case <-c.ended:
			return errEnded
		default:
		}
		if i > 0 && time.Now().After(end) {
			f.proxies += len(c.kept) - i
			break
		}
		f.note(p, f.atServer(p, end))
		f.note(p, f.atClient(p, end))
	}
	for _, x := range f.found {
		x.Proxies, x.Clients = len(x.proxies), slices.Sorted(maps.Keys(x.clients))
		out.Flips = append(out.Flips, x.Flipped)
	}
	slices.SortFunc(out.Flips, report.Flipped.Compare)
	out.Requests, out.Untried = f.tried, f.errors
	for _, no := range []struct {
		n    int
		what string
	}{
		{f.proxies, fmt.Sprintf("proxies were not tried: %d of one workload, %d in all and %s are the limits", maxAlike, maxFlipProxies, limit)},
		{len(all) - len(f.clients), "identities were not tried"},
		{f.ports, "ports were not tried"},
		{f.hosts, "changed virtual hosts were not tried"},
		{f.failed, "further errors"},
		{f.left, "results that change are not listed"},
	} {
		if no.n > 0 {
			out.Untried = append(out.Untried, fmt.Sprintf("%d %s", no.n, no.what))
		}
	}
	return nil
}

// note adds why requests of a proxy cannot be decided.
func (f *flips) note(p affected, err error) {
	switch {
	case err == nil:
	case len(f.errors) < maxFlipErrors:
		f.errors = append(f.errors, "requests at "+p.st.Proxy.ID+" cannot be decided: "+err.Error())
	default:
		f.failed++
	}
}

// add adds a result that changes.
func (f *flips) add(x report.Flipped, from string, p affected) {
	key := fmt.Sprint(x.Routed, x.Host, " ", x.Port, x.Method, " ", x.Path, " ", x.Before, " ", x.After, " ", x.By, x.Rule)
	if f.found[key] == nil {
		if f.count[x.Fails] == maxFlips {
			f.left++
			return
		}
		f.count[x.Fails]++
		x.Proxy = p.st.Proxy.ID
		f.found[key] = &flip{x, map[string]bool{}, map[string]bool{}}
	}
	f.found[key].proxies[p.st.Proxy.ID] = true
	if from != "" {
		f.found[key].clients[from] = true
	}
}

// allClients returns a client without a certificate and one of each identity of the proxies. Those
// that changed policies name come first.
func (f *flips) allClients() []client {
	named := map[string]bool{}
	for _, spec := range f.policies() {
		for _, r := range spec.GetRules() {
			for _, value := range wanted(r, "principals") {
				named[value] = true
			}
		}
	}
	var out []client
	seen := map[string]bool{}
	for _, st := range f.source.Streams() {
		if st.Objects || !st.Follows || st.Proxy.Role == node.Router && st.Proxy.ServiceAccount == "" {
			continue
		}
		c := client{identity: f.identityOf(st), address: firstAddress(st.Proxy), stream: st}
		if !seen[c.identity] {
			seen[c.identity] = true
			out = append(out, c)
		}
	}
	rank := func(c client) int {
		p := c.stream.Proxy
		if named[strings.TrimPrefix(c.identity, scheme)] || named[p.Namespace+"/"+p.ServiceAccount] || named[p.Namespace] {
			return 0
		}
		return 1
	}
	slices.SortFunc(out, func(a, b client) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a.identity, b.identity))
	})
	return slices.Insert(out, 0, client{})
}

// policies returns the AuthorizationPolicies of the change, as they are stored and proposed.
func (f *flips) policies() (out []*securityv1beta1.AuthorizationPolicy) {
	for _, key := range slices.SortedFunc(maps.Keys(f.change), model.Key.Compare) {
		for _, c := range []*model.Config{f.cfg.Objects.Get(key), f.change[key]} {
			if c == nil {
				continue
			}
			if spec, ok := c.Spec.(*securityv1beta1.AuthorizationPolicy); ok {
				out = append(out, spec)
			}
		}
	}
	return out
}

// literal returns GET / and the requests that the rules of changed policies name.
func (f *flips) literal() []decision.Request {
	out := []decision.Request{{Method: "GET", Path: "/"}}
	add := func(r decision.Request) {
		if len(out) < maxFlipPaths && !slices.ContainsFunc(out, func(o decision.Request) bool {
			return o.Method == r.Method && o.Path == r.Path && o.Host == r.Host
		}) {
			out = append(out, r)
		}
	}
	// concrete returns the values without wildcards.
	concrete := func(values []string, otherwise string) (out []string) {
		for _, v := range values {
			if v = strings.TrimSuffix(v, "*"); v != "" && !strings.ContainsAny(v, "*{") {
				out = append(out, v)
			}
		}
		if len(out) == 0 {
			out = []string{otherwise}
		}
		return out
	}
	for _, spec := range f.policies() {
		for _, rule := range spec.GetRules() {
			for _, to := range rule.GetTo() {
				o := to.GetOperation()
				for _, path := range concrete(slices.Concat(o.GetPaths(), o.GetNotPaths()), "/") {
					for _, method := range concrete(slices.Concat(o.GetMethods(), o.GetNotMethods()), "GET") {
						for _, host := range concrete(slices.Concat(o.GetHosts(), o.GetNotHosts()), "") {
							if strings.HasPrefix(path, "/") {
								add(decision.Request{Method: method, Path: path, Host: host})
							}
						}
					}
				}
			}
		}
	}
	return out
}

// server returns what decides as a server with the listeners and extensions of a proxy.
func (f *flips) server(sets map[string]*xds.Set, p *model.Proxy) (*decision.Envoy, error) {
	set := &xds.Set{}
	for _, r := range sets[xds.TypeListener].Resources {
		accepts, known := f.inbound[r]
		if !known {
			l := &listenerv3.Listener{}
			if err := r.UnmarshalTo(l); err != nil {
				return nil, err
			}
			accepts = l.GetTrafficDirection() == corev3.TrafficDirection_INBOUND
			f.inbound[r] = accepts
		}
		if accepts || p.Role == node.Router {
			set.Resources = append(set.Resources, r)
		}
	}
	return decision.Load(set, sets[xds.TypeExtension], p)
}

// atServer tries the requests of all clients to the ports of a proxy.
func (f *flips) atServer(p affected, end time.Time) error {
	proxy := p.st.Proxy
	same := func(typeURL string) bool { return p.before[typeURL].Version == p.after[typeURL].Version }
	if same(xds.TypeListener) && same(xds.TypeExtension) {
		return nil
	}
	now, err := f.server(p.before, proxy)
	if err != nil {
		return err
	}
	then, err := f.server(p.after, proxy)
	if err != nil {
		return err
	}
	ports := slices.Concat(now.Ports(), then.Ports())
	slices.Sort(ports)
	ports = slices.Compact(ports)
	for i, port := range ports {
		if i == maxFlipPorts || i > 0 && time.Now().After(end) {
			f.ports += len(ports) - i
			break
		}
		host := proxy.ID
		for _, instance := range f.mesh.Instances.At(proxy.IPs) {
			if instance.Endpoint.Port == port {
				host = instance.Service.Hostname
				break
			}
		}
		for _, from := range f.clients {
			for _, r := range f.requests {
				r.Host, r.Identity, r.Peer, r.Server, r.Port = cmp.Or(r.Host, host), from.identity, from.address, firstAddress(proxy), port
				r.ALPN, r.Header, r.Now, r.Brief = sidecarALPN(), map[string][]string{}, time.Now(), true
				if r.Identity == "" {
					r.SNI, _, _ = strings.Cut(r.Host, ":") // as a client outside of the mesh
				}
				if more, err := f.decide(now, then, r, p); err != nil {
					return err
				} else if !more {
					break
				}
			}
		}
	}
	return nil
}

// decide tries a request. It returns false if further requests to the port decide nothing else,
// because none are read.
func (f *flips) decide(now, then *decision.Envoy, r decision.Request, p affected) (more bool, err error) {
	before, err := now.Decide(r)
	if err != nil {
		return false, err
	}
	after, err := then.Decide(r)
	if err != nil {
		return false, err
	}
	f.tried++
	if more = before.HTTP || after.HTTP; before.Allowed == after.Allowed {
		return more, nil
	}
	words := map[bool]string{true: "allowed", false: "denied"}
	refused := after
	if after.Allowed {
		refused = before
	}
	x := report.Flipped{
		Host: r.Host, Port: r.Port, Before: words[before.Allowed], After: words[after.Allowed], Fails: before.Allowed, By: string(refused.By), Reason: refused.Reason,
	}
	if more {
		x.Method, x.Path = r.Method, r.Path
	}
	if refused.Rule != "" {
		x.Rule, _ = f.ruleOf(refused.Rule)
		if key, _, ok := authorization.ParseRule(refused.Rule); ok && before.Allowed && f.change[key] != nil {
			x.Rule.Source = f.change[key].Source
		}
	}
	f.add(x, cmp.Or(r.Identity, "none"), p)
	return more, nil
}
