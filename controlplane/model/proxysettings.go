// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// ProxySettings are what was set for one proxy: parts of its ProxyConfig, and of
// the metadata of its node. A nil one has nothing set. It is never written to.
type ProxySettings struct {
	// Configured is true if the proxy gave its ProxyConfig; then that of the mesh
	// config counts no more, since its agent has merged it in.
	Configured bool
	// Topology is what stands before a gateway; nil means nothing.
	Topology *meshv1alpha1.Topology
	// Headers say which headers the proxy adds; nil means the defaults.
	Headers *meshv1alpha1.ProxyConfig_ProxyHeaders
	// HTTP10 has requests in HTTP/1.0 served.
	HTTP10 bool
	// IdleTimeout ends connections on which nothing comes; 0 leaves it to Envoy.
	IdleTimeout time.Duration
	// Unprivileged is true if the proxy must not listen at ports below 1024.
	Unprivileged bool
	// InboundBalance and OutboundBalance have connections spread evenly over the
	// threads of the proxy.
	InboundBalance, OutboundBalance bool
	// Key is equal for proxies with equal settings, and empty if nothing is set;
	// [ProxySettings.Keyed] makes it.
	Key string
}

// Keyed returns the settings with their key; nil if nothing is set.
func (s ProxySettings) Keyed() *ProxySettings {
	s.Key = ""
	if s.HTTP10 || s.IdleTimeout != 0 || s.Unprivileged || s.InboundBalance || s.OutboundBalance {
		s.Key = fmt.Sprintf("%t/%s/%t/%t/%t", s.HTTP10, s.IdleTimeout, s.Unprivileged, s.InboundBalance, s.OutboundBalance)
	}
	for _, message := range []proto.Message{s.Topology, s.Headers} {
		if proto.Size(message) > 0 {
			text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(message) // fails for invalid UTF-8 alone, which its reader refuses
			s.Key += fmt.Sprintf("/%s=%q", message.ProtoReflect().Descriptor().Name(), text)
		}
	}
	if s.Key == "" && !s.Configured {
		return nil
	}
	return &s
}

// Over returns the settings of a proxy in a mesh whose proxies have a ProxyConfig
// unless they say otherwise.
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

// GatewayTopology is Topology, nil of nil settings.
func (s *ProxySettings) GatewayTopology() *meshv1alpha1.Topology {
	if s == nil {
		return nil
	}
	return s.Topology
}

// RouteKey is Key for what only routes depend on.
func (s *ProxySettings) RouteKey() string {
	if s == nil || !s.Headers.GetAttemptCount().GetDisabled().GetValue() && !s.Headers.GetXForwardedHost().GetEnabled().GetValue() {
		return ""
	}
	return fmt.Sprintf("%t/%t", s.Headers.GetAttemptCount().GetDisabled().GetValue(), s.Headers.GetXForwardedHost().GetEnabled().GetValue())
}

// String is the key.
func (s *ProxySettings) String() string {
	if s == nil {
		return ""
	}
	return s.Key
}
