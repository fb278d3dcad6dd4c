// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/net/http/httpguts"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/expression"
)

// headerChange contains header operations in Envoy's format.
type headerChange struct {
	add    []*corev3.HeaderValueOption
	remove []string
}

// headerOperations converts header operations: added headers first, each group sorted by name.
// Operations on the host are left to [authority], those on other pseudo-headers are dropped, because
// Envoy rejects them, and so are names that servers reject, and values with commands that the proxy's
// Envoy lacks.
func (b *Builder) headerOperations(in *networkingv1alpha3.Headers_HeaderOperations) headerChange {
	var out headerChange
	option := func(name, value string, action corev3.HeaderValueOption_HeaderAppendAction) {
		switch lower := strings.ToLower(name); {
		case lower == "host" || !httpguts.ValidHeaderFieldName(name):
		default:
			value, newest, since := headerValue(value)
			if since > b.Proxy.EnvoyMinor() {
				b.tooNew = append(b.tooNew, fmt.Sprintf("headers: %q is left out at proxies with an Envoy before 1.%d, which lacks %s of its value: update Envoy", name, since, newest))
				return
			}
			out.add = append(out.add, &corev3.HeaderValueOption{
				Header: &corev3.HeaderValue{Key: name, Value: value}, AppendAction: action,
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
		if !strings.EqualFold(name, "host") && httpguts.ValidHeaderFieldName(name) {
			out.remove = append(out.remove, name)
		}
	}
	return out
}

// authority returns the value that operations set the Host header to, or "".
func authority(in *networkingv1alpha3.Headers_HeaderOperations) (out string) {
	for _, values := range []map[string]string{in.GetAdd(), in.GetSet()} {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if strings.EqualFold(name, "host") || strings.EqualFold(name, ":authority") {
				out = values[name]
			}
		}
	}
	return out
}

// headerValue returns a value unchanged if every % in it starts a command that Envoy knows. Otherwise it
// escapes the value, which only the Gateway API allows: Envoy would reject the routes of all services
// because of it.
func headerValue(value string) (out, newest string, since int) {
	since, newest, err := expression.Header(value)
	if err != nil {
		return strings.ReplaceAll(value, "%", "%%"), "", 0
	}
	return value, newest, since
}
