// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/denylist"
	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// Input is the data that a snapshot is built from.
type Input struct {
	// List returns all objects of a kind, in any order. It is called only for the kinds that the
	// change touches.
	List func(model.Kind) []*model.Config
	// Get returns one object, or nil if it does not exist. A nil Get means that objects are looked
	// up in the result of List.
	Get func(model.Key) *model.Config
	// Platform provides the services of clusters; nil means none.
	Platform registry.Platform
	// Mesh is the mesh config; nil means the defaults.
	Mesh *meshv1alpha1.MeshConfig
	// Networks defines which endpoints belong to which network, and the gateways of networks; nil
	// means that only the objects themselves do.
	Networks *meshv1alpha1.MeshNetworks
	// Domain is the DNS domain of the mesh; empty means "cluster.local".
	Domain string
	// Roots is the PEM bundle of the certificate authority; empty means that there is none. The
	// snapshot retains it without copying.
	Roots []byte
	// Denied are the identities and certificates that the mesh rejects; nil means none.
	Denied *denylist.List
	// Unhealthy are the WorkloadEntry objects that are out of service. When the set changes, the
	// change of the next Build must name the affected objects.
	Unhealthy map[model.Key]struct{}
	// Patches restrict what EnvoyFilters may contain.
	Patches patch.Limits
	// Earlier are versions of EnvoyFilters before the present ones, the oldest first, for the first
	// Build: their patches stay in force in place of invalid ones.
	Earlier map[model.Key][]*model.Config
	// Compliance restricts TLS of proxies. It is the same in all builds.
	Compliance tlspolicy.Policy
	// Keys are the keys of token issuers that were fetched; nil means none. When they change, the
	// change of the next Build must name the affected RequestAuthentications.
	Keys *jwks.Sets
}

// Mesh is one state of the mesh. It is immutable.
type Mesh struct {
	// Sequence increases by one with every Build. It orders snapshots and does not depend on their
	// content.
	Sequence uint64
	Config   *meshv1alpha1.MeshConfig
	// Domain is the DNS domain of the mesh, for example "cluster.local".
	Domain string
	// Compliance restricts TLS of proxies.
	Compliance tlspolicy.Policy

	// Services are the service definitions: hosts, ports, addresses.
	Services *Services
	// Endpoints are the endpoints of services with static resolution that receive requests.
	Endpoints *Endpoints
	// NamedEndpoints are the endpoints of services that Envoy resolves by DNS.
	NamedEndpoints *Endpoints
	// Accounts are the identities of each service.
	Accounts *Accounts
	// Networks are the gateways between networks.
	Networks *Networks
	// ClusterLocal are the services whose requests stay in the cluster of the client.
	ClusterLocal *ClusterLocal
	// Instances are the endpoints by address.
	Instances *Instances

	VirtualServices     *VirtualServices
	DestinationRules    *DestinationRules
	PeerAuthentications *PeerAuthentications
	Sidecars            *Sidecars
	Gateways            *Gateways
	WasmPlugins         *WasmPlugins
	// AuthorizationPolicies say which requests workloads accept.
	AuthorizationPolicies *AuthorizationPolicies
	// RequestAuthentications say which tokens in requests are valid.
	RequestAuthentications *RequestAuthentications
	// Telemetries say what is recorded about requests and connections.
	Telemetries *Telemetries
	// EnvoyFilters are the patches of the configuration of proxies.
	EnvoyFilters *EnvoyFilters
	// Trust are the roots that proxies trust.
	Trust *Trust
	// Denied are the identities and certificates that proxies reject; nil if there are none.
	Denied *denylist.List

	// Problems are the problems of the objects, to be reported to their authors.
	Problems []model.Problem

	patches           patch.Limits
	registry          *registry.Services
	formatProblem     error // of the access log of the mesh config
	referenceProblems []model.Problem
	inputs            inputs
	subsets           *subsetIndex
}

// settings are the mesh-wide values that the indexes depend on.
type settings struct {
	root   string
	domain string
	// The default exportTo lists of objects, joined by commas; empty means all namespaces.
	exportServices, exportRules, exportRoutes string
	patches                                   patch.Limits
}

// exportTo returns the exportTo list of an object: its own list, or else the default.
func exportTo(own []string, otherwise string) []string {
	if len(own) > 0 || otherwise == "" {
		return own
	}
	return strings.Split(otherwise, ",")
}

// Build returns the snapshot that follows prev after a change. A nil prev means that everything is
// new. An object that makes the build fail is replaced by its previous version or left out, and
// reported as a problem.
func Build(prev *Mesh, in Input, change model.Change) *Mesh {
	return guarded(prev, in, change, build)
}

// build implements Build without protection against objects that make it panic.
func build(prev *Mesh, in Input, change model.Change) *Mesh {
	m := &Mesh{Config: in.Mesh, Domain: cmp.Or(in.Domain, "cluster.local"), Sequence: 1, Compliance: in.Compliance, patches: in.Patches}
	if m.Config == nil {
		m.Config = &meshv1alpha1.MeshConfig{}
	}
	m.loggable(prev)
	if prev != nil {
		m.Sequence = prev.Sequence + 1
		if proto.Equal(prev.Config, m.Config) {
			m.Config = prev.Config
		}
	}
	set := m.settings()
	old := prev
	if old == nil || old.settings() != set {
		// Every index depends on the settings, so none can be reused.
		old, change = &Mesh{}, model.Change{All: true}
	}
	m.buildServices(old, in, change)
	m.ClusterLocal = newClusterLocal(old.ClusterLocal, m.Config, m.Domain)
	st := step{in: in, change: change, set: set}
	m.VirtualServices = rebuild(old.VirtualServices, st, model.VirtualService, newVirtualServices)
	m.DestinationRules = rebuild(old.DestinationRules, st, model.DestinationRule, newDestinationRules)
	m.PeerAuthentications = rebuild(old.PeerAuthentications, st, model.PeerAuthentication, newPeerAuthentications)
	m.Sidecars = rebuild(old.Sidecars, st, model.Sidecar, newSidecars)
	m.Gateways = rebuild(old.Gateways, st, model.Gateway, newGateways)
	m.WasmPlugins = rebuildOf(old.WasmPlugins, st, newWasmPlugins, model.WasmPlugin, model.TrafficExtension)
	m.AuthorizationPolicies = rebuild(old.AuthorizationPolicies, st, model.AuthorizationPolicy, newAuthorizationPolicies)
	m.RequestAuthentications = rebuildRequestAuthentications(old.RequestAuthentications, st)
	m.Telemetries = rebuild(old.Telemetries, st, model.Telemetry, newTelemetries)
	m.EnvoyFilters = rebuild(cmp.Or(old.EnvoyFilters, earlierFilters(in.Earlier, set)), st, model.EnvoyFilter, newEnvoyFilters)
	m.Trust = newTrust(old.Trust, in.Roots)
	m.Denied = denied(prev, in.Denied)
	m.collectProblems(old)
	return m
}

// denied returns the list of denied identities for a snapshot: the previous list if it did not
// change, or nil if the list is empty.
func denied(prev *Mesh, list *denylist.List) *denylist.List {
	switch {
	case list.Len() == 0:
		return nil
	case prev != nil && prev.Denied.Version() == list.Version():
		return prev.Denied
	}
	return list
}

// ResolveHost returns the full name of a host that an object in the namespace refers to. A name
// without a dot is a service of that namespace.
func (m *Mesh) ResolveHost(host, namespace string) string {
	return m.settings().resolveHost(host, namespace)
}

func (m *Mesh) settings() settings {
	return settings{
		root: cmp.Or(m.Config.GetRootNamespace(), "istio-system"), domain: m.Domain, patches: m.patches,
		exportServices: strings.Join(m.Config.GetDefaultServiceExportTo(), ","),
		exportRules:    strings.Join(m.Config.GetDefaultDestinationRuleExportTo(), ","),
		exportRoutes:   strings.Join(m.Config.GetDefaultVirtualServiceExportTo(), ","),
	}
}

// buildServices sets the indexes of services, reusing those that did not change. A change of
// endpoints alone affects only the indexes of endpoints.
func (m *Mesh) buildServices(old *Mesh, in Input, change model.Change) {
	from := registry.Input{
		List:      func(kind model.Kind) []*model.Config { return canonical(in.List(kind)) },
		Get:       in.get(),
		Unhealthy: in.Unhealthy, Platform: in.Platform, Networks: in.Networks,
	}
	m.Networks = old.Networks
	var keys []model.ServiceKey
	whole := old.registry == nil
	if whole {
		m.registry = registry.Build(from)
	} else {
		m.registry, keys, whole = old.registry.Update(from, change)
	}
	if whole {
		all := m.registry.Endpoints
		if !m.Networks.Equal(m.registry.Networks) || m.Networks == nil {
			m.Networks = m.registry.Networks
		}
		m.Services = newServices(old.Services, m.registry.Sorted, m.settings())
		m.Endpoints = newEndpoints(old.Endpoints, m.Services, all, false)
		m.NamedEndpoints = newEndpoints(old.NamedEndpoints, m.Services, all, true)
		m.Accounts = newAccounts(old.Accounts, m.Services, all)
		m.Instances = newInstances(m.Services.Sorted, all)
		return
	}
	m.Services, m.Endpoints, m.NamedEndpoints, m.Accounts = old.Services, old.Endpoints, old.NamedEndpoints, old.Accounts
	m.Instances = old.Instances
	if len(keys) > 0 {
		m.replaceEndpoints(keys, old.registry.Endpoints)
	}
}

// replaceEndpoints updates the endpoints of some services from the registry.
func (m *Mesh) replaceEndpoints(keys []model.ServiceKey, before map[model.ServiceKey][]*model.Endpoint) {
	var static, named []model.ServiceKey
	services := make([]*model.Service, len(keys))
	for i, key := range keys {
		services[i] = m.registry.ByKey[key]
		if services[i].Resolution.ByName() {
			named = append(named, key)
		} else {
			static = append(static, key)
		}
	}
	m.Endpoints = m.Endpoints.replace(static, m.registry.Endpoints)
	m.NamedEndpoints = m.NamedEndpoints.replace(named, m.registry.Endpoints)
	m.Accounts = m.Accounts.replace(services, m.registry.Endpoints)
	m.Instances = m.Instances.replace(services, before, m.registry.Endpoints)
}

// get returns a function that looks up one object.
func (in *Input) get() func(model.Key) *model.Config {
	if in.Get != nil {
		return in.Get
	}
	listed := map[model.Kind]map[model.Key]*model.Config{}
	return func(key model.Key) *model.Config {
		if listed[key.Kind] == nil {
			all := map[model.Key]*model.Config{}
			for _, c := range in.List(key.Kind) {
				all[c.Key] = c
			}
			listed[key.Kind] = all
		}
		return listed[key.Kind][key]
	}
}

// step is one Build from the perspective of the index of one kind.
type step struct {
	in     Input
	change model.Change
	set    settings
}

// index is the common interface of the indexes: objects returns the objects that the index was
// built from, or nil if it was not built yet.
type index interface{ objects() []*model.Config }

// rebuild returns the index of one kind. It returns the old index if its objects did not change.
func rebuild[T index](old T, st step, kind model.Kind, build func(old T, objs []*model.Config, set settings) T) T {
	return rebuildOf(old, st, build, kind)
}

// rebuildOf does the same for the index of several kinds.
func rebuildOf[T index](old T, st step, build func(old T, objs []*model.Config, set settings) T, kinds ...model.Kind) T {
	isNew := old.objects() == nil
	if !isNew && !st.change.Touches(kinds...) {
		return old
	}
	var listed []*model.Config
	for _, kind := range kinds {
		listed = append(listed, st.in.List(kind)...)
	}
	objs := canonical(listed)
	if !isNew && slices.EqualFunc(old.objects(), objs, sameConfig) {
		return old
	}
	return build(old, objs, st.set)
}

// canonical returns a copy of the objects in canonical order. It never returns nil.
func canonical(objs []*model.Config) []*model.Config {
	out := append(make([]*model.Config, 0, len(objs)), objs...)
	slices.SortStableFunc(out, model.Older)
	return out
}

// semanticsAnnotation is the kind of object that a VirtualService was converted from, which
// determines how its paths match. Only this annotation and that of a dry run affect a snapshot.
const (
	semanticsAnnotation = "internal.istio.io/route-semantics"
	// gatewaySemantics is the value for objects converted from the Gateway API.
	gatewaySemantics = "gateway"
)

// sameConfig reports whether two objects are equivalent. It also compares their locations, so that
// problems never refer to an outdated line.
func sameConfig(a, b *model.Config) bool {
	return a == b || a.Key == b.Key && a.Source == b.Source && a.Created.Equal(b.Created) &&
		a.Annotations[semanticsAnnotation] == b.Annotations[semanticsAnnotation] && a.Annotations[dryRunAnnotation] == b.Annotations[dryRunAnnotation] && slices.Equal(a.From, b.From) && model.SameSpec(a.Spec, b.Spec)
}
