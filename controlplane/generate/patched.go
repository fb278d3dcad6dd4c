// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// patchedKey identifies a patched set, which proxies with the same set and patches share.
type patchedKey struct {
	typeURL string // sets without resources are the same for several types
	base    *xds.Set
	patches string
	place   string
}

// patchedSet is a patched set and what each patch had an effect on.
type patchedSet struct {
	set  *xds.Set
	hits []patch.Hit
}

// patchedResource is a patched resource, nil if it was removed.
type patchedResource struct {
	resource *xds.Resource
	hits     []*patch.Patch
	problems []model.Problem
}

// patchedResourceKey identifies a patched resource.
type patchedResourceKey struct {
	base           *xds.Resource
	patches, place string
}

// kindsOf are the kinds of patches that change resources of a type.
func kindsOf(typeURL string) []patch.ApplyTo {
	switch typeURL {
	case xds.TypeListener:
		return patch.ListenerKinds
	case xds.TypeRoute:
		return patch.RouteKinds
	case xds.TypeVirtualHost:
		return patch.HostKinds
	case xds.TypeCluster:
		return patch.ClusterKinds
	case xds.TypeExtension:
		return patch.ExtensionKinds
	case xds.TypeBootstrap:
		return patch.BootstrapKinds
	}
	return nil
}

// patched applies the EnvoyFilters of a proxy to a set. Proxies without patches keep the set.
func (g *Generator) patched(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string, base *xds.Set) *patchedSet {
	kinds := kindsOf(typeURL)
	if len(kinds) == 0 || proxy.Proxyless || len(proxy.IPs) == 0 || proxy.Role != "router" && proxy.Role != "sidecar" {
		return nil
	}
	patches := mesh.EnvoyFilters.For(proxy)
	if !patches.Has(kinds...) || typeURL == xds.TypeVirtualHost && !proxy.VHDS {
		return nil
	}
	b := &patcher{Generator: g, patches: patches, sequence: mesh.Sequence, typeURL: typeURL}
	b.place, b.key = placeOf(mesh, proxy)
	b.place.Search = patch.NewSearch(maxAttempts)
	if d := g.deniedIn(mesh); d != nil {
		b.place.Denied = d
	}
	key := patchedKey{typeURL, base, patches.Key, b.key}
	return g.patchedSets.get(key, mesh.Sequence, inputs{b.place.Denied}, func(*patchedSet) *patchedSet { return b.all(base) })
}

// Hits returns what the patches of EnvoyFilters had an effect on in the resources of a type.
func (g *Generator) Hits(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) []patch.Hit {
	if p := g.patched(mesh, proxy, typeURL, g.generate(mesh, proxy, typeURL)); p != nil {
		return p.hits
	}
	return nil
}

// placeOf returns what patches match of a proxy, and a key for it.
func placeOf(mesh *snapshot.Mesh, proxy *model.Proxy) (patch.Place, string) {
	if proxy.Role != "router" {
		place := patch.Place{Hosts: map[uint32][]string{}}
		var key strings.Builder
		for _, i := range (&target{mesh: mesh, proxy: proxy}).instances() {
			port, host := i.Endpoint.Port, i.Service.Hostname
			if !slices.Contains(place.Hosts[port], host) {
				place.Hosts[port] = append(place.Hosts[port], host)
				fmt.Fprintf(&key, "%d=%s,", port, host)
			}
		}
		return place, key.String()
	}
	place := patch.Place{Context: networkingv1alpha3.EnvoyFilter_GATEWAY, Ports: map[uint32][]uint32{}}
	key := "gateway"
	for _, t := range (&router{target: &target{mesh: mesh, proxy: proxy}}).targets() {
		place.Ports[t.proxy] = append(place.Ports[t.proxy], t.service)
		key += fmt.Sprintf(",%d=%d", t.proxy, t.service)
	}
	return place, key
}

const (
	// maxAttempts bounds the work for patches whose results are invalid, for one set.
	maxAttempts = 2_000
	// maxGrowth is how many bytes patches may add to the resources of a set.
	maxGrowth = 64 << 20
)

// patcher patches one set.
type patcher struct {
	*Generator
	patches  patch.Patches
	place    patch.Place
	key      string
	sequence uint64
	typeURL  string
	grown    int // bytes that were added

	out      part
	hits     []patch.Hit
	problems []model.Problem
}

func (b *patcher) all(base *xds.Set) *patchedSet {
	switch {
	case b.typeURL == xds.TypeVirtualHost:
		b.hosts(base)
	default:
		for _, r := range base.Resources {
			b.one(r)
		}
	}
	b.added()
	if len(b.hits) == 0 && len(b.problems) == 0 {
		return &patchedSet{set: base}
	}
	return &patchedSet{set: xds.NewSet(nil, b.out.resources, slices.Concat(base.Problems, unique(b.problems))), hits: b.hits}
}

// unique returns the problems without those that several resources share.
func unique(problems []model.Problem) []model.Problem {
	seen := make(map[model.Problem]bool, len(problems))
	return slices.DeleteFunc(problems, func(p model.Problem) bool {
		was := seen[p]
		seen[p] = true
		return was
	})
}

// one adds a resource, or what it is patched to.
func (b *patcher) one(r *xds.Resource) {
	switch b.typeURL {
	case xds.TypeCluster:
		if !b.patches.TouchesCluster(r.Name, b.place) {
			b.out.resources = append(b.out.resources, r)
			return
		}
	case xds.TypeRoute:
		if !b.patches.TouchesRoutes(r.Name, b.place) {
			b.out.resources = append(b.out.resources, r)
			return
		}
	}
	place := b.key
	if b.place.Context != networkingv1alpha3.EnvoyFilter_GATEWAY && !strings.HasPrefix(r.Name, "inbound|") {
		place = "" // only inbound clusters belong to the services of the workload
	}
	key := patchedResourceKey{r, b.patches.Key, place}
	p := b.patchedResources.get(key, b.sequence, inputs{b.place.Denied}, func(*patchedResource) *patchedResource { return b.resource(r) })
	if p.resource != nil {
		if b.grown += max(0, len(p.resource.Any)-len(r.Any)); b.grown > maxGrowth {
			p = &patchedResource{resource: r, problems: refused(p.hits, fmt.Errorf("patches add more than %d MiB to the configuration of a proxy: make the value shorter or match less", maxGrowth>>20))}
		}
	}
	if p.resource != nil {
		b.out.resources = append(b.out.resources, p.resource)
	}
	b.problems = append(b.problems, p.problems...)
	b.record(p.hits, r.Name)
}

func (b *patcher) record(hits []*patch.Patch, name string) {
	for _, h := range hits {
		b.hits = append(b.hits, patch.Hit{Patch: h, Resource: name})
	}
}

// resource patches a resource.
func (b *patcher) resource(r *xds.Resource) *patchedResource {
	same := &patchedResource{resource: r}
	packed := &anypb.Any{}
	if proto.Unmarshal(r.Any, packed) != nil {
		return same // impossible: it was just generated
	}
	msg, err := packed.UnmarshalNew()
	if err != nil {
		return same
	}
	switch m := msg.(type) {
	case *listenerv3.Listener:
		return patchedTo(b, r, b.patches.Listener(m, b.place))
	case *clusterv3.Cluster:
		return patchedTo(b, r, b.patches.Cluster(m, b.place))
	case *routev3.RouteConfiguration:
		return patchedTo(b, r, b.patches.Routes(m, b.place))
	case *structpb.Struct:
		return patchedTo(b, r, b.patches.Bootstrap(m))
	}
	return same
}

// patchedTo returns the resource of a patched message.
func patchedTo[M proto.Message](b *patcher, r *xds.Resource, o patch.Outcome[M]) *patchedResource {
	p := &patchedResource{resource: r, hits: o.Hits, problems: model.LimitProblems(o.Problems)}
	switch {
	case o.Removed:
		p.resource = nil
	case len(o.Hits) > 0:
		typeURL := b.typeURL
		if typeURL == xds.TypeBootstrap {
			typeURL = xds.TypeStruct
		}
		res, err := b.table.Put(typeURL, r.Name, o.Message, slices.Concat(r.Sources, sourcesOf(o.Hits)))
		if err != nil {
			p.problems, p.hits = append(p.problems, refused(o.Hits, err)...), nil
			break
		}
		p.resource = res
	}
	return p
}

// refused returns the problems of patches whose result cannot be sent.
func refused(hits []*patch.Patch, err error) (out []model.Problem) {
	for _, h := range hits {
		out = append(out, h.Refused(err))
	}
	return out
}

func sourcesOf(hits []*patch.Patch) (from xds.Sources) {
	for _, h := range hits {
		from.AddConfigs(h.Filter.Config)
	}
	return from
}

// added adds the resources that patches add.
func (b *patcher) added() {
	kind := map[string]patch.ApplyTo{xds.TypeListener: patch.Listeners, xds.TypeCluster: patch.Clusters, xds.TypeExtension: patch.Extensions}[b.typeURL]
	if kind == 0 {
		return
	}
	messages, of := b.patches.Added(kind, b.place.Context == networkingv1alpha3.EnvoyFilter_GATEWAY)
	names := make(map[string]bool, len(b.out.resources))
	for _, r := range b.out.resources {
		names[r.Name] = true
	}
	taken := sockets{}
	for i, m := range messages {
		if d := b.place.Denied; d != nil {
			switch m := m.(type) {
			case *listenerv3.Listener:
				d.Guard(m)
			case *clusterv3.Cluster:
				d.GuardNames(m)
			}
		}
		name := m.(named).GetName()
		if names[name] {
			b.problems = append(b.problems, of[i].Refused(fmt.Errorf("there is already one with the name %q: use MERGE, or another name", name)))
			continue
		}
		if l, ok := m.(*listenerv3.Listener); ok {
			if len(taken) == 0 {
				b.takeSockets(taken)
			}
			if !taken.take(socketsOf(l)) {
				b.problems = append(b.problems, of[i].Refused(fmt.Errorf("the proxy has a listener at %s already: use another port", socketsOf(l)[0])))
				continue
			}
		}
		r, err := b.table.Put(b.typeURL, name, m, sourcesOf(of[i:i+1]))
		if err != nil {
			b.problems = append(b.problems, of[i].Refused(err))
			continue
		}
		names[name] = true
		b.out.resources = append(b.out.resources, r)
		b.record(of[i:i+1], name)
	}
}

// takeSockets adds the addresses of all listeners and of the bootstrap.
func (b *patcher) takeSockets(taken sockets) {
	for _, port := range []uint32{readyPort, metricsPort} {
		taken.take([]string{socketOf(socketAt("0.0.0.0", port)), socketOf(socketAt("::", port))})
	}
	for _, r := range b.out.resources {
		packed, l := &anypb.Any{}, &listenerv3.Listener{}
		if proto.Unmarshal(r.Any, packed) == nil && packed.UnmarshalTo(l) == nil {
			for _, s := range socketsOf(l) {
				taken[s] = true
			}
		}
	}
}

func socketAt(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// hosts patches virtual hosts that are separate resources, those of a route configuration together:
// patches that add one name the configuration.
func (b *patcher) hosts(base *xds.Set) {
	var names []string
	of := map[string][]*xds.Resource{}
	for _, r := range base.Resources {
		name, _, _ := strings.Cut(r.Name, "/")
		if i := strings.LastIndex(r.Name, patch.VHDSSuffix+"/"); i >= 0 {
			name = r.Name[:i+len(patch.VHDSSuffix)]
		}
		if of[name] == nil {
			names = append(names, name)
		}
		of[name] = append(of[name], r)
	}
	for _, name := range names {
		if !b.patches.TouchesRoutes(name, b.place) {
			b.out.resources = append(b.out.resources, of[name]...)
			continue
		}
		b.hostsOf(name, of[name])
	}
}

func (b *patcher) hostsOf(name string, list []*xds.Resource) {
	config := &routev3.RouteConfiguration{Name: name}
	by := map[string]*xds.Resource{}
	for _, r := range list {
		packed, vh := &anypb.Any{}, &routev3.VirtualHost{}
		if proto.Unmarshal(r.Any, packed) != nil || packed.UnmarshalTo(vh) != nil {
			continue // impossible: it was just generated
		}
		vh.Name = strings.TrimPrefix(vh.GetName(), name+"/")
		by[vh.GetName()] = r
		config.VirtualHosts = append(config.VirtualHosts, vh)
	}
	before := map[string]*routev3.VirtualHost{}
	for _, vh := range config.GetVirtualHosts() {
		before[vh.GetName()] = vh
	}
	o := b.patches.Hosts(config, b.place)
	b.problems = append(b.problems, o.Problems...)
	b.record(o.Hits, name)
	for _, vh := range o.Message.GetVirtualHosts() {
		base := by[vh.GetName()]
		if base != nil && (len(o.Hits) == 0 || proto.Equal(before[vh.GetName()], vh)) {
			b.out.resources = append(b.out.resources, base)
			continue
		}
		var from xds.Sources
		if base != nil {
			from = slices.Clone(base.Sources)
		}
		vh.Name = name + "/" + vh.GetName()
		r, err := b.table.Put(xds.TypeVirtualHost, vh.GetName(), vh, append(from, sourcesOf(o.Hits)...))
		if err != nil {
			b.problems = append(b.problems, refused(o.Hits, err)...)
			r = base
		}
		if r != nil {
			b.out.resources = append(b.out.resources, r)
		}
	}
}
