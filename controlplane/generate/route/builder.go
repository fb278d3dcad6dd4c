// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// MaxBody bounds the body of a direct response, in bytes.
const MaxBody = 1 << 20

// Sidecars is the name of the gateway that stands for all sidecars of the mesh.
const Sidecars = "mesh"

// Builder makes the routes of a proxy. It is not safe for concurrent use.
type Builder struct {
	Mesh  *snapshot.Mesh
	Proxy *model.Proxy
	// Gateway is where the routes apply: [Sidecars], or namespace/name of a
	// Gateway.
	Gateway string
	// Service gives the service of a host as the proxy sees it; nil if there
	// is none.
	Service func(host string) *model.Service
	// Problems are those of the objects that were looked at.
	Problems []model.Problem
}

// Host is a host and port that gets routes of its own.
type Host struct {
	Name    string
	Port    uint32
	Service *model.Service           // nil for hosts that only a VirtualService names
	Rules   *snapshot.VirtualService // may be nil
}

// Default sends everything to the service of the host.
func (b *Builder) Default(h *Host) *routev3.Route {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: parts.OutboundName(h.Port, "", h.Name)},
		RetryPolicy:      retryPolicy(nil, b.Mesh.Config),
	}
	applyTimeout(action, nil, h)
	return &routev3.Route{
		Name:      "default",
		Match:     &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Decorator: &routev3.Decorator{Operation: parts.HostPort(h.Name, h.Port) + "/*"},
		Action:    &routev3.Route_Route{Route: action},
	}
}

// applyTimeout sets the timeout of a route; nil and 0 mean none. A gRPC
// client's own deadline holds too, but not beyond the timeout.
func applyTimeout(action *routev3.RouteAction, timeout *durationpb.Duration, h *Host) {
	action.Timeout = durationpb.New(0)
	if d, ok := parts.Positive(timeout); ok {
		action.Timeout = d
	}
	if h.Service != nil && slices.ContainsFunc(h.Service.Ports, func(p model.Port) bool { return p.Number == h.Port && p.Protocol.IsHTTP2() }) {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{GrpcTimeoutHeaderMax: action.Timeout}
	}
}
