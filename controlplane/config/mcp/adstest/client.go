// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package adstest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// State is what a client has, by name. Nobody may write to it.
type State struct {
	// Clusters are those with endpoints of their own, EDSClusters the others.
	Clusters, EDSClusters map[string]*clusterv3.Cluster
	Endpoints             map[string]*endpointv3.ClusterLoadAssignment
	// HTTPListeners have an HTTP connection manager at the end of their last
	// filter chain, TCPListeners something else.
	HTTPListeners, TCPListeners map[string]*listenerv3.Listener
	Routes                      map[string]*routev3.RouteConfiguration
	// Versions are those of the last responses, by type URL.
	Versions map[string]string
}

// Client is one stream.
type Client struct {
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node   *corev3.Node

	mu    sync.Mutex // guards the fields below
	state State
	// changed is closed, and replaced, when state changes or the stream ends.
	changed chan struct{}
	err     error // why the stream has ended; nil while it is open
}

// Connect opens a stream, which ends with ctx, and subscribes.
func Connect(ctx context.Context, conn grpc.ClientConnInterface, node *corev3.Node) (*Client, error) {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	c := &Client{stream: stream, node: node, changed: make(chan struct{}), state: State{Versions: map[string]string{}}}
	for _, typeURL := range []string{resourcev3.ClusterType, resourcev3.ListenerType} {
		if err := c.request(typeURL, "", nil); err != nil {
			return nil, err
		}
	}
	go c.receive()
	return c, nil
}

// Wait waits until a state is as wanted, and gives it. It fails when ctx or the
// stream ends before.
func (c *Client) Wait(ctx context.Context, wanted func(State) bool) (State, error) {
	for {
		c.mu.Lock()
		state, changed, err := c.state, c.changed, c.err
		c.mu.Unlock()
		switch {
		case wanted(state):
			return state, nil
		case err != nil:
			return state, fmt.Errorf("the stream has ended: %w", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return state, fmt.Errorf("wait for a state: %w", context.Cause(ctx))
		}
	}
}

func (c *Client) request(typeURL, nonce string, names []string) error {
	c.mu.Lock()
	version := c.state.Versions[typeURL]
	c.mu.Unlock()
	if nonce == "" {
		version = ""
	}
	return c.stream.Send(&discoveryv3.DiscoveryRequest{
		Node: c.node, TypeUrl: typeURL, ResponseNonce: nonce, VersionInfo: version, ResourceNames: names,
	})
}

// receive takes responses until the stream ends.
func (c *Client) receive() {
	nonces, names := map[string]string{}, map[string][]string{}
	for {
		r, err := c.stream.Recv()
		if err == nil {
			nonces[r.GetTypeUrl()] = r.GetNonce()
			err = c.take(r)
		}
		if err == nil {
			err = c.request(r.GetTypeUrl(), r.GetNonce(), names[r.GetTypeUrl()])
		}
		// What was named by this response is asked for by name.
		follow, wants := c.named(r.GetTypeUrl())
		if err == nil && follow != "" && !slices.Equal(names[follow], wants) {
			names[follow] = wants
			err = c.request(follow, nonces[follow], wants)
		}
		c.mu.Lock()
		c.err = err
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// named returns what the resources of a type name, and its type; "" for none.
func (c *Client) named(typeURL string) (string, []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch typeURL {
	case resourcev3.ClusterType:
		return resourcev3.EndpointType, slices.Sorted(maps.Keys(c.state.EDSClusters))
	case resourcev3.ListenerType:
		names := map[string]bool{}
		for _, l := range c.state.HTTPListeners {
			for _, chain := range chains(l) {
				if name := routeName(chain); name != "" {
					names[name] = true
				}
			}
		}
		return resourcev3.RouteType, slices.Sorted(maps.Keys(names))
	}
	return "", nil
}

// take makes a response the state of its type. Endpoints and routes, which are
// asked for by name, may come one by one.
func (c *Client) take(r *discoveryv3.DiscoveryResponse) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.state
	next.Versions = maps.Clone(next.Versions)
	next.Versions[r.GetTypeUrl()] = r.GetVersionInfo()
	var err error
	switch r.GetTypeUrl() {
	case resourcev3.ClusterType:
		next.Clusters, next.EDSClusters = map[string]*clusterv3.Cluster{}, map[string]*clusterv3.Cluster{}
		err = each(r.GetResources(), func(m *clusterv3.Cluster) {
			if m.GetType() == clusterv3.Cluster_EDS {
				next.EDSClusters[m.GetName()] = m
			} else {
				next.Clusters[m.GetName()] = m
			}
		})
	case resourcev3.ListenerType:
		next.HTTPListeners, next.TCPListeners = map[string]*listenerv3.Listener{}, map[string]*listenerv3.Listener{}
		err = each(r.GetResources(), func(m *listenerv3.Listener) {
			if all := chains(m); len(all) > 0 && manager(all[len(all)-1]) != nil {
				next.HTTPListeners[m.GetName()] = m
			} else {
				next.TCPListeners[m.GetName()] = m
			}
		})
	case resourcev3.EndpointType:
		next.Endpoints = copied(next.Endpoints)
		err = each(r.GetResources(), func(m *endpointv3.ClusterLoadAssignment) { next.Endpoints[m.GetClusterName()] = m })
	case resourcev3.RouteType:
		next.Routes = copied(next.Routes)
		err = each(r.GetResources(), func(m *routev3.RouteConfiguration) { next.Routes[m.GetName()] = m })
	}
	if err == nil {
		c.state = next
	}
	return err
}

func copied[M proto.Message](m map[string]M) map[string]M {
	out := make(map[string]M, len(m))
	maps.Copy(out, m)
	return out
}

// each reads the resources of a response.
func each[M proto.Message](resources []*anypb.Any, take func(M)) error {
	for _, res := range resources {
		m, err := res.UnmarshalNew()
		if err != nil {
			return fmt.Errorf("read a resource: %w", err)
		}
		typed, ok := m.(M)
		if !ok {
			return fmt.Errorf("read a resource: it is a %s", res.GetTypeUrl())
		}
		take(typed)
	}
	return nil
}

// chains are the filter chains of a listener, the default one last.
func chains(l *listenerv3.Listener) []*listenerv3.FilterChain {
	all := slices.Clone(l.GetFilterChains())
	if d := l.GetDefaultFilterChain(); d != nil {
		all = append(all, d)
	}
	return all
}

// manager returns the HTTP connection manager at the end of a chain, or nil.
func manager(chain *listenerv3.FilterChain) *hcmv3.HttpConnectionManager {
	filters := chain.GetFilters()
	if len(filters) == 0 {
		return nil
	}
	m := &hcmv3.HttpConnectionManager{}
	if filters[len(filters)-1].GetTypedConfig().UnmarshalTo(m) != nil {
		return nil // it is another filter
	}
	return m
}

// routeName is the route configuration that a chain asks for, "" if none.
func routeName(chain *listenerv3.FilterChain) string {
	return manager(chain).GetRds().GetRouteConfigName()
}
