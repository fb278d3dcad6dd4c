// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Patches are the patches of a proxy, in the order in which they are applied. The zero value has
// none.
type Patches struct {
	// Key is equal for proxies with the same patches. It is empty without patches.
	Key  string
	kind map[ApplyTo][]*Patch
}

// Of returns the patches of a proxy among those of filters that select it: by priority, then those
// of the root namespace, then by age and name.
func Of(filters []*Filter, root string, proxy *model.Proxy) Patches {
	if len(filters) == 0 {
		return Patches{}
	}
	filters = slices.Clone(filters)
	slices.SortStableFunc(filters, func(a, b *Filter) int {
		ka, kb := a.Config, b.Config
		return cmp.Or(
			cmp.Compare(a.Spec.GetPriority(), b.Spec.GetPriority()),
			other(ka.Namespace, root)-other(kb.Namespace, root),
			ka.Created.Compare(kb.Created),
			strings.Compare(ka.Name+"."+ka.Namespace, kb.Name+"."+kb.Namespace),
		)
	})
	p := Patches{kind: map[ApplyTo][]*Patch{}}
	var key strings.Builder
	for _, f := range filters {
		some := false
		for _, one := range f.Patches {
			if !one.forProxy(proxy) {
				continue
			}
			if !some {
				key.WriteString(f.Config.Namespace + "/" + f.Config.Name + "@" + f.version)
				some = true
			}
			key.WriteString("," + strconv.Itoa(one.Index))
			p.kind[one.ApplyTo] = append(p.kind[one.ApplyTo], one)
		}
		if some {
			key.WriteByte(';')
		}
	}
	p.Key = key.String()
	return p
}

// other returns 0 for the root namespace and 1 for others.
func other(namespace, root string) int {
	if namespace == root {
		return 0
	}
	return 1
}

// forProxy reports whether a patch applies to a proxy with its version and metadata.
func (p *Patch) forProxy(proxy *model.Proxy) bool {
	if p.proxy != nil && (proxy.Agent == "" || !p.proxy.MatchString(proxy.Agent)) {
		return false
	}
	for key, want := range p.match.GetProxy().GetMetadata() {
		if got, ok := proxy.Metadata[key]; !ok || got != want {
			return false
		}
	}
	return true
}

// Hit is an effect of a patch.
type Hit struct {
	Patch *Patch
	// Resource is the name of the resource that it changed, added or removed.
	Resource string
}

// Contain reports whether a patch of an EnvoyFilter is among them.
func (p Patches) Contain(key model.Key) bool {
	for _, list := range p.kind {
		if slices.ContainsFunc(list, func(one *Patch) bool { return one.Filter.Config.Key == key }) {
			return true
		}
	}
	return false
}

// Filters returns the EnvoyFilters that have a patch for the proxy, in no particular order.
func (p Patches) Filters() (out []*Filter) {
	seen := map[*Filter]bool{}
	for _, list := range p.kind {
		for _, one := range list {
			if !seen[one.Filter] {
				seen[one.Filter] = true
				out = append(out, one.Filter)
			}
		}
	}
	return out
}

// Has reports whether there is a patch of one of the kinds.
func (p Patches) Has(kinds ...ApplyTo) bool {
	return slices.ContainsFunc(kinds, func(k ApplyTo) bool { return len(p.kind[k]) > 0 })
}

// ListenerKinds, RouteKinds, ClusterKinds and ExtensionKinds are the kinds of patches that change
// the resources of each type. Listeners contain routes.
var (
	ListenerKinds  = []ApplyTo{listener, filterChain, listenerPart, networkFilter, httpFilter, routes, virtualHost, httpRoute}
	RouteKinds     = []ApplyTo{routes, virtualHost, httpRoute}
	HostKinds      = []ApplyTo{virtualHost, httpRoute}
	ClusterKinds   = []ApplyTo{cluster}
	ExtensionKinds = []ApplyTo{extension}
	BootstrapKinds = []ApplyTo{bootstrap}
)
