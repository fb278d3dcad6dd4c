// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Services are the services of the mesh and what answers for them.
type Services struct {
	ByKey map[model.ServiceKey]*model.Service
	// Endpoints are sorted by service port, address and port.
	Endpoints map[model.ServiceKey][]*model.Endpoint
	// Sorted holds the services in the order of their keys.
	Sorted []*model.Service
}

// Build derives the services of ServiceEntry objects, with the WorkloadEntry
// objects that they select. Both come in canonical order ([model.Older]): of
// two objects of a namespace that define the same host, the older one wins.
// Endpoints of the unhealthy WorkloadEntry objects are marked.
func Build(entries, workloads []*model.Config, unhealthy map[model.Key]struct{}) (*Services, []model.Problem) {
	b := &builder{
		out: &Services{
			ByKey:     make(map[model.ServiceKey]*model.Service, len(entries)),
			Endpoints: make(map[model.ServiceKey][]*model.Endpoint, len(entries)),
		},
		workloads: newWorkloads(workloads),
		unhealthy: unhealthy,
	}
	for _, c := range entries {
		if c == nil {
			continue
		}
		if se, ok := c.Spec.(*networkingv1alpha3.ServiceEntry); ok && se != nil {
			b.entry(c, se)
		}
	}
	slices.SortFunc(b.out.Sorted, func(a, b *model.Service) int { return a.Compare(b.ServiceKey) })
	return b.out, b.problems
}

type builder struct {
	out       *Services
	workloads *workloads
	unhealthy map[model.Key]struct{}
	problems  []model.Problem
}

func (b *builder) problem(c *model.Config, format string, args ...any) {
	b.problems = append(b.problems, model.Problem{Object: c.Key, Source: c.Source, Reason: fmt.Sprintf(format, args...)})
}

// entry adds one service for each host of an object.
func (b *builder) entry(c *model.Config, se *networkingv1alpha3.ServiceEntry) {
	ports := make([]model.Port, 0, len(se.GetPorts()))
	for _, p := range se.GetPorts() {
		ports = append(ports, model.Port{
			Name:     p.GetName(),
			Number:   p.GetNumber(),
			Protocol: model.ParseProtocol(cmp.Or(p.GetProtocol(), p.GetName())),
		})
	}
	resolution := model.ResolutionStatic
	if se.GetResolution() == networkingv1alpha3.ServiceEntry_DNS {
		resolution = model.ResolutionDNS
	}
	targets, listed := b.targets(c, se)
	var shared []*model.Endpoint
	if listed {
		shared = b.endpoints(c, se, targets, resolution)
	}
	for _, host := range se.GetHosts() {
		// Host names have no case; everything else looks them up in small
		// letters.
		key := model.ServiceKey{Hostname: strings.ToLower(host), Namespace: c.Namespace}
		if other := b.out.ByKey[key]; other != nil {
			if other.Source != c.Key {
				b.problem(c, "spec.hosts names %q, which %s defines already and which is older: remove the host from one of them",
					host, other.Source)
			}
			continue
		}
		s := &model.Service{
			ServiceKey:      key,
			Ports:           ports,
			Resolution:      resolution,
			Addresses:       addresses(se.GetAddresses()),
			External:        se.GetLocation() == networkingv1alpha3.ServiceEntry_MESH_EXTERNAL,
			SubjectAltNames: se.GetSubjectAltNames(),
			Created:         c.Created,
			Source:          c.Key,
		}
		endpoints := shared
		if !listed && resolution == model.ResolutionDNS {
			endpoints = hostEndpoints(key, se)
		}
		b.out.ByKey[key] = s
		b.out.Endpoints[key] = endpoints
		b.out.Sorted = append(b.out.Sorted, s)
	}
}

// target is one workload that answers for a service.
type target struct {
	entry     *networkingv1alpha3.WorkloadEntry
	labels    map[string]string
	namespace string
	// object is the WorkloadEntry, nil for an endpoint written into the
	// ServiceEntry.
	object *model.Config
}

// targets gives the workloads of an object; listed is false when it names
// none and selects none.
func (b *builder) targets(c *model.Config, se *networkingv1alpha3.ServiceEntry) (targets []target, listed bool) {
	if len(se.GetEndpoints()) > 0 {
		for _, e := range se.GetEndpoints() {
			targets = append(targets, target{entry: e, labels: e.GetLabels(), namespace: c.Namespace})
		}
		return targets, true
	}
	if selector := se.GetWorkloadSelector(); selector != nil {
		return b.workloads.selected(c.Namespace, selector.GetLabels()), true
	}
	return nil, false
}

// endpoints gives the endpoints of all ports of an object.
func (b *builder) endpoints(c *model.Config, se *networkingv1alpha3.ServiceEntry, targets []target, resolution model.Resolution) []*model.Endpoint {
	// One allocation for all of them: a mesh has many.
	all := make([]model.Endpoint, 0, len(targets)*len(se.GetPorts()))
	for _, t := range targets {
		address := t.entry.GetAddress()
		if ip, err := netip.ParseAddr(address); err == nil {
			address = ip.String()
		} else if reason := unusable(address, resolution); reason != "" {
			at := c
			if t.object != nil {
				at = t.object
			}
			b.problem(at, "the address %q cannot serve %s: %s", t.entry.GetAddress(), c.Key, reason)
			continue
		}
		base := model.Endpoint{
			Address:        address,
			Labels:         t.labels,
			Namespace:      t.namespace,
			ServiceAccount: t.entry.GetServiceAccount(),
			Locality:       locality(t),
			Weight:         max(t.entry.GetWeight(), 1),
			MutualTLS:      mutualTLS(t),
		}
		if t.object != nil {
			base.Workload = t.object.Name
			_, base.Unhealthy = b.unhealthy[t.object.Key]
		}
		for _, p := range se.GetPorts() {
			e := base
			e.ServicePort = p.GetNumber()
			e.Port = targetPort(t.entry, p)
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, compareEndpoints)
	out := make([]*model.Endpoint, 0, len(all))
	for i := range all {
		e := &all[i]
		if n := len(out); n > 0 && compareEndpoints(*out[n-1], *e) == 0 {
			// Envoy wants each address once; the oldest workload has it.
			b.problem(c, "%s serves port %d at %s:%d, as %s does: each address can serve a port once",
				nameOf(e), e.ServicePort, e.Address, e.Port, nameOf(out[n-1]))
			continue
		}
		out = append(out, e)
	}
	return out
}

func nameOf(e *model.Endpoint) string {
	if e.Workload == "" {
		return "an endpoint"
	}
	return fmt.Sprintf("%s/%s/%s", model.WorkloadEntry, e.Namespace, e.Workload)
}

func compareEndpoints(a, b model.Endpoint) int {
	if c := cmp.Compare(a.ServicePort, b.ServicePort); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Address, b.Address); c != 0 {
		return c
	}
	return cmp.Compare(a.Port, b.Port)
}

// unusable says why an address that is no IP cannot be used; empty means it
// can.
func unusable(address string, resolution model.Resolution) string {
	switch {
	case address == "":
		return "it is empty; write one"
	case strings.Contains(address, "://"):
		return "this version serves no Unix sockets; write an IP address"
	case resolution != model.ResolutionDNS:
		return "resolution STATIC takes only IP addresses; write one, or write resolution: DNS in the ServiceEntry"
	}
	return ""
}

// hostEndpoints is what a DNS service without endpoints has: its own host,
// which is expected to know nothing of the mesh.
func hostEndpoints(key model.ServiceKey, se *networkingv1alpha3.ServiceEntry) []*model.Endpoint {
	out := make([]*model.Endpoint, 0, len(se.GetPorts()))
	for _, p := range se.GetPorts() {
		out = append(out, &model.Endpoint{
			Address:     key.Hostname,
			Port:        targetPort(nil, p),
			ServicePort: p.GetNumber(),
			Namespace:   key.Namespace,
			Weight:      1,
		})
	}
	slices.SortStableFunc(out, func(a, b *model.Endpoint) int { return compareEndpoints(*a, *b) })
	return out
}

// targetPort is the port at the workload: its own by the name of the port,
// else the target port of the service, else the same number.
func targetPort(w *networkingv1alpha3.WorkloadEntry, p *networkingv1alpha3.ServicePort) uint32 {
	if n := w.GetPorts()[p.GetName()]; n != 0 {
		return n
	}
	if n := p.GetTargetPort(); n != 0 {
		return n
	}
	return p.GetNumber()
}

// The labels of Istio that say something about an endpoint.
const (
	tlsModeLabel  = "security.istio.io/tlsMode"
	localityLabel = "istio-locality"
)

// mutualTLS decides whether an endpoint speaks mesh mutual TLS: its label
// says so, or else an identity of its own does.
func mutualTLS(t target) bool {
	if mode, ok := t.labels[tlsModeLabel]; ok {
		return mode == "istio"
	}
	return t.entry.GetServiceAccount() != ""
}

func locality(t target) string {
	if l := t.entry.GetLocality(); l != "" {
		return l
	}
	// A label value has no slashes, so dots stand for them.
	return strings.ReplaceAll(t.labels[localityLabel], ".", "/")
}

// addresses reduces ranges of one address to the address.
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
