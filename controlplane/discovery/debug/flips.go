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

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Bounds of the requests that what-if tries. None depends on time, so that equal questions have equal
// answers. The limit of time is for machines that are too slow for the others.
const (
	flipWork       = 60_000 // units, see flips.spend
	flipTime       = 5 * time.Second
	maxFlips       = 100 // that fail, and as many others
	maxFlipProxies = 200
	maxAlike       = 2 // proxies with the same labels
	maxClients     = 16
	maxFlipPorts   = 16  // of a proxy
	maxFlipNames   = 8   // of the TLS servers at a port of a gateway
	maxFlipHosts   = 20  // of the routes of a proxy
	maxFlipStreams = 256 // changed listeners of a proxy
	maxProbes      = 256 // requests to a port, to a virtual host, or to a listener
	maxFlipErrors  = 5
	leastRequests  = 100 // to a proxy whose configuration is read
)

// affected is a proxy with its sets before and after a change.
type affected struct {
	st            *Stream
	before, after map[string]*xds.Set
}

// flips tries requests before and after a change.
type flips struct {
	*comparison
	change  map[model.Key]*model.Config
	clients []client // that send each request without a sender of its own
	// connected are the identities of proxies, and inside one of each namespace.
	connected map[string]client
	inside    map[string]string
	found     map[string]*flip
	count     map[bool]int    // of found, by Fails
	unlisted  map[string]bool // results that are too many
	tried     int
	// left is the work that remains for all proxies, and share that for the present one.
	left, share int
	begun       bool // something was read
	fresh       bool // nothing of the present proxy was read
	short       bool // the share does not suffice for reading all configuration of the present proxy
	end         time.Time
	late        bool
	untried     untried
	errors      []string
	inbound     map[*xds.Resource]bool
	probes      map[string]*probes
	routed      map[routeSets][]*flip
	connections map[streamSets][]*flip
	envoys      map[int]*decision.Envoy // without listeners, by the version of Envoy
	services    map[string]string       // hostnames by address; nil before it is needed
}

// untried counts what is left out: proxies, ports, virtual hosts, listeners and requests that are not
// tried, values of rules for which no request is made, and further errors.
type untried struct{ proxies, ports, hosts, listeners, requests, values, errors int }

// flip is a request whose result changes, and all its clients and proxies.
type flip struct {
	report.Flipped
	clients, proxies map[string]bool
	others           map[*probe]bool // which change in the same way, and have more attributes
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

// addFlips adds the requests whose result changes. Each proxy has an equal share of the work, or what
// reading its configuration and some requests need; what one does not need is for those after it.
func (c *comparison) addFlips(change map[model.Key]*model.Config, out *report.WhatIf) error {
	f := flips{
		comparison: c, change: change, found: map[string]*flip{}, unlisted: map[string]bool{}, count: map[bool]int{}, untried: untried{proxies: c.unkept},
		connected: map[string]client{}, inside: map[string]string{}, inbound: map[*xds.Resource]bool{}, probes: map[string]*probes{},
		routed: map[routeSets][]*flip{}, connections: map[streamSets][]*flip{}, envoys: map[int]*decision.Envoy{},
		left: cmp.Or(c.cfg.FlipWork, flipWork), end: time.Now().Add(cmp.Or(c.cfg.FlipTime, flipTime)),
	}
	all := f.allClients()
	f.clients = all[:min(len(all), maxClients+1)]
	for i, p := range c.kept {
		select {
		case <-c.ended:
			return errEnded
		default:
		}
		f.share = f.left / (len(c.kept) - i)
		f.left -= f.share
		f.fresh, f.short = true, false
		f.note(p, f.atServer(p))
		f.note(p, f.atClient(p))
		f.note(p, f.atListeners(p))
		f.left += max(f.share, 0)
		if f.short {
			f.untried.proxies++
		}
	}
	for _, x := range f.found {
		x.Proxies, x.Clients, x.Others = len(x.proxies), slices.Sorted(maps.Keys(x.clients)), len(x.others)
		out.Flips = append(out.Flips, x.Flipped)
	}
	slices.SortFunc(out.Flips, report.Flipped.Compare)
	out.Requests, out.Untried = f.tried, f.errors
	f.sayUntried(out, len(all)-len(f.clients))
	return nil
}

// sayUntried adds sentences about what was not tried.
func (f *flips) sayUntried(out *report.WhatIf, identities int) {
	u := f.untried
	for _, no := range []struct {
		n    int
		what string
	}{
		{u.proxies, fmt.Sprintf("proxies were not tried, or in part: %d of one workload and %d in all are the limits", maxAlike, maxFlipProxies)},
		{identities, "identities were tried only where rules name them"},
		{u.ports, "ports were not tried"},
		{u.hosts, "changed virtual hosts were not tried"},
		{u.listeners, "changed outbound listeners were not tried"},
		{u.values, "values of rules were not tried"},
		{u.requests, "further requests were not tried"},
		{u.errors, "further errors"},
		{len(f.unlisted), "results that change are not listed"},
	} {
		if no.n > 0 {
			out.Untried = append(out.Untried, fmt.Sprintf("%d %s", no.n, no.what))
		}
	}
	if f.late {
		out.Untried = append(out.Untried, fmt.Sprintf("the time limit of %s was reached: the control plane is busy, so another run may try more", cmp.Or(f.cfg.FlipTime, flipTime)))
	}
}

// How many bytes of configuration are read, and compared with a request, in one unit of work, which takes
// about 5 µs.
const (
	readBytes    = 256
	compareBytes = 64 << 10
)

// spend takes work from the share of the present proxy. It returns false if nothing of the share remains.
func (f *flips) spend(units int) bool {
	if f.late = f.late || time.Now().After(f.end); f.late || f.share <= 0 {
		return false
	}
	f.share -= 1 + units
	return true
}

// read spends the work for reading configuration of a size. For what is read first of a proxy, it takes
// from the share of others if some requests could not be tried otherwise. What is read first of all is
// always tried.
func (f *flips) read(size int) bool {
	need := size / readBytes
	if f.fresh {
		need += leastRequests
		more := min(f.left, need-f.share)
		if !f.begun {
			more = need - f.share
		}
		if more > 0 {
			f.left, f.share = max(0, f.left-more), f.share+more
		}
		f.begun, f.fresh = true, false
	}
	ok := f.share >= need && f.spend(size/readBytes)
	f.short = f.short || !ok
	return ok
}

// request spends the work for a request that is compared with configuration of a size. It counts the
// request as tried or as untried.
func (f *flips) request(size int) bool {
	ok := f.spend(size / compareBytes)
	if ok {
		f.tried++
	} else {
		f.untried.requests++
	}
	return ok
}

// note adds why requests of a proxy cannot be decided.
func (f *flips) note(p affected, err error) {
	switch {
	case err == nil:
	case len(f.errors) < maxFlipErrors:
		f.errors = append(f.errors, "requests at "+p.st.Proxy.ID+" cannot be decided: "+err.Error())
	default:
		f.untried.errors++
	}
}

// add adds a result that changes. It returns nil if there are too many.
func (f *flips) add(x report.Flipped, from string, p affected) *flip {
	key := fmt.Sprint(x.Routed, x.Host, " ", x.Port, x.Method, " ", x.Path, " ", x.With(), x.Before, " ", x.After, " ", x.By, x.Rule)
	if f.found[key] == nil {
		if f.count[x.Fails] == maxFlips {
			f.unlisted[key] = true
			return nil
		}
		f.count[x.Fails]++
		x.Proxy = p.st.Proxy.ID
		f.found[key] = &flip{x, map[string]bool{}, map[string]bool{}, map[*probe]bool{}}
	}
	f.found[key].proxies[p.st.Proxy.ID] = true
	if from != "" {
		f.found[key].clients[from] = true
	}
	return f.found[key]
}

// allClients returns a client without a certificate and one of each identity of the proxies. Those
// that changed policies name come first, then those that other policies name.
func (f *flips) allClients() []client {
	named := map[string]int{} // 1 by a policy, 2 by one that changes
	name := func(c *model.Config, rank int) {
		if c == nil {
			return
		}
		spec, _ := c.Spec.(*securityv1beta1.AuthorizationPolicy)
		for _, r := range spec.GetRules() {
			for _, value := range wanted(r, "principals") {
				named[value] = max(named[value], rank)
			}
		}
	}
	if f.cfg.Objects != nil {
		for _, c := range f.cfg.Objects.List(model.AuthorizationPolicy, "") {
			name(c, 1)
		}
	}
	for key, c := range f.change {
		name(c, 2)
		name(f.cfg.object(key), 2)
	}
	var out []client
	seen := map[string]bool{}
	for _, st := range f.streams {
		if st.Proxy.Role == node.Router && st.Proxy.ServiceAccount == "" {
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
		return max(named[strings.TrimPrefix(c.identity, scheme)], named[p.Namespace+"/"+p.ServiceAccount], named[p.Namespace])
	}
	slices.SortFunc(out, func(a, b client) int {
		return cmp.Or(rank(b)-rank(a), strings.Compare(a.identity, b.identity))
	})
	for _, c := range out {
		f.connected[c.identity] = c
		if namespace := c.stream.Proxy.Namespace; f.inside[namespace] == "" {
			f.inside[namespace] = c.identity
		}
	}
	return slices.Insert(out, 0, client{})
}
