// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func problemf(c *model.Config, format string, args ...any) model.Problem {
	return model.Problem{Object: c.Key, Source: c.Source, Reason: fmt.Sprintf(format, args...)}
}

// entry adds one service for each host of an object.
func (b *builder) entry(c *model.Config, se *networkingv1alpha3.ServiceEntry) {
	sh := b.out.shape
	d := &definition{config: c, entry: se, name: objectName{c.Namespace, c.Name}}
	if len(se.GetEndpoints()) == 0 && se.GetWorkloadSelector() != nil {
		d.selector, d.selects, d.pods = se.GetWorkloadSelector().GetLabels(), true, true
	}
	ports := make([]model.Port, 0, len(se.GetPorts()))
	for _, p := range se.GetPorts() {
		protocol := model.ParseProtocol(cmp.Or(p.GetProtocol(), p.GetName()))
		if protocol == model.ProtocolUDP {
			continue // Envoy proxies only streams
		}
		ports = append(ports, model.Port{Name: p.GetName(), Number: p.GetNumber(), Protocol: protocol})
		d.ports = append(d.ports, p)
	}
	resolution := resolutionOf(se)
	distribution, ok := model.ParseDistribution(c.Annotations[distributionAnnotation])
	if !ok {
		p := problemf(c, "the annotation %s is %q, which is unknown and has no effect: write PreferSameZone, PreferSameNode or PreferClose", distributionAnnotation, c.Annotations[distributionAnnotation])
		p.Warning = true
		sh.problems = append(sh.problems, p)
	}
	for _, host := range se.GetHosts() {
		// Host names are case-insensitive; all lookups use lower case.
		key := model.ServiceKey{Hostname: strings.ToLower(host), Namespace: c.Namespace}
		switch other := b.out.ByKey[key]; {
		case other == nil:
			s := &model.Service{
				ServiceKey:      key,
				Labels:          c.Labels,
				Ports:           ports,
				Resolution:      resolution,
				Passthrough:     se.GetResolution() == networkingv1alpha3.ServiceEntry_NONE,
				Distribution:    distribution,
				Addresses:       addresses(se.GetAddresses()),
				External:        se.GetLocation() == networkingv1alpha3.ServiceEntry_MESH_EXTERNAL,
				SubjectAltNames: se.GetSubjectAltNames(),
				ExportTo:        se.GetExportTo(),
				Created:         c.Created,
				Source:          c.Key,
			}
			b.out.ByKey[key] = s
			b.out.Sorted = append(b.out.Sorted, s)
			d.keys = append(d.keys, key)
		case other.Source == c.Key: // the object lists the host twice
		case other.Registry != model.RegistryKubernetes:
			sh.problems = append(sh.problems, problemf(c, "spec.hosts names %q, which %s defines already and which is older: remove the host from one of them",
				host, other.Source))
		case other.Resolution != resolution:
			sh.problems = append(sh.problems, problemf(c, "spec.hosts names %q, which %s defines: that definition wins, and endpoints of another resolution cannot be added to it; remove the host",
				host, other.Source))
		case !slices.Contains(d.keys, key):
			p := problemf(c, "spec.hosts names %q, which %s defines: that definition wins, and the endpoints of this object are added to it", host, other.Source)
			p.Warning = true
			sh.problems = append(sh.problems, p)
			d.keys = append(d.keys, key)
			extended := *other // a copy, because other belongs to the platform
			extended.EndpointsFrom = append(slices.Clone(other.EndpointsFrom), c.Key)
			b.out.ByKey[key] = &extended
		}
	}
	b.define(d)
}

// distributionAnnotation sets the traffic distribution of a ServiceEntry.
const distributionAnnotation = "networking.istio.io/traffic-distribution"

// resolutionOf returns the resolution of a ServiceEntry. NONE maps to static resolution, which
// applies to proxies that do not know the original destination address.
func resolutionOf(se *networkingv1alpha3.ServiceEntry) model.Resolution {
	switch se.GetResolution() {
	case networkingv1alpha3.ServiceEntry_DNS:
		return model.ResolutionDNS
	case networkingv1alpha3.ServiceEntry_DNS_ROUND_ROBIN:
		return model.ResolutionDNSRoundRobin
	case networkingv1alpha3.ServiceEntry_DYNAMIC_DNS:
		return model.ResolutionDynamicDNS
	}
	return model.ResolutionStatic
}

// hostIsEndpoint reports whether the hosts themselves are the endpoints, because the object names
// no others.
func (d *definition) hostIsEndpoint() bool {
	if d.entry == nil || d.selects || len(d.entry.GetEndpoints()) > 0 {
		return false
	}
	r := resolutionOf(d.entry)
	return r == model.ResolutionDNS || r == model.ResolutionDNSRoundRobin
}

// make returns the endpoints of all ports of a definition. p is the service if the definition comes
// from the platform.
func (b *builder) make(d *definition, p *PlatformService) made {
	n := b.out.workloads[d.name.namespace]
	if d.entry == nil {
		return b.platformEndpoints(p, n.selected(d.selector, d.pods), d.selects)
	}
	var targets []*Workload
	if resolutionOf(d.entry) == model.ResolutionDynamicDNS {
		return made{} // the host of each request determines the endpoint
	}
	if d.selects {
		targets = n.selected(d.selector, d.pods)
	}
	for _, e := range d.entry.GetEndpoints() {
		targets = append(targets, entryWorkload(e, e.GetLabels(), d.name.namespace))
	}
	return b.endpoints(d, targets)
}

// endpoints returns the endpoints of a ServiceEntry.
func (b *builder) endpoints(d *definition, targets []*Workload) (m made) {
	c, resolution := d.config, resolutionOf(d.entry)
	persistent := (&model.Service{Labels: c.Labels}).Persistent()
	// A single allocation for all endpoints, because a mesh has many of them.
	all := make([]model.Endpoint, 0, len(targets)*len(d.ports))
	for _, w := range targets {
		base, reason := b.endpoint(w, resolution, persistent)
		if reason == "" && resolution == model.ResolutionDNSRoundRobin && len(all) > 0 {
			reason = "resolution DNS_ROUND_ROBIN allows one endpoint, and there is one already; write resolution: DNS"
		}
		if reason != "" {
			at := model.Problem{Object: w.Object, Source: w.Source}
			if w.Object.Kind == "" {
				at = model.Problem{Object: c.Key, Source: c.Source}
			}
			at.Reason = fmt.Sprintf("the address %q cannot serve %s: %s", w.Address, c.Key, reason)
			m.problems = append(m.problems, at)
			continue
		}
		for _, p := range d.ports {
			e := base
			e.ServicePort = p.GetNumber()
			if !strings.HasPrefix(e.Address, unixScheme) {
				e.Port = cmp.Or(w.Ports[p.GetName()], p.GetTargetPort(), p.GetNumber())
			}
			all = append(all, e)
		}
	}
	sorted := make([]*model.Endpoint, len(all))
	for i := range all {
		sorted[i] = &all[i]
	}
	slices.SortStableFunc(sorted, compareEndpoints)
	m.endpoints = make([]*model.Endpoint, 0, len(all))
	for _, e := range sorted {
		if n := len(m.endpoints); n > 0 && compareEndpoints(m.endpoints[n-1], e) == 0 {
			// Envoy accepts each address once; the oldest workload gets it.
			m.problems = append(m.problems, problemf(c, "%s serves port %d at %s:%d, as %s does: each address can serve a port once",
				nameOf(e), e.ServicePort, e.Address, e.Port, nameOf(m.endpoints[n-1])))
			continue
		}
		m.endpoints = append(m.endpoints, e)
	}
	return m
}

// endpoint returns the fields that all endpoints of a workload have in common, or the reason why it
// has none. A service with persistent sessions keeps workloads that are draining.
func (b *builder) endpoint(w *Workload, resolution model.Resolution, persistent bool) (e model.Endpoint, reason string) {
	address := w.Address
	if ip, err := netip.ParseAddr(address); err == nil && ip.Zone() == "" {
		address = ip.String()
	} else if reason := unusable(address, resolution); reason != "" && (address != "" || w.Network == "" || resolution.ByName()) {
		// A workload with a network but without an address is reachable from other networks through
		// the gateways of its network.
		return e, reason
	}
	_, unhealthy := b.in.Unhealthy[w.Object]
	draining := w.Labels[model.DrainingLabel] != ""
	e = model.Endpoint{
		Address: address, Labels: w.Labels, Namespace: w.Namespace, ServiceAccount: w.ServiceAccount,
		Workload: w.Object.Name, Entry: w.Object.Kind == model.WorkloadEntry, Locality: w.Locality, Cluster: w.Cluster, Network: cmp.Or(w.Network, b.out.shape.networks.of(w.Cluster, address)), Node: w.Node,
		Weight: max(w.Weight, 1), MutualTLS: w.MutualTLS, Unhealthy: unhealthy || draining && !persistent, Draining: draining,
	}
	e.Labels = placed(e)
	return e, ""
}

// placed returns the labels of an endpoint with those that say where it is, which subsets can name. An own
// label of the network stays.
func placed(e model.Endpoint) map[string]string {
	region, rest, _ := strings.Cut(e.Locality, "/")
	zone, subzone, _ := strings.Cut(rest, "/")
	out, cloned := e.Labels, false
	for _, l := range [...][2]string{
		{"topology.kubernetes.io/region", region},
		{"topology.kubernetes.io/zone", zone},
		{"topology.istio.io/subzone", subzone},
		{"topology.istio.io/cluster", e.Cluster},
		{networkLabel, e.Network},
		{"kubernetes.io/hostname", e.Node},
	} {
		old := out[l[0]]
		if l[1] == "" || old == l[1] || l[0] == networkLabel && old != "" {
			continue
		}
		if !cloned { // the map is that of an object
			out, cloned = maps.Clone(out), true
			if out == nil {
				out = map[string]string{}
			}
		}
		out[l[0]] = l[1]
	}
	return out
}

// platformEndpoints returns the endpoints of a service of the platform, including those of the
// WorkloadEntry objects that it selects.
func (b *builder) platformEndpoints(p *PlatformService, targets []*Workload, selects bool) (m made) {
	m.endpoints = b.out.shape.networks.assign(p.Endpoints)
	if !selects || len(targets) == 0 || p.Service.Resolution != model.ResolutionStatic {
		return m
	}
	all := slices.Clone(m.endpoints)
	for _, w := range targets {
		base, reason := b.endpoint(w, model.ResolutionStatic, p.Service.Persistent())
		if reason != "" {
			m.problems = append(m.problems, model.Problem{
				Object: w.Object, Source: w.Source, Reason: fmt.Sprintf("the address %q cannot serve %s: %s", w.Address, p.Service.Source, reason),
			})
			continue
		}
		for i, port := range p.Service.Ports {
			number := w.Ports[port.Name]
			if i < len(p.Targets) {
				number = cmp.Or(w.Ports[p.Targets[i].Name], number, p.Targets[i].Number)
			}
			if number == 0 {
				continue // the workload has no port with that name
			}
			e := base
			e.ServicePort, e.Port = port.Number, number
			all = append(all, &e)
		}
	}
	m.endpoints = SortEndpoints(all)
	return m
}

func nameOf(e *model.Endpoint) string {
	if e.Workload == "" {
		return "an endpoint"
	}
	return fmt.Sprintf("%s/%s/%s", model.WorkloadEntry, e.Namespace, e.Workload)
}

// unixScheme is the prefix of the address of a Unix domain socket.
const unixScheme = "unix://"

// maxUnixPath is the maximum length in bytes of a socket path on Linux.
const maxUnixPath = 107

// unusable returns the reason why an address that is not a plain IP address cannot be used, or ""
// if it can be used.
func unusable(address string, resolution model.Resolution) string {
	path, unix := strings.CutPrefix(address, unixScheme)
	ip, err := netip.ParseAddr(address)
	switch {
	case err == nil && ip.Zone() != "":
		return fmt.Sprintf("the zone %q is known only on its own machine; write an address that others reach", ip.Zone())
	case address == "":
		return "it is empty; write one"
	case unix && resolution.ByName():
		return "a socket has no name to resolve; write resolution: STATIC in the ServiceEntry"
	case unix && (len(path) < 2 || path[0] != '/' && path[0] != '@' || strings.ContainsRune(path, 0)):
		return "it names no socket; write unix:// and an absolute path, or unix://@ and a name"
	case unix && len(path) > maxUnixPath:
		return fmt.Sprintf("a path of a socket has at most %d bytes; write a shorter one", maxUnixPath)
	case unix:
		return ""
	case strings.Contains(address, "://"):
		return "only unix:// is allowed before a path; write an IP address or unix:///path"
	case !resolution.ByName():
		return "resolution STATIC allows only IP addresses; write one, or write resolution: DNS in the ServiceEntry"
	}
	return ""
}

// hostEndpoints returns the endpoints of a DNS service without endpoints: its own host, which is
// expected to be outside of the mesh.
func hostEndpoints(key model.ServiceKey, ports []*networkingv1alpha3.ServicePort) []*model.Endpoint {
	out := make([]*model.Endpoint, 0, len(ports))
	for _, p := range ports {
		out = append(out, &model.Endpoint{
			Address:     key.Hostname,
			Port:        cmp.Or(p.GetTargetPort(), p.GetNumber()),
			ServicePort: p.GetNumber(),
			Namespace:   key.Namespace,
			Weight:      1,
		})
	}
	slices.SortStableFunc(out, compareEndpoints)
	return out
}

// addresses replaces prefixes of a single address by that address.
func addresses(in []string) []string {
	var out []string
	for _, a := range in {
		if p, err := netip.ParsePrefix(a); err == nil && p.IsSingleIP() {
			a = p.Addr().String()
		}
		out = append(out, a)
	}
	return out
}
