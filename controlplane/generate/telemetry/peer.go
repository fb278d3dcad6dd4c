// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"strings"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	httpsetfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// announce returns the mutations that tell the proxy of the destination about the workload. They
// replace what the application, or a client outside the mesh, sent. A route that leads out of the
// mesh removes the headers again; see [envoyconf.HidePeer].
func announce() []*corev3.TypedExtensionConfig {
	config := &earlyv3.HeaderMutation{}
	set := func(key, value string) {
		config.Mutations = append(config.Mutations, &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_Append{Append: &corev3.HeaderValueOption{
			Header: &corev3.HeaderValue{Key: envoyconf.PeerHeader + key, Value: value}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}}})
	}
	for _, key := range envoyconf.PeerKeys() {
		set(key, ofSelf(key))
	}
	set(envoyconf.PeerAccount, "/sa/"+ofSelf("service"))
	return []*corev3.TypedExtensionConfig{{Name: "envoy.http.early_header_mutation.header_mutation", TypedConfig: envoyconf.Pack(config)}}
}

// agreed is the state of a request whose client describes itself as its identity allows.
const agreed = "outrigger.agreed"

// agreement is a CEL expression that is 'y' if what the client says agrees with its certificate. The
// service account is the name of its service and its app. That of its workload may have a version
// behind it, "-v1" to "-v9", and revision and version are this version, or not set. So an identity has
// at most 28 descriptions, in this cluster or another, and a client cannot fill the metrics with names that it invents.
func agreement() string {
	said := func(key string) string { return "request.headers['" + envoyconf.PeerHeader + key + "']" }
	return strings.NewReplacer(
		"ACCOUNT", said(envoyconf.PeerAccount), "SERVICE", said("service"), "APP", said("app"),
		"WORKLOAD", said("workload"), "REVISION", said("revision"), "VERSION", said("version"),
	).Replace(`connection.uri_san_peer_certificate.endsWith(ACCOUNT) && ACCOUNT.startsWith('/sa/')` +
		` && ACCOUNT.endsWith(SERVICE) && size(ACCOUNT) == size(SERVICE) + 4 && APP == SERVICE` +
		` && (WORKLOAD == SERVICE || WORKLOAD.startsWith(SERVICE) && size(WORKLOAD) == size(SERVICE) + 3 && WORKLOAD.matches('-v[1-9]$'))` +
		` && (REVISION == 'latest' && VERSION == 'unknown' || REVISION == VERSION && REVISION.matches('^v[1-9]$')` +
		` && (WORKLOAD == SERVICE || WORKLOAD.endsWith(REVISION))) ? 'y' : ''`)
}

// keep returns the filter that keeps values of a request for the loggers, before other filters change
// it or refuse it. With claims, these include what the client says about itself, if that agrees with
// its principal. Its cluster is kept only if it is that of the proxy. The agent reads the namespace
// from the principal: Envoy has no cheap way.
func keep(claims bool) []*hcmv3.HttpFilter {
	values := []*setfilterstatev3.FilterStateValue{value(protocolState,
		`%CEL('content-type' in request.headers && request.headers['content-type'].startsWith('application/grpc') ? 'grpc' : 'http')%`)}
	if claims {
		values = append(values, value(agreed, "%CEL("+agreement()+")%"))
		for _, key := range envoyconf.PeerKeys() {
			said := "request.headers['" + envoyconf.PeerHeader + key + "']"
			also := ""
			if key == "cluster" {
				also = " && " + said + " == xds.node.metadata.CLUSTER_ID"
			}
			values = append(values, value(peerState+key, "%CEL(filter_state['"+agreed+"'] == b'y'"+also+" ? "+said+" : '')%"))
		}
	}
	return []*hcmv3.HttpFilter{envoyconf.RequestFilter("envoy.filters.http.set_filter_state", &httpsetfilterstatev3.Config{OnRequestHeaders: values})}
}

func value(key, format string) *setfilterstatev3.FilterStateValue {
	return &setfilterstatev3.FilterStateValue{
		Key: &setfilterstatev3.FilterStateValue_ObjectKey{ObjectKey: key}, FactoryKey: "envoy.string", SkipIfEmpty: true,
		Value: &setfilterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			OmitEmptyValues: true,
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: format},
			}},
		}},
	}
}
