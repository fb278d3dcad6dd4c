// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// routeTypes are the types that the destination of a request depends on.
var routeTypes = [...]string{xds.TypeRoute, xds.TypeVirtualHost, xds.TypeCluster, xds.TypeEndpoint}

// routeSets are the sets of these types before and after a change, which many proxies share.
type routeSets [2 * len(routeTypes)]*xds.Set

// hostChange is a virtual host that differs, in the two route configurations.
type hostChange struct {
	hosts   [2]*routev3.VirtualHost // nil if there is none
	configs [2]*routev3.RouteConfiguration
}

// clientFlips tries requests that a proxy sends for its application, or that a gateway forwards.
type clientFlips struct {
	*flips
	sets [2]map[string]*xds.Set
	// led are the destinations behind clusters.
	led    [2]map[decision.Share]report.Destination
	listed []listedFlip
	// start is the index of the first one at the present virtual host.
	start   int
	gateway bool
}

func (f *flips) newClientFlips(p affected) *clientFlips {
	return &clientFlips{
		flips: f, sets: [2]map[string]*xds.Set{p.before, p.after},
		led: [2]map[decision.Share]report.Destination{{}, {}}, gateway: p.st.Proxy.Role == node.Router,
	}
}

// addAll adds results that change, which may be those of another proxy with the same configuration.
func (f *flips) addAll(list []*flip, p affected) {
	for _, x := range list {
		if added := f.add(x.Flipped, "", p); added != nil {
			maps.Copy(added.others, x.others)
		}
	}
}

// results returns what was listed.
func (c *clientFlips) results() (out []*flip) {
	for _, x := range c.listed {
		out = append(out, x.flip)
	}
	return out
}

// routeKey returns the sets of a proxy that the destinations of requests depend on.
func routeKey(p affected) (key routeSets) {
	for i, typeURL := range routeTypes {
		key[2*i], key[2*i+1] = p.before[typeURL], p.after[typeURL]
	}
	return key
}

// atClient tries requests to the virtual hosts of a proxy that change.
func (f *flips) atClient(p affected) error {
	key := routeKey(p)
	list, known := f.routed[key]
	if !known {
		c := f.newClientFlips(p)
		size := 0
		for _, typeURL := range []string{xds.TypeRoute, xds.TypeVirtualHost} {
			for _, name := range differing(p, typeURL) {
				for _, set := range c.sets {
					if r := set[typeURL].Get(name); r != nil {
						size += len(r.Any)
					}
				}
			}
		}
		if size > 0 && !f.read(size) {
			return nil
		}
		changes := hostChanges(p)
		f.untried.hosts += max(0, len(changes)-maxFlipHosts)
		for _, change := range changes[:min(len(changes), maxFlipHosts)] {
			if err := c.routes(p, change); err != nil {
				return err
			}
		}
		list = c.results()
		f.routed[key] = list
	}
	f.addAll(list, p)
	return nil
}

// hostChanges returns the virtual hosts of a proxy that change.
func hostChanges(p affected) (out []hostChange) {
	sets := [2]map[string]*xds.Set{p.before, p.after}
	config := func(side int, name string) *routev3.RouteConfiguration {
		c := &routev3.RouteConfiguration{}
		if r := sets[side][xds.TypeRoute].Get(name); r != nil && r.UnmarshalTo(c) == nil {
			return c
		}
		return &routev3.RouteConfiguration{Name: name}
	}
	for _, name := range differing(p, xds.TypeRoute) {
		configs := [2]*routev3.RouteConfiguration{config(0, name), config(1, name)}
		byName := map[string]*[2]*routev3.VirtualHost{}
		var names []string
		for side, c := range configs {
			for _, host := range c.GetVirtualHosts() {
				if byName[host.GetName()] == nil {
					byName[host.GetName()] = &[2]*routev3.VirtualHost{}
					names = append(names, host.GetName())
				}
				byName[host.GetName()][side] = host
			}
		}
		for _, name := range names {
			if hosts := *byName[name]; hosts[0] == nil || hosts[1] == nil || !proto.Equal(hosts[0], hosts[1]) {
				out = append(out, hostChange{hosts, configs})
			}
		}
	}
	for _, name := range differing(p, xds.TypeVirtualHost) {
		routes, _, _ := strings.Cut(name, "/")
		c := hostChange{}
		for side := range sets {
			c.configs[side] = config(side, routes)
			host := &routev3.VirtualHost{}
			if r := sets[side][xds.TypeVirtualHost].Get(name); r != nil && r.UnmarshalTo(host) == nil {
				c.hosts[side] = host
				c.configs[side].VirtualHosts = append(c.configs[side].VirtualHosts, host)
			}
		}
		out = append(out, c)
	}
	return out
}

// differing returns the names of the resources of a type that change.
func differing(p affected, typeURL string) []string {
	changed, names := xds.Diff(p.before[typeURL], p.after[typeURL])
	for _, r := range changed {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return names
}

// routes tries requests to a virtual host that changes: GET /, and for each route a request that matches
// it and others that lack one of the attributes that it compares.
func (c *clientFlips) routes(p affected, change hostChange) error {
	domain := ""
	for _, host := range change.hosts {
		for _, d := range host.GetDomains()[:min(len(host.GetDomains()), 1)] {
			domain = d
		}
	}
	switch rest, wild := strings.CutPrefix(domain, "*"); {
	case domain == "":
		return nil
	case domain == "*":
		domain = noHost
	case wild:
		domain = "host" + rest
	default:
		domain = strings.TrimSuffix(domain, "*")
	}
	c.start = len(c.listed)
	requests := &probes{seen: map[string]bool{}}
	requests.add(func(*probe) {})
	size := 0
	var alone [2]*routev3.RouteConfiguration // with the virtual host of the domain only
	for side, config := range change.configs {
		alone[side] = &routev3.RouteConfiguration{Name: config.GetName()}
		if host := decision.VirtualHost(config, domain); host != nil {
			alone[side].VirtualHosts = []*routev3.VirtualHost{host}
			size += proto.Size(host)
		}
		for _, r := range change.hosts[side].GetRoutes() {
			dimensions := matching(r.GetMatch(), domain)
			requests.vary(dimensions, len(dimensions))
		}
	}
	c.untried.values += requests.left
	for _, q := range requests.list {
		if !c.request(size) {
			continue
		}
		r := q.Request
		r.Host = cmp.Or(r.Host, domain)
		var routed [2]decision.Routed
		for side := range alone {
			config := alone[side]
			if r.Host != domain {
				config = change.configs[side]
			}
			var err error
			if routed[side], err = c.envoy(p.st.Proxy).RouteBy(config, r); err != nil {
				return err
			}
		}
		x := report.Flipped{Routed: change.configs[0].GetName(), Host: r.Host, Method: r.Method, Path: r.Path}
		if r.Method == http.MethodConnect {
			x.Path = ""
		}
		q.describe(&x)
		if err := c.compare(q, x, routed); err != nil {
			return err
		}
	}
	return nil
}

// envoy returns what evaluates routes as the Envoy of a proxy.
func (f *flips) envoy(p *model.Proxy) *decision.Envoy {
	minor := p.EnvoyMinor()
	if f.envoys[minor] == nil {
		f.envoys[minor] = decision.New(decision.Config{Minor: minor})
	}
	return f.envoys[minor]
}

// compare adds a request if it is sent elsewhere, unless a listed request with fewer attributes changes in
// the same way.
func (c *clientFlips) compare(q *probe, x report.Flipped, routed [2]decision.Routed) error {
	var texts [2]string
	var fails [2]bool
	for side := range routed {
		var err error
		if texts[side], fails[side], err = c.leads(side, routed[side]); err != nil {
			return err
		}
	}
	if texts[0] == texts[1] {
		return nil
	}
	x.Before, x.After, x.Fails = texts[0], texts[1], !fails[0] && fails[1]
	for _, same := range c.listed[c.start:] {
		if q.extends(same.probe) && same.Before == x.Before && same.After == x.After {
			same.others[q] = true
			return nil
		}
	}
	c.listed = append(c.listed, listedFlip{&flip{Flipped: x, others: map[*probe]bool{}}, q})
	return nil
}

// matching returns the attributes that a route compares.
func matching(m *routev3.RouteMatch, domain string) (out []dimension) {
	one := func(set func(*probe)) { out = append(out, dimension{match: []func(*probe){set}}) }
	// The request that differs lacks the attribute.
	oneOf := func(set func(*probe)) {
		out = append(out, dimension{match: []func(*probe){set}, differ: []func(*probe){func(*probe) {}}})
	}
	path := m.GetPrefix() + m.GetPath() + m.GetPathSeparatedPrefix() + example(m.GetSafeRegex().GetRegex())
	if strings.HasPrefix(path, "/") && path != "/" {
		one(func(q *probe) { q.Path = path })
	}
	if m.GetConnectMatcher() != nil {
		one(func(q *probe) { q.Method = http.MethodConnect })
	}
	for _, h := range m.GetHeaders() {
		value, present := exampleOf(h.GetStringMatch()), h.GetPresentMatch() || h.GetStringMatch() != nil
		if h.GetInvertMatch() && h.GetStringMatch() != nil && !h.GetTreatMissingHeaderAsEmpty() {
			value += "-other"
		}
		if suffix := h.GetStringMatch().GetSuffix(); h.GetName() == ":authority" && strings.HasPrefix(suffix, ":") {
			value = domain + suffix
		}
		set := func(q *probe) { q.header(h.GetName(), value) }
		if h.GetInvertMatch() && (h.GetPresentMatch() || h.GetTreatMissingHeaderAsEmpty()) || !present {
			out = append(out, dimension{differ: []func(*probe){set}})
		} else {
			oneOf(set)
		}
	}
	for _, parameter := range m.GetQueryParameters() {
		text := parameter.GetName() + "=" + exampleOf(parameter.GetStringMatch())
		oneOf(func(q *probe) {
			separator := "?"
			if strings.Contains(q.Path, "?") {
				separator = "&"
			}
			q.Path += separator + text
		})
	}
	for _, d := range m.GetDynamicMetadata() {
		var claim []string
		for _, segment := range d.GetPath() {
			claim = append(claim, segment.GetKey())
		}
		if len(claim) < 2 || d.GetFilter() != envoyconf.TokenFilter {
			continue
		}
		value := exampleOf(d.GetValue().GetStringMatch())
		if list := d.GetValue().GetOrMatch().GetValueMatchers(); len(list) > 0 {
			value = exampleOf(list[0].GetStringMatch())
		}
		set := func(q *probe) { q.claim(value, claim[1:]...) }
		if d.GetInvert() {
			out = append(out, dimension{differ: []func(*probe){set}})
		} else {
			oneOf(set)
		}
	}
	return out
}

// leads describes where a request is sent, and reports whether it fails, or a share of such requests.
func (c *clientFlips) leads(side int, routed decision.Routed) (text string, fails bool, err error) {
	var parts []string
	for _, share := range routed.Clusters {
		to, known := c.led[side][share]
		if !known {
			if to, err = c.destination(func(typeURL string) *xds.Set { return c.sets[side][typeURL] }, share); err != nil {
				return "", false, err
			}
			c.led[side][share] = to
		}
		part := to.Cluster
		if to.Percent < 100 {
			part += fmt.Sprintf(" %.3g %%", to.Percent)
		}
		if to.Lost {
			part += " (" + to.Reason + ")"
			fails = fails || to.Percent > 0
		}
		parts = append(parts, part)
	}
	switch {
	case len(routed.Clusters) > 0:
	case routed.Status > 0:
		parts = append(parts, fmt.Sprintf("status %d", routed.Status))
		fails = routed.Status >= 400
	case routed.Routes != "":
		parts = append(parts, "requests are read, routes "+routed.Routes)
	case routed.Reason != "":
		parts, fails = append(parts, routed.Reason), true
	default:
		parts, fails = append(parts, "no listener of the proxy accepts it"), c.gateway
	}
	if routed.Location != "" {
		parts = append(parts, "to "+routed.Location)
	}
	return strings.Join(append(parts, routed.Faults...), ", "), fails, nil
}
