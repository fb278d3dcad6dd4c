// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"slices"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// MaxBody is the maximum size of the body of a direct response, in bytes.
const MaxBody = 1 << 20

// Sidecars is the name of the gateway that represents all sidecars of the mesh.
const Sidecars = "mesh"

// Builder builds the routes of a proxy. It is not safe for concurrent use.
type Builder struct {
	Mesh  *snapshot.Mesh
	Proxy *model.Proxy
	// Gateway is the gateway that the routes apply to: [Sidecars], or the namespace/name of a
	// Gateway.
	Gateway string
	// TLS is true if the requests arrive over TLS.
	TLS bool
	// Service returns the service of a host as the proxy sees it, or nil if there is none.
	Service func(host string) *model.Service
	// Timeout is the timeout of routes that set none; 0 means no timeout.
	Timeout time.Duration
	// Sessions makes the labels of services for persistent sessions effective.
	Sessions bool
	// Problems are the problems of the objects that were used.
	Problems []model.Problem

	reported map[model.Problem]bool // problems that Routes reported
	tooNew   []string               // headers that the Envoy cannot set, of the current route
	sources  xds.Sources            // see TakeSources
}

// TakeSources returns the objects that affect what the Builder has built since the last call. It
// omits services and rules without effect.
func (b *Builder) TakeSources() xds.Sources {
	out := b.sources
	b.sources = nil
	return out
}

// Host is a host and port with its own routes.
type Host struct {
	Name    string
	Port    uint32
	Service *model.Service           // nil for hosts that only a VirtualService names
	Rules   *snapshot.VirtualService // may be nil
}

// Default returns the route that sends all requests to the service of the host.
func (b *Builder) Default(h *Host) *routev3.Route {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: envoyconf.OutboundName(h.Port, "", h.Name)},
		RetryPolicy:      retryPolicy(nil, b.Mesh.Config),
		HashPolicy:       b.hashPolicies(target{host: h.Name, port: h.Port, service: h.Service}),
	}
	b.applyTimeout(action, nil, b.servesHTTP2(h.Service, h.Port))
	return &routev3.Route{
		TypedPerFilterConfig: b.session(h.Service),

		Name:      "default",
		Match:     &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Decorator: &routev3.Decorator{Operation: envoyconf.HostPort(h.Name, h.Port) + "/*"},
		Action:    &routev3.Route_Route{Route: action},
	}
}

// applyTimeout sets the timeout of a route; 0 means none. Without one, the deadline of a gRPC client
// applies. Envoy ignores the timeout of a route that also has the duration of a stream.
func (b *Builder) applyTimeout(action *routev3.RouteAction, timeout *durationpb.Duration, http2 bool) {
	action.Timeout = durationpb.New(0)
	if timeout == nil && b.Timeout > 0 {
		action.Timeout = durationpb.New(b.Timeout)
	} else if d, ok := envoyconf.Positive(timeout); ok {
		action.Timeout = d
	}
	if http2 && action.Timeout.AsDuration() == 0 {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{GrpcTimeoutHeaderMax: action.Timeout}
	}
}

func (b *Builder) servesHTTP2(svc *model.Service, port uint32) bool {
	if svc == nil || !slices.ContainsFunc(svc.Ports, func(p model.Port) bool { return p.Number == port && p.Protocol.IsHTTP2() }) {
		return false
	}
	b.sources.Add(svc.Source)
	return true
}

// semanticsAnnotation determines how the paths of an object match.
const semanticsAnnotation = "internal.istio.io/route-semantics"

// bySegments reports whether a prefix matches whole path segments only, as in objects converted
// from Gateway API routes and Ingresses.
func bySegments(obj *model.Config) bool {
	kind := obj.Annotations[semanticsAnnotation]
	return kind == "gateway" || kind == "ingress"
}
