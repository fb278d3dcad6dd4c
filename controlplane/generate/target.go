// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/authentication"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/authorization"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/extension"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/telemetry"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/internal/lru"
)

// target is a proxy in a snapshot, with the cache keys of its resources.
type target struct {
	mesh     *snapshot.Mesh
	proxy    *model.Proxy
	sidecar  *snapshot.Sidecar
	viewer   cluster.Viewer
	located  *model.Proxy // the proxy with its location
	outbound outboundKey
	plugins  extension.Plugins
	tokens   authentication.Tokens
	policies authorization.Policies
	// recorded is what is recorded about requests, and client and server the parts for those that are
	// sent, and received at unknown services, while listeners are built.
	recorded       telemetry.Effective
	client, server envoyconf.Observed
	// validated and enforced are the filters of tokens and policies, while listeners are built.
	validated *authentication.Filters
	enforced  *authorization.Filters
	settings  *model.ProxySettings // of the proxy itself; may be nil
	protocols envoyconf.Protocols  // of [Config]
	sessions  bool                 // of [Config]
}

// outboundKey determines which services and rules a proxy sees: its Sidecar scope.
type outboundKey struct {
	namespace string
	imports   string // what its Sidecar imports
	rules     string // labels that DestinationRules select by
	sees      string // see the function sees
	hidden    string // services that its Sidecar does not import and its policies ask
	locality  string // its locality, if a service or rule depends on it
	labelled  bool   // see [telemetry.Effective]
	labeller  model.Key
}

// clusterKey determines the outbound clusters of a proxy.
type clusterKey struct {
	outboundKey
	delimited bool // see [model.ProxySettings]
}

// routeKey determines the routes of a proxy, together with outboundKey.
type routeKey struct {
	domain  string
	callers string // labels that VirtualServices select by
	envoy   int    // how many of the versions that headers need its Envoy has
}

// inboundKey determines the inbound listeners and clusters of a proxy.
type inboundKey struct {
	sidecar model.Key // empty without ingress listeners
	address string
	modes   string // mutual TLS mode of each ingress port
	port    uint32 // of the HTTP proxy
	own     string // address at which it is an endpoint of a headless service
}

// maxTargets bounds the targets that are kept. A round generates all types of a proxy one after the
// other, in each worker.
const maxTargets = 256

// targets keeps the targets of the newest snapshot that were used last. It is safe for concurrent use.
type targets struct {
	mu   sync.Mutex // guards all fields below
	mesh *snapshot.Mesh
	used *lru.Map[*model.Proxy, *target]
}

// target returns the target of a proxy. It must not be changed.
func (g *Generator) target(mesh *snapshot.Mesh, proxy *model.Proxy) *target {
	if s := g.targets.get(mesh, proxy); s != nil {
		return s
	}
	s := newTarget(mesh, proxy)
	s.protocols, s.sessions = g.cfg.Protocols, g.cfg.Sessions
	if !proxy.Proxyless {
		s.settings = g.over(s.settings)
	}
	g.targets.put(s)
	return s
}

// get returns the target of a proxy, or nil.
func (c *targets) get(mesh *snapshot.Mesh, proxy *model.Proxy) *target {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mesh != mesh {
		return nil
	}
	s, _ := c.used.Get(proxy)
	return s
}

// put keeps a target, unless that of a newer snapshot is kept.
func (c *targets) put(s *target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mesh != s.mesh {
		if c.mesh != nil && c.mesh.Sequence > s.mesh.Sequence {
			return
		}
		c.mesh, c.used = s.mesh, lru.New[*model.Proxy, *target](maxTargets)
	}
	c.used.Put(s.proxy, s)
}

// newTarget returns the target of a proxy.
func newTarget(mesh *snapshot.Mesh, proxy *model.Proxy) *target {
	s := &target{mesh: mesh, proxy: proxy, viewer: cluster.ViewerOf(proxy)}
	if proxy.Role != "router" { // Sidecar objects do not apply to gateways, even if they select a whole namespace
		s.sidecar = mesh.Sidecars.For(proxy.Namespace, proxy.Labels)
	}
	s.outbound = outboundKey{
		namespace: proxy.Namespace,
		imports:   s.sidecar.ImportsKey(),
		rules:     project(mesh.DestinationRules.SelectorLabels, proxy.Labels),
		sees:      sees(proxy) + kindOf(s.viewer),
	}
	s.outbound.locality, s.located = locate(mesh, proxy)
	s.recorded = telemetry.Of(mesh, proxy, s.sidecar)
	s.plugins = extension.Of(mesh, proxy)
	s.tokens = authentication.Of(mesh, proxy, nil)
	s.policies = authorization.Of(mesh, proxy, s.sidecar, nil, s.tokens.Issuers)
	for _, a := range s.hidden() {
		s.outbound.hidden += a.to.Service.Namespace + "/" + envoyconf.HostPort(a.to.Service.Hostname, a.to.Port.Number) + "@" + a.by.String() + ","
	}
	s.outbound.labelled, s.outbound.labeller = s.recorded.Labelled, s.recorded.LabelledBy
	s.settings = proxy.Settings.Over(mesh.Config.GetDefaultConfig())
	return s
}

// hidden is a service that the Sidecar does not import, and the object that makes the proxy use it.
type hidden struct {
	to snapshot.Reached
	by model.Key // empty for the mesh config
}

// hidden returns the external authorizers and the receivers of logs and spans whose services the
// Sidecar does not import.
func (s *target) hidden() (out []hidden) {
	if s.proxy.Proxyless {
		return nil // uses none
	}
	for _, a := range s.policiesOf(s.services(0)).Asked() {
		out = append(out, hidden{a.Reached, a.Policy.Key})
	}
	for _, r := range s.recorded.Receivers() {
		out = append(out, hidden{r.Reached, r.By})
	}
	return slices.DeleteFunc(out, func(h hidden) bool { return !h.to.Hidden })
}

// services returns the objects of the services that are reached at a port of the workload, or at any
// for 0. It returns none unless policies name services.
func (s *target) services(port uint32) (keys []model.Key) {
	if !s.mesh.AuthorizationPolicies.NameServices() && !s.mesh.RequestAuthentications.NameServices() {
		return nil
	}
	for _, i := range s.instances() {
		if (port == 0 || i.Endpoint.Port == port) && !slices.Contains(keys, i.Service.Source) {
			keys = append(keys, i.Service.Source)
		}
	}
	return keys
}

// policiesOf returns the policies of the workload, and those of services.
func (s *target) policiesOf(services []model.Key) authorization.Policies {
	if len(services) == 0 {
		return s.policies
	}
	return authorization.Of(s.mesh, s.proxy, s.sidecar, services, s.tokensOf(services).Issuers)
}

// unknownKeys returns the log of the requests that an agent reports, as their tokens may have newer
// keys.
func (s *target) unknownKeys(validated *authentication.Filters) []*accesslogv3.AccessLog {
	if s.settings == nil || !s.settings.ReportsKeys {
		return nil
	}
	return validated.UnknownKeys
}

// tokensOf returns the RequestAuthentications of the workload, and those of services.
func (s *target) tokensOf(services []model.Key) authentication.Tokens {
	if len(services) == 0 {
		return s.tokens
	}
	return authentication.Of(s.mesh, s.proxy, services)
}

// routeKey returns the part of the keys that only routes depend on.
func (s *target) routeKey() routeKey {
	return routeKey{domain: s.domain(), callers: project(s.mesh.VirtualServices.SourceLabels, s.proxy.Labels), envoy: s.envoyKey()}
}

// envoyKey returns how many of the versions of Envoy that headers of VirtualServices need the proxy has.
func (s *target) envoyKey() int {
	n, _ := slices.BinarySearch(s.mesh.VirtualServices.Envoys, s.proxy.EnvoyMinor()+1)
	return n
}

// statName returns the name under which Envoy counts the requests of a listener.
func (s *target) statName(name string) string {
	return envoyconf.StatName(name, s.settings.DelimitsStats())
}

// domain returns the DNS domain of the proxy, "<namespace>.svc.<mesh domain>".
func (s *target) domain() string {
	return cmp.Or(s.proxy.Domain, s.proxy.Namespace+".svc."+s.mesh.Domain)
}

// project returns the values of the given label keys as one string.
func project(keys []string, labels map[string]string) string {
	var b strings.Builder
	for _, k := range keys {
		if v, ok := labels[k]; ok {
			// The value is quoted because a proxy may claim any label, and must not obtain the key
			// of another proxy.
			b.WriteString(k + "=" + strconv.Quote(v) + ",")
		}
	}
	return b.String()
}

// view contains the services that proxies with the same outboundKey see.
type view struct {
	services []*model.Service
	byHost   map[string]*model.Service
	clusters []clusterRef // sorted by name
	// passthrough is true if a cluster uses the original destination address.
	passthrough bool
	// headless is true if a service is headless.
	headless bool
	// streams is true if a port of a service serves TCP.
	streams bool
	// zones are the rules by which Envoy chooses between zones.
	zones []model.Key
}

// clusterRef describes the cluster of a port and subset of a service.
type clusterRef struct {
	name    string
	service *model.Service
	port    model.Port
	subset  string
	rule    *snapshot.DestinationRule // may be nil
	found   model.Resolution          // how the proxy finds the endpoints
	// askedBy is the object that uses a service that the Sidecar does not import, or empty.
	askedBy model.Key
}

// policy returns the policy of the DestinationRule.
func (c clusterRef) policy() cluster.Policy { return cluster.PolicyOf(c.rule, c.subset, c.port.Number) }

// source returns the input of the cluster.
func (c clusterRef) source(s *target) cluster.Source {
	src := cluster.Source{
		Service: c.service, Port: c.port, Subset: c.subset, Rule: c.rule,
		Accounts: s.mesh.Accounts.Of(c.service.ServiceKey), Config: s.mesh.Config, Compliance: s.mesh.Compliance, Denied: s.mesh.Denied, Viewer: s.viewer,
		Labelled: s.outbound.labelled, LabelledBy: s.outbound.labeller, Delimited: s.settings.DelimitsStats(),
		OfRouter: s.viewer.Router && c.port.Protocol.Sniffed(), // else the cluster is that of sidecars
		Hashed:   s.protocols.SplitsCommands(c.port.Protocol),
	}
	if !c.found.ByName() {
		src.Viewer = cluster.Viewer{Dialled: s.viewer.Dialled} // shared by all kinds of proxies
	}
	return src
}

func newView(s *target) *view {
	v := &view{services: s.mesh.Services.Visible(s.proxy.Namespace, s.sidecar)}
	v.byHost = make(map[string]*model.Service, len(v.services))
	for _, svc := range v.services {
		v.byHost[svc.Hostname] = svc
		v.headless = v.headless || isHeadless(svc)
		rule := s.mesh.DestinationRules.For(svc.ServiceKey, s.proxy.Namespace, s.proxy.Labels)
		for _, port := range svc.Ports {
			v.streams = v.streams || port.Protocol.IsTCP()
			v.add(s, svc, port, rule, "")
			if rule == nil {
				continue
			}
			for _, subset := range rule.Subsets {
				v.add(s, svc, port, rule, subset.GetName())
			}
		}
	}
	for _, a := range s.hidden() {
		n := len(v.clusters)
		v.add(s, a.to.Service, a.to.Port, s.mesh.DestinationRules.For(a.to.Service.ServiceKey, s.proxy.Namespace, s.proxy.Labels), "")
		for i := range v.clusters[n:] {
			v.clusters[n+i].askedBy = a.by
		}
	}
	slices.SortStableFunc(v.clusters, func(a, b clusterRef) int { return strings.Compare(a.name, b.name) })
	v.clusters = slices.CompactFunc(v.clusters, func(a, b clusterRef) bool { return a.name == b.name })
	return v
}

// add adds a cluster, unless its TLS settings cannot be satisfied. The snapshot reports such
// settings.
func (v *view) add(s *target, svc *model.Service, port model.Port, rule *snapshot.DestinationRule, subset string) {
	ref := clusterRef{name: envoyconf.OutboundName(port.Number, subset, svc.Hostname), service: svc, port: port, subset: subset, rule: rule}
	if rule != nil && !ref.policy().Serves(s.viewer) {
		return
	}
	ref.found = cluster.Source{Service: svc, Port: port, Subset: subset, Rule: rule, Viewer: s.viewer}.Resolution()
	v.passthrough = v.passthrough || ref.found == model.ResolutionPassthrough
	if rule != nil && cluster.ZonesEnabled(ref.policy().Balancer.GetZoneAwareLbSetting()) && !slices.Contains(v.zones, rule.From[0].Key) {
		v.zones = append(v.zones, rule.From[0].Key)
	}
	v.clusters = append(v.clusters, ref)
}

// over combines the settings of one proxy with those that apply to all proxies.
func (g *Generator) over(s *model.ProxySettings) *model.ProxySettings {
	if !g.cfg.HTTP10 && !g.cfg.DeniedBy {
		return s
	}
	with := model.ProxySettings{}
	if s != nil {
		with = *s
	}
	with.HTTP10, with.DeniedBy = with.HTTP10 || g.cfg.HTTP10, with.DeniedBy || g.cfg.DeniedBy
	return with.Keyed()
}
