// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xds

import (
	"encoding/json"
	"fmt"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// sdsCluster is the cluster of the agent's bootstrap that secrets come from.
const sdsCluster = `{"name":"sds-grpc","type":"STATIC","connect_timeout":"1s",
	"typed_extension_protocol_options":{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions":{
		"@type":"type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions","explicit_http_config":{"http2_protocol_options":{}}}},
	"load_assignment":{"cluster_name":"sds-grpc","endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"pipe":{"path":"./socket"}}}}]}]}}`

// Static returns a bootstrap, as JSON, that contains the resources of a proxy, for envoy --mode
// validate. Routes, virtual hosts and extensions are embedded in listeners, and endpoints in
// clusters. Extension returns the configuration of a TypeExtension resource; if it returns nil, the
// filter is left out.
func Static(set func(typeURL string) *Set, extension func(*Resource) (*anypb.Any, error)) ([]byte, error) {
	s := static{set: set, extension: extension}
	clusters, err := s.clusters()
	if err != nil {
		return nil, err
	}
	listeners, err := s.listeners()
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"node": map[string]any{"id": "static", "cluster": "static"},
		"layered_runtime": map[string]any{"layers": []any{map[string]any{ // as in the agent's bootstrap
			"name": "global", "static_layer": map[string]any{"re2.max_program_size.error_level": "32768"},
		}}},
		"static_resources": map[string]any{"clusters": clusters, "listeners": listeners},
	})
}

// WithoutModules returns the configuration of an extension; nil for those of Wasm, whose modules only
// agents have.
func WithoutModules(r *Resource) (*anypb.Any, error) {
	config, err := ExtensionConfig(r)
	if err != nil || config.MessageIs(&httpwasmv3.Wasm{}) {
		return nil, err
	}
	return config, nil
}

type static struct {
	set       func(typeURL string) *Set
	extension func(*Resource) (*anypb.Any, error)
}

func (s static) clusters() ([]json.RawMessage, error) {
	out := []json.RawMessage{json.RawMessage(sdsCluster)}
	endpoints := s.set(TypeEndpoint)
	for _, r := range s.set(TypeCluster).Resources {
		c := &clusterv3.Cluster{}
		if err := r.UnmarshalTo(c); err != nil {
			return nil, err
		}
		if c.GetType() == clusterv3.Cluster_EDS {
			assignment := endpoints.Get(c.GetName())
			if assignment == nil {
				return nil, fmt.Errorf("the cluster %s has no endpoints", c.GetName())
			}
			c.LoadAssignment = &endpointv3.ClusterLoadAssignment{}
			if err := assignment.UnmarshalTo(c.GetLoadAssignment()); err != nil {
				return nil, err
			}
			c.EdsClusterConfig, c.ClusterDiscoveryType = nil, &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		}
		raw, err := protojson.Marshal(c)
		if err != nil {
			return nil, fmt.Errorf("write the cluster %s: %w", c.GetName(), err)
		}
		out = append(out, raw)
	}
	return out, nil
}

func (s static) listeners() ([]json.RawMessage, error) {
	var out []json.RawMessage
	for _, r := range s.set(TypeListener).Resources {
		l := &listenerv3.Listener{}
		if err := r.UnmarshalTo(l); err != nil {
			return nil, err
		}
		chains := l.GetFilterChains()
		if l.GetDefaultFilterChain() != nil {
			chains = append(chains[:len(chains):len(chains)], l.GetDefaultFilterChain())
		}
		for _, chain := range chains {
			if err := s.embed(chain); err != nil {
				return nil, fmt.Errorf("the listener %s: %w", l.GetName(), err)
			}
		}
		raw, err := protojson.Marshal(l)
		if err != nil {
			return nil, fmt.Errorf("write the listener %s: %w", l.GetName(), err)
		}
		out = append(out, raw)
	}
	return out, nil
}

// embed replaces the names of routes and extensions in a filter chain by their configurations.
func (s static) embed(chain *listenerv3.FilterChain) error {
	var filters []*listenerv3.Filter
	for _, f := range chain.GetFilters() {
		if f.GetConfigDiscovery() != nil {
			config, err := s.extensionOf(f.GetName())
			if err != nil {
				return err
			}
			if config == nil {
				continue
			}
			f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: config}
		}
		filters = append(filters, f)
		hcm := &hcmv3.HttpConnectionManager{}
		if !f.GetTypedConfig().MessageIs(hcm) {
			continue
		}
		if err := f.GetTypedConfig().UnmarshalTo(hcm); err != nil {
			return err
		}
		if err := s.embedHTTP(hcm); err != nil {
			return err
		}
		packed := &anypb.Any{}
		if err := packed.MarshalFrom(hcm); err != nil {
			return err
		}
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
	}
	chain.Filters = filters
	return nil
}

func (s static) embedHTTP(hcm *hcmv3.HttpConnectionManager) error {
	var filters []*hcmv3.HttpFilter
	for _, f := range hcm.GetHttpFilters() {
		if f.GetConfigDiscovery() != nil {
			config, err := s.extensionOf(f.GetName())
			if err != nil {
				return err
			}
			if config == nil {
				continue
			}
			f.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}
		}
		filters = append(filters, f)
	}
	hcm.HttpFilters = filters
	if hcm.GetRds() == nil {
		return nil
	}
	name, routes := hcm.GetRds().GetRouteConfigName(), &routev3.RouteConfiguration{}
	r := s.set(TypeRoute).Get(name)
	if r == nil {
		return fmt.Errorf("there are no routes %q", name)
	}
	if err := r.UnmarshalTo(routes); err != nil {
		return err
	}
	if routes.GetVhds() != nil {
		routes.Vhds = nil
		for _, r := range s.set(TypeVirtualHost).Resources {
			host := &routev3.VirtualHost{}
			if !strings.HasPrefix(r.Name, name+"/") {
				continue
			}
			if err := r.UnmarshalTo(host); err != nil {
				return err
			}
			routes.VirtualHosts = append(routes.VirtualHosts, host)
		}
	}
	hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
	return nil
}

// extensionOf returns the configuration of an extension; nil if its filter is left out.
func (s static) extensionOf(name string) (*anypb.Any, error) {
	r := s.set(TypeExtension).Get(name)
	if r == nil {
		return nil, fmt.Errorf("there is no extension %q", name)
	}
	return s.extension(r)
}

// ExtensionConfig returns the configuration that a TypeExtension resource contains.
func ExtensionConfig(r *Resource) (*anypb.Any, error) {
	e := &corev3.TypedExtensionConfig{}
	err := r.UnmarshalTo(e)
	return e.GetTypedConfig(), err
}

// UnmarshalTo unmarshals the message of the resource into m.
func (r *Resource) UnmarshalTo(m proto.Message) error {
	a := &anypb.Any{}
	if err := proto.Unmarshal(r.Any, a); err != nil {
		return fmt.Errorf("read %s: %w", r.Name, err)
	}
	if err := a.UnmarshalTo(m); err != nil {
		return fmt.Errorf("read %s: %w", r.Name, err)
	}
	return nil
}
