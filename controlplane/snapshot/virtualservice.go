// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"maps"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// VirtualService is one user object.
type VirtualService struct {
	Config *model.Config
	Spec   *networkingv1alpha3.VirtualService
	// Hosts are the full names of spec.hosts.
	Hosts []string
}

// VirtualServices is the index of VirtualServices by host.
type VirtualServices struct {
	// All are those that apply to sidecars, oldest first.
	All []*VirtualService
	// SourceLabels are the label keys that matches on the caller name,
	// sorted: callers that agree in these get the same routes.
	SourceLabels []string

	byHost    map[string][]*VirtualService // oldest first
	wildcards []string                     // most specific first
	byGateway map[string][]*VirtualService // by namespace/name, oldest first
	all       []*model.Config
}

// OfGateway gives the objects that apply to a Gateway, named namespace/name,
// oldest first.
func (v *VirtualServices) OfGateway(name string) []*VirtualService { return v.byGateway[name] }

func (v *VirtualServices) objects() []*model.Config {
	if v == nil {
		return nil
	}
	return v.all
}

func newVirtualServices(old *VirtualServices, objs []*model.Config, set settings) *VirtualServices {
	before := make(map[model.Key]*VirtualService)
	if old != nil {
		for _, vs := range old.All {
			before[vs.Config.Key] = vs
		}
		for _, list := range old.byGateway {
			for _, vs := range list {
				before[vs.Config.Key] = vs
			}
		}
	}
	v := &VirtualServices{byHost: make(map[string][]*VirtualService), byGateway: make(map[string][]*VirtualService), all: objs}
	labels := make(map[string]bool)
	for _, obj := range objs {
		spec, ok := obj.Spec.(*networkingv1alpha3.VirtualService)
		if !ok {
			continue
		}
		vs := before[obj.Key]
		if vs == nil || !sameConfig(vs.Config, obj) {
			vs = &VirtualService{Config: obj, Spec: spec}
			for _, h := range spec.GetHosts() {
				vs.Hosts = append(vs.Hosts, set.resolveHost(h, obj.Namespace))
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
		for _, route := range spec.GetHttp() {
			for _, m := range route.GetMatch() {
				for k := range m.GetSourceLabels() {
					labels[k] = true
				}
			}
		}
	}
	v.SourceLabels = slices.Sorted(maps.Keys(labels))
	for h := range v.byHost {
		if isWildcard(h) {
			v.wildcards = append(v.wildcards, h)
		}
	}
	slices.SortFunc(v.wildcards, mostSpecific)
	return v
}

// For gives the VirtualService of a host as a namespace sees it: the most
// specific host wins, then the older object. Nil means that there is none.
func (v *VirtualServices) For(host, namespace string) *VirtualService {
	if vs := firstVisible(v.byHost[host], namespace); vs != nil {
		return vs
	}
	for _, w := range v.wildcards {
		if hostMatches(w, host) {
			if vs := firstVisible(v.byHost[w], namespace); vs != nil {
				return vs
			}
		}
	}
	return nil
}

// VisibleFrom reports whether the namespace sees the object.
func (v *VirtualService) VisibleFrom(namespace string) bool {
	return visible(v.Spec.GetExportTo(), v.Config.Namespace, namespace)
}

func firstVisible(list []*VirtualService, namespace string) *VirtualService {
	for _, vs := range list {
		if vs.VisibleFrom(namespace) {
			return vs
		}
	}
	return nil
}

// forMesh reports whether a list of gateways holds the sidecars.
func forMesh(gateways []string) bool {
	return len(gateways) == 0 || slices.Contains(gateways, "mesh")
}
