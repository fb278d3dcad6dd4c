// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// ProxySettings are the settings of one proxy, taken from its ProxyConfig and its node metadata.
// Nil means that nothing is set. The value is immutable.
type ProxySettings struct {
	// Configured is true if the proxy sent its ProxyConfig. It replaces the ProxyConfig of the mesh
	// config, which the agent has already merged into it.
	Configured bool
	// Topology describes the proxies in front of a gateway; nil means none.
	Topology *meshv1alpha1.Topology
	// Headers are the headers that the proxy adds; nil means the defaults.
	Headers *meshv1alpha1.ProxyConfig_ProxyHeaders
	// Tracing is that of the ProxyConfig; nil means the default. No listener is built for it alone, so
	// it is not in Key.
	Tracing *meshv1alpha1.Tracing
	// HTTP10 accepts HTTP/1.0 requests.
	HTTP10 bool
	// DeniedBy adds a header to denied requests that names the rule.
	DeniedBy bool
	// IdleTimeout is the idle timeout of connections; 0 means Envoy's default.
	IdleTimeout time.Duration
	// Unprivileged is true if the proxy must not listen on ports below 1024.
	Unprivileged bool
	// InboundBalance and OutboundBalance distribute connections evenly over the
	// threads of the proxy.
	InboundBalance, OutboundBalance bool
	// Records are the headers in the log of the requests to the workload; nil means that there is no
	// such log.
	Records []string
	// ReportsKeys is true if the agent reports tokens that no known key verifies.
	ReportsKeys bool
	// DelimitedStats is true if the names of stats of its clusters and connection managers end with a
	// semicolon, where its Envoy splits them.
	DelimitedStats bool
	// Key is equal for proxies with equal settings, and empty if nothing is set.
	// [ProxySettings.Keyed] sets it.
	Key string
}

// Keyed returns the settings with their key; nil if nothing is set.
func (s ProxySettings) Keyed() *ProxySettings {
	s.Key = ""
	if s.HTTP10 || s.DeniedBy || s.IdleTimeout != 0 || s.Unprivileged || s.InboundBalance || s.OutboundBalance {
		s.Key = fmt.Sprintf("%t/%t/%s/%t/%t/%t", s.HTTP10, s.DeniedBy, s.IdleTimeout, s.Unprivileged, s.InboundBalance, s.OutboundBalance)
	}
	for _, message := range []proto.Message{s.Topology, s.Headers} {
		if proto.Size(message) > 0 {
			text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(message) // fails only for invalid UTF-8, which the decoder rejects
			s.Key += fmt.Sprintf("/%s=%q", message.ProtoReflect().Descriptor().Name(), text)
		}
	}
	s.Key += s.builtKey()
	if s.Key == "" && !s.Configured {
		return nil
	}
	return &s
}

// Over returns the settings of a proxy with the default ProxyConfig of the mesh applied.
func (s *ProxySettings) Over(mesh *meshv1alpha1.ProxyConfig) *ProxySettings {
	if s != nil && s.Configured || mesh.GetGatewayTopology() == nil && mesh.GetProxyHeaders() == nil {
		return s
	}
	var with ProxySettings
	if s != nil {
		with = *s
	}
	with.Topology, with.Headers = mesh.GetGatewayTopology(), mesh.GetProxyHeaders()
	return with.Keyed()
}

// GatewayTopology returns Topology. The settings may be nil.
func (s *ProxySettings) GatewayTopology() *meshv1alpha1.Topology {
	if s == nil {
		return nil
	}
	return s.Topology
}

// Recorded returns Records. The settings may be nil.
func (s *ProxySettings) Recorded() []string {
	if s == nil {
		return nil
	}
	return s.Records
}

// DelimitsStats returns DelimitedStats. The settings may be nil.
func (s *ProxySettings) DelimitsStats() bool { return s != nil && s.DelimitedStats }

// builtKey is the part of the key for the settings that listeners are built with.
func (s *ProxySettings) builtKey() (key string) {
	if len(s.Records) > 0 {
		key = fmt.Sprintf("/records=%q", s.Records)
	}
	if s.ReportsKeys {
		key += "/keys"
	}
	if s.DelimitedStats {
		key += "/delimited"
	}
	return key
}

// Changes reports whether listeners that were built for all proxies need changes for this one.
func (s *ProxySettings) Changes() bool { return s != nil && s.Key != s.builtKey() }

// NamesRules returns DeniedBy. The settings may be nil.
func (s *ProxySettings) NamesRules() bool { return s != nil && s.DeniedBy }

// RouteKey is like Key, but covers only the settings that affect routes.
func (s *ProxySettings) RouteKey() string {
	if s == nil || !s.Headers.GetAttemptCount().GetDisabled().GetValue() && !s.Headers.GetXForwardedHost().GetEnabled().GetValue() {
		return ""
	}
	return fmt.Sprintf("%t/%t", s.Headers.GetAttemptCount().GetDisabled().GetValue(), s.Headers.GetXForwardedHost().GetEnabled().GetValue())
}

// String returns the key.
func (s *ProxySettings) String() string {
	if s == nil {
		return ""
	}
	return s.Key
}
