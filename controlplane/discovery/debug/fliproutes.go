// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"fmt"
	"slices"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
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

// atClient tries requests to the virtual hosts of a proxy that change.
func (f *flips) atClient(p affected, end time.Time) error {
	key := routeSets{}
	for i, typeURL := range routeTypes {
		key[2*i], key[2*i+1] = p.before[typeURL], p.after[typeURL]
	}
	list, known := f.routed[key]
	if !known {
		changes := hostChanges(p)
		for i, c := range changes {
			if i == maxFlipHosts || i > 0 && time.Now().After(end) {
				f.hosts += len(changes) - i
				break
			}
			more, err := f.routes(p, c)
			if err != nil {
				return err
			}
			list = append(list, more...)
		}
		f.routed[key] = list
	}
	for _, x := range list {
		f.add(x, "", p)
	}
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

// routes returns the requests to a virtual host whose destinations change.
func (f *flips) routes(p affected, c hostChange) (out []report.Flipped, err error) {
	domain, paths := "", []string{"/"}
	for _, host := range c.hosts {
		for _, d := range host.GetDomains()[:min(len(host.GetDomains()), 1)] {
			domain = d
		}
		for _, r := range host.GetRoutes() {
			m := r.GetMatch()
			if path := m.GetPrefix() + m.GetPath() + m.GetPathSeparatedPrefix(); path != "" && !slices.Contains(paths, path) && len(paths) < maxFlipPaths {
				paths = append(paths, path)
			}
		}
	}
	switch rest, wild := strings.CutPrefix(domain, "*"); {
	case domain == "":
		return nil, nil
	case domain == "*":
		domain = "host.invalid"
	case wild:
		domain = "host" + rest
	default:
		domain = strings.TrimSuffix(domain, "*")
	}
	sets := [2]map[string]*xds.Set{p.before, p.after}
	for _, path := range paths {
		var texts [2]string
		var fails [2]bool
		for side := range sets {
			r := decision.Request{Method: "GET", Host: domain, Path: path, Header: map[string][]string{}}
			routed, err := decision.New(decision.Config{Minor: p.st.Proxy.EnvoyMinor()}).RouteBy(c.configs[side], r)
			if err != nil {
				return nil, err
			}
			if texts[side], fails[side], err = f.leads(func(typeURL string) *xds.Set { return sets[side][typeURL] }, routed); err != nil {
				return nil, err
			}
		}
		f.tried++
		if texts[0] != texts[1] {
			out = append(out, report.Flipped{Routed: c.configs[0].GetName(), Host: domain, Method: "GET", Path: path, Before: texts[0], After: texts[1], Fails: !fails[0] && fails[1]})
		}
	}
	return out, nil
}

// leads describes where a request is sent, and reports whether it fails, or a share of such requests.
func (f *flips) leads(set func(string) *xds.Set, routed decision.Routed) (text string, fails bool, err error) {
	var parts []string
	for _, share := range routed.Clusters {
		to, err := f.destination(set, share)
		if err != nil {
			return "", false, err
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
	if len(routed.Clusters) == 0 {
		parts = append(parts, fmt.Sprintf("status %d", routed.Status))
		fails = routed.Status >= 400
	}
	if routed.Location != "" {
		parts = append(parts, "to "+routed.Location)
	}
	return strings.Join(append(parts, routed.Faults...), ", "), fails, nil
}
