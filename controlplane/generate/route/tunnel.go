// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"slices"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// tunnelIdle is the idle timeout of tunnels unless a DestinationRule sets one. It is Envoy's
// default for connections; that for requests is 5 minutes.
const tunnelIdle = time.Hour

// Tunnel returns the route of CONNECT requests to the service of the host. It leads where a
// connection whose SNI is the host does. It returns nil for ports that serve HTTP, whose rules a
// tunnel would evade, for a wildcard of whose hosts some have their own TLS routes, and for
// destinations that are reached by another tunnel.
func (b *Builder) Tunnel(h *Host) *routev3.Route {
	at := slices.IndexFunc(h.Service.Ports, func(p model.Port) bool { return p.Number == h.Port })
	if at < 0 || h.Service.Ports[at].Protocol.IsHTTP() {
		return nil
	}
	if b.splits(h) {
		return nil
	}
	to := b.StreamTo(h.Service, h.Port)
	if dests, ok := b.tunnelled(h, h.Service.Ports[at].Protocol.IsTLS()); ok {
		if to, ok = b.Stream(h.Rules, h.Port, dests); !ok {
			return nil
		}
	}
	if to.Tunnel != nil {
		return nil
	}
	action := ConnectTo(to.Targets...)
	if to.Idle != nil {
		action.IdleTimeout = envoyconf.Bounded(to.Idle)
	}
	if d, ok := envoyconf.Positive(to.Longest); ok {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: d}
	}
	if to.BySource {
		action.HashPolicy = []*routev3.RouteAction_HashPolicy{{PolicySpecifier: &routev3.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: true},
		}}}
	}
	out := Connect()
	out.Action = &routev3.Route_Route{Route: action}
	out.Decorator = &routev3.Decorator{Operation: envoyconf.HostPort(h.Name, h.Port)}
	return out
}

// tunnelled returns the destinations of the first TLS or TCP route of a VirtualService that applies
// to a connection to the host. TLS routes apply to ports whose protocol may be TLS.
func (b *Builder) tunnelled(h *Host, tls bool) ([]*networkingv1alpha3.RouteDestination, bool) {
	if h.Rules == nil {
		return nil, false
	}
	for _, r := range h.Rules.Spec.GetTls() {
		for _, m := range r.GetMatch() {
			if slices.ContainsFunc(m.GetSniHosts(), func(name string) bool { return snapshot.HostMatches(strings.ToLower(name), h.Name) }) && b.TakesStream(m, h.Port, h.Rules.Config.Namespace) {
				return r.GetRoute(), true
			}
		}
	}
	if tls && len(h.Rules.Spec.GetTls()) > 0 {
		return nil, false
	}
	for _, r := range h.Rules.Spec.GetTcp() {
		if len(r.GetMatch()) == 0 || slices.ContainsFunc(r.GetMatch(), func(m *networkingv1alpha3.L4MatchAttributes) bool {
			return len(m.GetDestinationSubnets()) == 0 && b.TakesStream(m, h.Port, h.Rules.Config.Namespace)
		}) {
			return r.GetRoute(), true
		}
	}
	return nil, false
}

// splits reports whether TLS routes of a wildcard host are for some of its hosts only.
func (b *Builder) splits(h *Host) bool {
	if h.Rules == nil || !strings.HasPrefix(h.Name, "*") {
		return false
	}
	return slices.ContainsFunc(h.Rules.Spec.GetTls(), func(r *networkingv1alpha3.TLSRoute) bool {
		return slices.ContainsFunc(r.GetMatch(), func(m *networkingv1alpha3.TLSMatchAttributes) bool {
			return slices.ContainsFunc(m.GetSniHosts(), func(name string) bool { return name != h.Name && snapshot.HostMatches(h.Name, strings.ToLower(name)) })
		})
	})
}

// Connect returns a route for CONNECT requests without an action.
func Connect() *routev3.Route {
	return &routev3.Route{
		Name:  "connect",
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_ConnectMatcher_{ConnectMatcher: &routev3.RouteMatch_ConnectMatcher{}}},
	}
}

// ConnectTo returns the action of a CONNECT request: it forwards the bytes after the request as a
// connection to one of the targets, by weight.
func ConnectTo(targets ...envoyconf.Target) *routev3.RouteAction {
	action := &routev3.RouteAction{
		Timeout: durationpb.New(0), IdleTimeout: durationpb.New(tunnelIdle),
		UpgradeConfigs: []*routev3.RouteAction_UpgradeConfig{{UpgradeType: "CONNECT", ConnectConfig: &routev3.RouteAction_UpgradeConfig_ConnectConfig{}}},
	}
	if len(targets) == 1 {
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: targets[0].Cluster}
		return action
	}
	shares := &routev3.WeightedCluster{}
	for _, t := range targets {
		shares.Clusters = append(shares.Clusters, &routev3.WeightedCluster_ClusterWeight{Name: t.Cluster, Weight: wrapperspb.UInt32(t.Weight)})
	}
	action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: shares}
	return action
}
