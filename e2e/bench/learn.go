// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// learn is a proxy that decodes what it gets, as Envoy would, to find out
// which names a sidecar subscribes and how large the responses are.
func learn(ctx context.Context, address string, k kind) (subs subscriptions, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	subs = subscriptions{kind: k, names: map[string][]byte{}, learnt: map[string][]byte{}}
	conn, err := dialADS(address)
	if err != nil {
		return subs, err
	}
	defer func() { _ = conn.Close() }() // its stream has ended
	s, err := openADS(ctx, conn, k.delta)
	if err != nil {
		return subs, err
	}
	node, err := encodeNode(0, k.redirect)
	if err != nil {
		return subs, err
	}
	if err := s.subscribe(typeCluster, node, nil); err != nil {
		return subs, err
	}
	for len(subs.learnt) < len(types(k.delta)) {
		r, err := s.receive()
		if err != nil {
			return subs, fmt.Errorf("learn what a sidecar gets, of %d types so far: %w", len(subs.learnt), err)
		}
		data := r.data.Materialize()
		r.data.Free()
		if err := s.acknowledge(r, subs.names[r.typeURL]); err != nil {
			return subs, err
		}
		if subs.learnt[r.typeURL] != nil {
			continue
		}
		subs.learnt[r.typeURL] = data
		if err := subs.read(r.typeURL, data); err != nil {
			return subs, err
		}
		if err := s.follow(r.typeURL, subs.names); err != nil {
			return subs, err
		}
	}
	return subs, nil
}

// read takes the names that a response refers to.
func (s *subscriptions) read(typeURL string, data []byte) error {
	if typeURL != typeCluster && typeURL != typeListener {
		return nil
	}
	resources, err := decode(data, s.delta)
	if err != nil {
		return err
	}
	var names []string
	of := typeEndpoint
	for _, resource := range resources {
		if typeURL == typeListener {
			of = typeRoute
			found, err := routeNames(resource)
			if err != nil {
				return err
			}
			names = append(names, found...)
			continue
		}
		var c clusterv3.Cluster
		if err := resource.UnmarshalTo(&c); err != nil {
			return fmt.Errorf("decode a cluster: %w", err)
		}
		if c.GetType() != clusterv3.Cluster_EDS {
			continue
		}
		name := c.GetEdsClusterConfig().GetServiceName()
		if name == "" {
			name = c.GetName()
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return fmt.Errorf("nothing of type %s is referred to: the mesh is empty", of)
	}
	slices.Sort(names)
	s.names[of] = encodeNames(slices.Compact(names))
	return nil
}

// decode returns the resources of a response.
func decode(data []byte, delta bool) ([]*anypb.Any, error) {
	if !delta {
		var r discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("decode a response: %w", err)
		}
		return r.GetResources(), nil
	}
	var r discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("decode a response: %w", err)
	}
	var out []*anypb.Any
	for _, resource := range r.GetResources() {
		out = append(out, resource.GetResource())
	}
	return out, nil
}

// routeNames returns the route configurations that a listener refers to.
func routeNames(resource *anypb.Any) (names []string, err error) {
	var l listenerv3.Listener
	if err := resource.UnmarshalTo(&l); err != nil {
		return nil, fmt.Errorf("decode a listener: %w", err)
	}
	for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		for _, filter := range chain.GetFilters() {
			var h hcmv3.HttpConnectionManager
			if !filter.GetTypedConfig().MessageIs(&h) {
				continue
			}
			if err := filter.GetTypedConfig().UnmarshalTo(&h); err != nil {
				return nil, fmt.Errorf("decode the HTTP filter of listener %s: %w", l.GetName(), err)
			}
			if name := h.GetRds().GetRouteConfigName(); name != "" {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// shorten returns a response with the first resource only.
func shorten(data []byte, delta bool) ([]byte, error) {
	if !delta {
		var r discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("decode a response: %w", err)
		}
		r.Resources = r.Resources[:1]
		return proto.Marshal(&r)
	}
	var r discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("decode a response: %w", err)
	}
	r.Resources = r.Resources[:1]
	return proto.Marshal(&r)
}
