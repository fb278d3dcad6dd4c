// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// headerChange contains header operations in Envoy's format.
type headerChange struct {
	add       []*corev3.HeaderValueOption
	remove    []string
	authority string // new value of the Host header
}

// headerOperations converts header operations: added headers first, each group sorted by name.
// Operations on other pseudo-headers are dropped, because Envoy rejects them.
func headerOperations(in *networkingv1alpha3.Headers_HeaderOperations) headerChange {
	var out headerChange
	option := func(name, value string, action corev3.HeaderValueOption_HeaderAppendAction) {
		switch lower := strings.ToLower(name); {
		case lower == "host" || lower == ":authority":
			out.authority = value
		case strings.HasPrefix(lower, ":"):
		default:
			out.add = append(out.add, &corev3.HeaderValueOption{
				Header: &corev3.HeaderValue{Key: name, Value: headerValue(value)}, AppendAction: action,
			})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetAdd())) {
		option(name, in.GetAdd()[name], corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD)
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetSet())) {
		option(name, in.GetSet()[name], corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD)
	}
	for _, name := range in.GetRemove() {
		if lower := strings.ToLower(name); lower != "host" && !strings.HasPrefix(lower, ":") {
			out.remove = append(out.remove, name)
		}
	}
	return out
}

// headerCommand matches a substitution command that all supported Envoy versions know.
var headerCommand = regexp.MustCompile(`^%(?:%|(?:PROTOCOL|HOSTNAME|START_TIME|ROUTE_NAME|REQUESTED_SERVER_NAME|RESPONSE_CODE|` +
	`RESPONSE_CODE_DETAILS|RESPONSE_FLAGS|UPSTREAM_HOST|UPSTREAM_CLUSTER|UPSTREAM_LOCAL_ADDRESS|UPSTREAM_REMOTE_ADDRESS|` +
	`DOWNSTREAM_(?:REMOTE|LOCAL|DIRECT_REMOTE)_ADDRESS(?:_WITHOUT_PORT)?|DOWNSTREAM_LOCAL_PORT|DOWNSTREAM_PEER_(?:URI_SAN|SUBJECT|ISSUER|SERIAL|FINGERPRINT_256)|` +
	`DOWNSTREAM_LOCAL_(?:URI_SAN|SUBJECT)|DOWNSTREAM_TLS_(?:VERSION|CIPHER|SESSION_ID)|CONNECTION_ID|BYTES_RECEIVED|BYTES_SENT|DURATION|` +
	`DOWNSTREAM_PEER_CERT(?:_V_START|_V_END)?|START_TIME\([-%A-Za-z0-9 .:/_+]*\)|DYNAMIC_METADATA\([A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)*\)|PER_REQUEST_STATE\([A-Za-z0-9_.-]+\))%|` +
	`(?:REQ|RESP|TRAILER)\([:A-Za-z0-9_-]+(?:\?[:A-Za-z0-9_-]+)?\)(?::[0-9]{1,4})?%)`)

// headerValue returns a value unchanged if every % in it starts a command that Envoy knows.
// Otherwise it escapes the value: Envoy would reject the routes of all services because of it.
func headerValue(value string) string {
	for rest := value; ; {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			return value
		}
		command := headerCommand.FindString(rest[i:])
		if command == "" {
			return strings.ReplaceAll(value, "%", "%%")
		}
		rest = rest[i+len(command):]
	}
}
