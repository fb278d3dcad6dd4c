// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"maps"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/expression"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// VirtualService is one user object.
type VirtualService struct {
	Config *model.Config
	// Spec is the spec of the object, with routes that name a delegate replaced by the routes of
	// the delegate.
	Spec *networkingv1alpha3.VirtualService
	// Hosts are the full names of spec.hosts.
	Hosts []string

	exportTo  []string
	origins   []Origin // of the HTTP routes of Spec
	delegates []*model.Config
	problems  []model.Problem
}

// Origin is the origin of an HTTP route: the object that contains it and its index there.
type Origin struct {
	Config *model.Config
	Rule   int
}

// Origin returns the origin of an HTTP route of Spec.
func (v *VirtualService) Origin(route int) Origin {
	if v.origins == nil {
		return Origin{Config: v.Config, Rule: route}
	}
	return v.origins[route]
}

// VirtualServices is the index of VirtualServices by host.
type VirtualServices struct {
	// All are the objects that apply to sidecars, oldest first.
	All []*VirtualService
	// SourceLabels are the label keys that matches on the client use, sorted. Clients with equal
	// values for these keys get the same routes.
	SourceLabels []string
	// Envoys are the minor versions of Envoy that values of headers need, sorted. Proxies whose
	// Envoys have the same of them get the same routes.
	Envoys []int

	byHost    map[string][]*VirtualService // oldest first
	wildcards []string                     // most specific first
	byGateway map[string][]*VirtualService // by namespace/name, oldest first
	byKey     map[model.Key]*VirtualService
	lent      map[model.Key]bool // delegates that another object names
	all       []*model.Config
}

// OfGateway returns the objects that apply to the Gateway with the given name, namespace/name,
// oldest first.
func (v *VirtualServices) OfGateway(name string) []*VirtualService { return v.byGateway[name] }

func (v *VirtualServices) objects() []*model.Config {
	if v == nil {
		return nil
	}
	return v.all
}

func newVirtualServices(old *VirtualServices, objs []*model.Config, set settings) *VirtualServices {
	v := &VirtualServices{
		byHost: make(map[string][]*VirtualService), byGateway: make(map[string][]*VirtualService),
		byKey: make(map[model.Key]*VirtualService), lent: make(map[model.Key]bool), all: objs,
	}
	lenders := lendersOf(objs)
	labels, envoys := make(map[string]bool), make(map[int]bool)
	for _, obj := range objs {
		spec, ok := obj.Spec.(*networkingv1alpha3.VirtualService)
		addEnvoys(envoys, spec)
		if !ok || len(spec.GetHosts()) == 0 {
			continue
		}
		vs := newVirtualService(obj, spec, lenders, set)
		if old != nil && vs.same(old.byKey[obj.Key]) {
			vs = old.byKey[obj.Key]
		}
		v.byKey[obj.Key] = vs
		for _, d := range vs.delegates {
			if d != nil {
				v.lent[d.Key] = true
			}
		}
		for _, name := range gatewaysOf(obj, spec) {
			v.byGateway[name] = append(v.byGateway[name], vs)
		}
		if !forMesh(spec.GetGateways()) {
			continue
		}
		v.All = append(v.All, vs)
		for _, h := range vs.Hosts {
			v.byHost[h] = append(v.byHost[h], vs)
		}
		addSourceLabels(labels, vs.Spec)
	}
	v.Envoys = slices.Sorted(maps.Keys(envoys))
	v.SourceLabels = slices.Sorted(maps.Keys(labels))
	for h := range v.byHost {
		if isWildcard(h) {
			v.wildcards = append(v.wildcards, h)
		}
	}
	slices.SortFunc(v.wildcards, mostSpecific)
	return v
}

// addSourceLabels adds the label keys that the matches of all types of routes use.
func addSourceLabels(labels map[string]bool, spec *networkingv1alpha3.VirtualService) {
	add := func(of map[string]string) {
		for k := range of {
			labels[k] = true
		}
	}
	for _, route := range spec.GetHttp() {
		for _, m := range route.GetMatch() {
			add(m.GetSourceLabels())
		}
	}
	for _, route := range spec.GetTls() {
		for _, m := range route.GetMatch() {
			add(m.GetSourceLabels())
		}
	}
	for _, route := range spec.GetTcp() {
		for _, m := range route.GetMatch() {
			add(m.GetSourceLabels())
		}
	}
}

// addEnvoys adds the minor versions of Envoy that values of headers need.
func addEnvoys(envoys map[int]bool, spec *networkingv1alpha3.VirtualService) {
	add := func(headers *networkingv1alpha3.Headers) {
		for _, side := range []*networkingv1alpha3.Headers_HeaderOperations{headers.GetRequest(), headers.GetResponse()} {
			for _, values := range []map[string]string{side.GetSet(), side.GetAdd()} {
				for _, value := range values {
					if since, _, err := expression.Header(value); err == nil && since > 0 {
						envoys[since] = true
					}
				}
			}
		}
	}
	for _, route := range spec.GetHttp() {
		add(route.GetHeaders())
		for _, d := range route.GetRoute() {
			add(d.GetHeaders())
		}
	}
}

func newVirtualService(obj *model.Config, spec *networkingv1alpha3.VirtualService, lenders map[string]*model.Config, set settings) *VirtualService {
	vs := &VirtualService{Config: obj, Spec: spec, exportTo: exportTo(spec.GetExportTo(), set.exportRoutes)}
	for _, h := range spec.GetHosts() {
		vs.Hosts = append(vs.Hosts, set.resolveHost(h, obj.Namespace))
	}
	vs.delegate(lenders, set)
	return vs
}

// same reports whether o, which may be nil, is equivalent to v.
func (v *VirtualService) same(o *VirtualService) bool {
	return o != nil && sameConfig(v.Config, o.Config) && slices.Equal(v.Hosts, o.Hosts) && slices.EqualFunc(v.delegates, o.delegates, sameLender)
}

func sameLender(a, b *model.Config) bool {
	return a == b || a != nil && b != nil && sameConfig(a, b)
}

// For returns the VirtualService of a host as seen from a namespace, or nil if there is none. The
// most specific host wins, then the object with the smaller [VirtualService.Reach], then the older
// object.
func (v *VirtualServices) For(host, namespace string) *VirtualService {
	return v.ForSidecar(host, namespace, nil)
}

// ForSidecar is like For, but considers only the objects that a Sidecar imports: those whose
// namespace and host an egress listener names. The Sidecar may be nil.
func (v *VirtualServices) ForSidecar(host, namespace string, sidecar *Sidecar) *VirtualService {
	if vs := firstVisible(v.byHost[host], namespace, sidecar); vs != nil {
		return vs
	}
	for _, w := range v.wildcards {
		if HostMatches(w, host) {
			if vs := firstVisible(v.byHost[w], namespace, sidecar); vs != nil {
				return vs
			}
		}
	}
	return nil
}

// VisibleFrom reports whether the object is visible from a namespace.
func (v *VirtualService) VisibleFrom(namespace string) bool {
	return visible(v.exportTo, v.Config.Namespace, namespace)
}

// ImportedBy reports whether a Sidecar imports the object. A nil Sidecar imports all objects.
func (v *VirtualService) ImportedBy(sidecar *Sidecar) bool {
	return sidecar == nil || slices.ContainsFunc(v.Hosts, func(host string) bool { return sidecar.imports.meet(v.Config.Namespace, host) })
}

// Reach returns how widely an object that is visible from the namespace is exported: 0 if it is
// exported to its own namespace, possibly with others, and this is that namespace; 1 if it is
// exported to this namespace by name; 2 if it is exported to all namespaces. Smaller values take
// precedence, as in Istio.
func (v *VirtualService) Reach(namespace string) int {
	switch {
	case len(v.exportTo) == 0 || slices.Contains(v.exportTo, "*"):
		return 2
	case v.Config.Namespace == namespace:
		return 0
	}
	return 1
}

func firstVisible(list []*VirtualService, namespace string, sidecar *Sidecar) *VirtualService {
	var best *VirtualService
	for _, vs := range list {
		if vs.VisibleFrom(namespace) && vs.ImportedBy(sidecar) && (best == nil || vs.Reach(namespace) < best.Reach(namespace)) {
			best = vs
		}
	}
	return best
}

// forMesh reports whether a list of gateways includes the sidecars.
func forMesh(gateways []string) bool {
	return len(gateways) == 0 || slices.Contains(gateways, "mesh")
}
