// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"path"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Guard returns a hash of the security settings of a resource: who is admitted, how peers are
// verified, and which claims of a request are trusted. It returns 0 for a resource without such
// settings and for nil. Two versions of a resource with equal guards differ only in routing and
// tuning.
//
// For clusters, the hash covers the TLS settings. For routes and virtual hosts, it covers the TLS
// requirement and the settings of filters that are not known to be harmless. For listeners, it
// covers everything except destinations, logs, traces, timeouts and harmless filters, so that new
// fields are included by default.
func Guard(res *xds.Resource) uint64 {
	if res == nil {
		return 0
	}
	var a anypb.Any
	if proto.Unmarshal(res.Any, &a) != nil {
		return 0 // not a resource of this package
	}
	message, err := a.UnmarshalNew()
	if err != nil {
		return 0
	}
	g := &guard{digest: xxhash.New()}
	switch m := message.(type) {
	case *clusterv3.Cluster:
		g.cluster(m)
	case *listenerv3.Listener:
		g.listener(m)
	case *routev3.RouteConfiguration:
		g.routes(m)
	case *routev3.VirtualHost:
		g.host(m)
	}
	if !g.wrote {
		return 0
	}
	return max(1, g.digest.Sum64())
}

type guard struct {
	digest *xxhash.Digest
	wrote  bool
}

// add adds a message to the hash.
func (g *guard) add(m proto.Message) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return // invalid UTF-8, which Unmarshal has already rejected
	}
	g.text(string(b))
}

func (g *guard) text(s string) {
	g.wrote = true
	// Writing to a digest never fails.
	_, _ = g.digest.WriteString(s)
	_, _ = g.digest.Write([]byte{0})
}

func (g *guard) cluster(c *clusterv3.Cluster) {
	if c.GetTransportSocket() == nil && len(c.GetTransportSocketMatches()) == 0 {
		return
	}
	g.add(&clusterv3.Cluster{
		TransportSocket: c.GetTransportSocket(), TransportSocketMatches: c.GetTransportSocketMatches(),
		TypedExtensionProtocolOptions: c.GetTypedExtensionProtocolOptions(),
	})
}

func (g *guard) listener(l *listenerv3.Listener) {
	l.StatPrefix, l.AccessLog = "", nil
	for _, chain := range append(slices.Clip(l.GetFilterChains()), l.GetDefaultFilterChain()) {
		for _, f := range chain.GetFilters() {
			switch path.Ext(f.GetTypedConfig().GetTypeUrl()) {
			case ".TcpProxy", ".RedisProxy", ".MongoProxy":
				f.ConfigType = nil // a destination, or the name of its counters
				continue
			}
			h := &hcmv3.HttpConnectionManager{}
			if f.GetTypedConfig().MessageIs(h) && f.GetTypedConfig().UnmarshalTo(h) == nil {
				f.ConfigType = nil
				g.manager(h)
			}
		}
	}
	g.add(l)
}

func (g *guard) manager(h *hcmv3.HttpConnectionManager) {
	g.routes(h.GetRouteConfig())
	h.StatPrefix, h.RouteSpecifier, h.Tracing, h.RequestIdExtension, h.AccessLog, h.AccessLogOptions = "", nil, nil, nil, nil, nil
	h.StreamIdleTimeout, h.RequestTimeout, h.RequestHeadersTimeout = nil, nil, nil
	h.DrainTimeout, h.DelayedCloseTimeout, h.CommonHttpProtocolOptions = nil, nil, nil
	h.UpgradeConfigs, h.LocalReplyConfig = nil, nil
	h.HttpFilters = slices.DeleteFunc(h.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool { return harmless(f.GetTypedConfig()) })
	g.add(h)
}

func (g *guard) routes(c *routev3.RouteConfiguration) {
	g.filters(c.GetTypedPerFilterConfig(), nil)
	for _, host := range c.GetVirtualHosts() {
		g.host(host)
	}
}

func (g *guard) host(host *routev3.VirtualHost) {
	parent := &routev3.VirtualHost{Domains: host.GetDomains(), RequireTls: host.GetRequireTls()}
	if host.GetRequireTls() != routev3.VirtualHost_NONE {
		g.add(parent)
	}
	g.filters(host.GetTypedPerFilterConfig(), parent)
	for _, r := range host.GetRoutes() {
		g.filters(r.GetTypedPerFilterConfig(), r.GetMatch())
		for _, c := range r.GetRoute().GetWeightedClusters().GetClusters() {
			g.filters(c.GetTypedPerFilterConfig(), r.GetMatch())
		}
	}
}

// filters adds the settings of filters and their scope to the hash.
func (g *guard) filters(settings map[string]*anypb.Any, parent proto.Message) {
	names := make([]string, 0, len(settings))
	for name, s := range settings {
		if !harmless(s) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if parent != nil {
			g.add(parent)
		}
		g.text(name)
		g.add(settings[name])
	}
}

// harmless reports whether an HTTP filter cannot refuse a request because of its sender.
func harmless(settings *anypb.Any) bool {
	switch strings.TrimPrefix(settings.GetTypeUrl(), "type.googleapis.com/envoy.extensions.filters.http.") {
	case "router.v3.Router", "fault.v3.HTTPFault", "grpc_stats.v3.FilterConfig", "grpc_web.v3.GrpcWeb", "compressor.v3.Compressor",
		"stateful_session.v3.StatefulSession", "stateful_session.v3.StatefulSessionPerRoute":
		return true
	case "cors.v3.Cors", "cors.v3.CorsPolicy": // enforced by the browser, not by the server
		return true
	}
	return false
}
