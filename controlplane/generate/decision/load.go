// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Load returns the Envoy of a proxy with the listeners and extensions of the given sets.
func Load(listeners, extensions *xds.Set, proxy *model.Proxy) (*Envoy, error) {
	cfg := Config{Gateway: proxy.Role == node.Router, Minor: proxy.EnvoyMinor()}
	for _, r := range listeners.Resources {
		l := &listenerv3.Listener{}
		if err := r.UnmarshalTo(l); err != nil {
			return nil, err
		}
		cfg.Listeners = append(cfg.Listeners, l)
	}
	cfg.Extension = func(name string) *anypb.Any {
		r := extensions.Get(name)
		config := &corev3.TypedExtensionConfig{}
		if r == nil || r.UnmarshalTo(config) != nil {
			return nil
		}
		return config.GetTypedConfig()
	}
	return New(cfg), nil
}
