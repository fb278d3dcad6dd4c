// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	httpsetfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// longestClaim bounds what a peer says about itself, in bytes.
const longestClaim = ":63"

// announce returns the mutations that tell the proxy of the destination about the workload. They
// replace what the application, or a client outside the mesh, sent. A route that leads out of the
// mesh removes the headers again; see [envoyconf.HidePeer].
func announce() []*corev3.TypedExtensionConfig {
	config := &earlyv3.HeaderMutation{}
	for _, key := range envoyconf.PeerKeys() {
		config.Mutations = append(config.Mutations, &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_Append{Append: &corev3.HeaderValueOption{
			Header: &corev3.HeaderValue{Key: envoyconf.PeerHeader + key, Value: ofSelf(key)}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}}})
	}
	return []*corev3.TypedExtensionConfig{{Name: "envoy.http.early_header_mutation.header_mutation", TypedConfig: envoyconf.Pack(config)}}
}

// keep returns the filter that keeps values of a request for the loggers, before other filters change
// it or refuse it. With claims, these include what the client says about itself. The claims are only
// shown, beside its principal, which is proven. The agent reads the namespace from the principal:
// Envoy has no cheap way.
func keep(claims bool) []*hcmv3.HttpFilter {
	values := []*setfilterstatev3.FilterStateValue{value(protocolState,
		`%CEL('content-type' in request.headers && request.headers['content-type'].startsWith('application/grpc') ? 'grpc' : 'http')%`)}
	if claims {
		for _, key := range envoyconf.PeerKeys() {
			values = append(values, value(peerState+key, "%REQ("+envoyconf.PeerHeader+key+")"+longestClaim+"%"))
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
