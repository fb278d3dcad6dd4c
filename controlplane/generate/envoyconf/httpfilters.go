// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcstatsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_stats/v3"
	grpcwebv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpsetfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	sessionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/stateful_session/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
)

// The names of the filters that routes configure.
const (
	FaultFilter = "envoy.filters.http.fault"
	CORSFilter  = "envoy.filters.http.cors"
)

// The place in the dynamic metadata of a request that has the payload of its valid token.
const (
	TokenFilter  = "envoy.filters.http.jwt_authn"
	TokenPayload = "payload"
)

// library tells whether a connection manager belongs to an application that uses xDS through a
// gRPC library, which supports few filters.
type library int

const (
	// noLibrary means an Envoy.
	noLibrary library = iota
	// LibraryClient sends requests, and LibraryServer receives them.
	LibraryClient
	LibraryServer
)

// Filters selects the HTTP filters of a connection manager. The zero value is that of an Envoy
// without options.
type Filters struct {
	// Plugins are the filters that users configure.
	Plugins Plugins
	// GRPCWeb translates gRPC-Web requests of browsers.
	GRPCWeb bool
	// OffersHTTP makes mutual TLS to the upstream offer the ALPN of requests.
	OffersHTTP bool
	// Denied refuses requests of denied identities where network filters are not available; nil
	// refuses none.
	Denied *Denied
	// Authentication are the filters that validate tokens.
	Authentication []*hcmv3.HttpFilter
	// External are the filters that ask external authorizers, and Authorization those that decide
	// which requests are accepted.
	External      []*hcmv3.HttpFilter
	Authorization []*hcmv3.HttpFilter
	// NamesRules adds a header to denied requests that names the rule.
	NamesRules bool
	// AccessLog are logs besides those of Observed.
	AccessLog []*accesslogv3.AccessLog
	// Observed is what is recorded about the requests.
	Observed Observed
	// Records are the headers that the agent can record; nil means that it records no requests.
	Records []string
	// Sessions keeps the requests of a client at one endpoint if the route says so.
	Sessions bool
	// Library is set for applications without an Envoy.
	Library library
}

// filterRow is one HTTP filter, or the position of user-defined filters.
type filterRow struct {
	name     string
	config   proto.Message
	on       bool
	optional bool   // a proxy that does not support the filter ignores it
	reason   string // why the filter has this position
	made     []*hcmv3.HttpFilter
}

// table returns all HTTP filters in the order in which they process a request. It is the only
// place that adds HTTP filters to a connection manager.
func (f Filters) table() []filterRow {
	envoy := f.Library == noLibrary
	return []filterRow{
		{made: denialHeader(), on: envoy && f.NamesRules, reason: "the last to see the response, so it names the rule of whichever filter denies the request"},
		{made: f.Observed.Keep, on: envoy, reason: "keeps what loggers need of a request before other filters change or refuse it"},
		{made: f.Denied.httpFilters(), on: f.Library == LibraryServer, reason: "refuses denied peers before anything reads the request"},
		{made: f.External, on: envoy, reason: "external authorizers see the request as it was sent, before plugins and the rules of the mesh"},
		{made: f.Plugins[extensionsv1alpha1.PluginPhase_AUTHN], on: envoy, reason: "authenticates before the mesh looks at tokens"},
		{made: f.Authentication, on: f.Library != LibraryClient, reason: "validates tokens before anything decides by them"},
		{made: f.Plugins[extensionsv1alpha1.PluginPhase_AUTHZ], on: envoy, reason: "authorizes a known caller before the rules of the mesh"},
		{made: f.Authorization, on: f.Library != LibraryClient, reason: "refuses requests before later filters act on them, or answer them"},
		{made: f.Plugins[extensionsv1alpha1.PluginPhase_STATS], on: envoy, reason: "sees the requests that were let in"},
		{made: f.Plugins[extensionsv1alpha1.PluginPhase_UNSPECIFIED_PHASE], on: envoy, reason: "the last filters of users, before what answers instead of the upstream"},
		{name: "envoy.filters.http.grpc_web", config: &grpcwebv3.GrpcWeb{}, on: envoy && f.GRPCWeb, reason: "filters of users see what was sent, and later filters see gRPC"},
		{name: "envoy.filters.http.grpc_stats", config: grpcStats(), on: envoy, reason: "counts every gRPC request, also those that later filters answer"},
		{name: FaultFilter, config: &faultv3.HTTPFault{}, on: f.Library != LibraryServer, optional: !envoy, reason: "acts as the upstream, so behind what counts requests; idle unless the route names a fault"},
		{name: CORSFilter, config: &corsv3.Cors{}, on: envoy, reason: "answers preflight requests that no fault hit; idle unless the route has a policy"},
		{name: "envoy.filters.http.set_filter_state", config: offersHTTP(), on: envoy && f.OffersHTTP, reason: "only for requests that are sent to the upstream"},
		{name: SessionFilter, config: &sessionv3.StatefulSession{}, on: envoy && f.Sessions, reason: "chooses the endpoint of requests that are sent; idle unless the route names a session"},
		{name: "envoy.filters.http.router", config: &routerv3.Router{}, on: true, reason: "terminal: sends the request, so nothing can follow"},
	}
}

// Apply sets the HTTP filters of a connection manager.
func (f Filters) Apply(hcm *hcmv3.HttpConnectionManager) {
	hcm.HttpFilters = nil
	if f.NamesRules {
		hcm.LocalReplyConfig = denialReplies(f.Authorization)
	}
	for _, row := range f.table() {
		if !row.on {
			continue
		}
		hcm.HttpFilters = append(hcm.HttpFilters, row.made...)
		if row.config != nil {
			f := RequestFilter(row.name, row.config)
			f.IsOptional = row.optional
			hcm.HttpFilters = append(hcm.HttpFilters, f)
		}
	}
}

// RequestFilter returns an HTTP filter.
func RequestFilter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: Pack(config)}}
}

func (d *Denied) httpFilters() []*hcmv3.HttpFilter {
	if d == nil || d.http == nil {
		return nil
	}
	return []*hcmv3.HttpFilter{d.http}
}

func grpcStats() proto.Message {
	return &grpcstatsv3.FilterConfig{
		EmitFilterState:        true,
		PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{StatsForAllMethods: wrapperspb.Bool(false)},
	}
}

// offersHTTP returns the filter that makes mutual TLS to a port of unknown protocol offer the ALPN
// names of HTTP, so that the server handles the connection as HTTP. None of these names is one
// that a server could select: the first bytes determine the HTTP version.
func offersHTTP() proto.Message {
	return &httpsetfilterstatev3.Config{
		OnRequestHeaders: []*setfilterstatev3.FilterStateValue{{
			Key: &setfilterstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.network.application_protocols"},
			Value: &setfilterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
				Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
					Specifier: &corev3.DataSource_InlineString{InlineString: ALPNMeshHTTP1 + "," + ALPNMesh},
				}},
			}},
			SharedWithUpstream: setfilterstatev3.FilterStateValue_ONCE,
		}},
	}
}
