// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"errors"
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// connectionManager is the name of the filter that has HTTP filters.
const connectionManager = "envoy.filters.network.http_connection_manager"

// Listener applies the patches of listeners and of the routes in them. The context of a listener of
// a sidecar follows from its direction.
func (p Patches) Listener(l *listenerv3.Listener, place Place) Outcome[*listenerv3.Listener] {
	if place.Context != networkingv1alpha3.EnvoyFilter_GATEWAY {
		place.Context = networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND
		if l.GetTrafficDirection() == corev3.TrafficDirection_INBOUND {
			place.Context = networkingv1alpha3.EnvoyFilter_SIDECAR_INBOUND
		}
	}
	name := l.GetName()
	change := func(r *run, l *listenerv3.Listener) bool {
		keep := r.listener(l)
		if keep && r.Denied != nil {
			r.Denied.Guard(l)
		}
		return keep
	}
	return apply(l, place, p, ListenerKinds, change, func(l *listenerv3.Listener) error {
		if l.GetName() != name {
			return errors.New("it renames the listener: leave the name out")
		}
		return checkResource(l)
	})
}

// Added returns the messages that patches add to those of a type, with the patches: listeners,
// clusters or configurations of extensions. A patch without a context adds to the outbound resources
// of a sidecar.
func (p Patches) Added(kind ApplyTo, gateway bool) (messages []proto.Message, of []*Patch) {
	contexts := []Context{networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND, networkingv1alpha3.EnvoyFilter_SIDECAR_INBOUND}
	if gateway {
		contexts = []Context{networkingv1alpha3.EnvoyFilter_GATEWAY}
	}
	for _, one := range p.kind[kind] {
		if c := one.match.GetContext(); one.Operation == add && (c == networkingv1alpha3.EnvoyFilter_ANY || slices.Contains(contexts, c)) {
			messages, of = append(messages, proto.Clone(one.value)), append(of, one)
		}
	}
	return messages, of
}

// Kinds of resources that patches add.
const (
	Listeners  = listener
	Clusters   = cluster
	Extensions = extension
)

func (r *run) listener(l *listenerv3.Listener) bool {
	r.innerRoutes(l)
	for _, p := range r.of(listener) {
		if p.Operation == add || !p.matchesListener(l) {
			continue
		}
		r.hit(p)
		if p.Operation == remove {
			return false
		}
		p.into(l)
	}
	for _, p := range r.of(listenerPart) {
		if !p.matchesListener(l) {
			continue
		}
		name, ok := p.listenerFilter(), false
		l.ListenerFilters, ok = edit(l.ListenerFilters, p, name == "", func(f *listenerv3.ListenerFilter) bool { return name == "" || f.GetName() == name })
		if ok {
			r.hit(p)
		}
	}
	r.chains(l)
	return true
}

func (r *run) chains(l *listenerv3.Listener) {
	l.FilterChains = slices.DeleteFunc(l.FilterChains, func(c *listenerv3.FilterChain) bool { return !r.chain(l, c) })
	if c := l.GetDefaultFilterChain(); c != nil && !r.chain(l, c) {
		l.DefaultFilterChain = nil
	}
	for _, p := range r.of(filterChain) {
		if p.Operation == add && p.matchesListener(l) {
			r.hit(p)
			l.FilterChains = append(l.FilterChains, proto.Clone(p.value).(*listenerv3.FilterChain))
		}
	}
}

// chain patches one filter chain and reports whether it stays.
func (r *run) chain(l *listenerv3.Listener, c *listenerv3.FilterChain) bool {
	if len(c.GetFilters()) == 0 {
		return true
	}
	for _, p := range r.of(filterChain) {
		if p.Operation == add || !p.matchesListener(l) || !p.matchesChain(l, c) {
			continue
		}
		if p.Operation == remove {
			r.hit(p)
			return false
		}
		if err := mergeChain(c, p); err != nil {
			r.fail(p, err)
			continue
		}
		r.hit(p)
	}
	var here []*Patch
	for _, p := range r.of(networkFilter) {
		if p.matchesListener(l) && p.matchesChain(l, c) {
			here = append(here, p)
		}
	}
	denies := r.denies(c, here)
	c.Filters = c.Filters[len(denies):]
	for _, p := range here {
		if p.merges() {
			continue
		}
		name, ok := p.filter(), false
		c.Filters, ok = edit(c.Filters, p, name == "", func(f *listenerv3.Filter) bool { return name == "" || f.GetName() == name })
		if ok {
			r.hit(p)
		}
	}
	for _, f := range c.GetFilters() {
		for _, p := range here {
			if name := p.filter(); p.merges() && (name == "" || f.GetName() == name) {
				r.mergeFilter(p, f)
			}
		}
		if f.GetName() == connectionManager {
			r.manager(l, c, f)
		}
	}
	c.Filters = slices.Concat(denies, c.Filters)
	return true
}

// denies returns the first filters of a chain, those that refuse denied peers. It records which
// patches name one of them.
func (r *run) denies(c *listenerv3.FilterChain, patches []*Patch) []*listenerv3.Filter {
	if r.Denied == nil {
		return nil
	}
	n := 0
	for n < len(c.GetFilters()) && r.Denied.Owns(c.GetFilters()[n]) {
		for _, p := range patches {
			if name := c.GetFilters()[n].GetName(); p.filter() == name && (p.merges() || p.Operation == remove || p.Operation == replace) {
				r.kept[p] = name
			}
		}
		n++
	}
	return slices.Clone(c.GetFilters()[:n])
}

// mergeChain merges a patch into a filter chain. The settings of a transport socket with the same
// name are merged, and nothing else of the patch then, as in Istio.
func mergeChain(c *listenerv3.FilterChain, p *Patch) error {
	want, has := p.value.(*listenerv3.FilterChain).GetTransportSocket(), c.GetTransportSocket()
	if want == nil || has == nil || want.GetName() != has.GetName() {
		p.into(c)
		return nil
	}
	return mergeSocket(has, want, p)
}

// mergeSocket merges the settings of a transport socket.
func mergeSocket(dst, src *corev3.TransportSocket, p *Patch) error {
	if dst.GetTypedConfig() == nil || src.GetTypedConfig() == nil {
		return nil
	}
	merged, err := mergeAny(dst.GetTypedConfig(), src.GetTypedConfig(), p.Operation == mergeLists)
	if err != nil {
		return fmt.Errorf("transport_socket: %w", err)
	}
	dst.ConfigType = &corev3.TransportSocket_TypedConfig{TypedConfig: merged}
	return nil
}

func (r *run) mergeFilter(p *Patch, f *listenerv3.Filter) {
	value := p.value.(*listenerv3.Filter)
	config, ok := r.mergeTyped(p, f.GetName(), f.GetTypedConfig(), value.GetTypedConfig())
	if !ok {
		return
	}
	if config != nil {
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: config}
	}
	if value.GetName() != "" {
		f.Name = value.GetName()
	}
}

// mergeTyped returns the merged configuration of a filter, nil if the patch has none, and whether
// the patch is applied.
func (r *run) mergeTyped(p *Patch, name string, has, value *anypb.Any) (*anypb.Any, bool) {
	if has == nil {
		return nil, false // discovered over ECDS
	}
	if value == nil {
		r.hit(p)
		return nil, true
	}
	config, err := mergeAny(has, value, p.Operation == mergeLists)
	if err != nil {
		r.fail(p, fmt.Errorf("filter %s: %w", name, err))
		return nil, false
	}
	r.hit(p)
	return config, true
}

// manager calls change if a filter is an HTTP connection manager, and stores the result if change
// returns true.
func manager(f *listenerv3.Filter, change func(*hcmv3.HttpConnectionManager) bool) {
	h := &hcmv3.HttpConnectionManager{}
	if !f.GetTypedConfig().MessageIs(h) || f.GetTypedConfig().UnmarshalTo(h) != nil || !change(h) {
		return
	}
	out := &anypb.Any{}
	if anypb.MarshalFrom(out, h, proto.MarshalOptions{Deterministic: true}) == nil {
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: out}
	}
}

// manager patches the HTTP filters of a connection manager.
func (r *run) manager(l *listenerv3.Listener, c *listenerv3.FilterChain, f *listenerv3.Filter) {
	var here []*Patch
	for _, p := range r.of(httpFilter) {
		if name := p.filter(); p.matchesListener(l) && p.matchesChain(l, c) && (name == "" || name == f.GetName()) {
			here = append(here, p)
		}
	}
	if len(here) == 0 {
		return
	}
	manager(f, func(h *hcmv3.HttpConnectionManager) bool {
		for _, p := range here {
			if p.merges() {
				continue
			}
			if p.Operation == add && p.class != networkingv1alpha3.EnvoyFilter_Patch_UNSPECIFIED {
				at := classPosition(h.GetHttpFilters(), p.class)
				h.HttpFilters = slices.Insert(h.HttpFilters, at, proto.Clone(p.value).(*hcmv3.HttpFilter))
				r.hit(p)
				continue
			}
			name, ok := p.subFilter(), false
			h.HttpFilters, ok = edit(h.HttpFilters, p, name == "", func(f *hcmv3.HttpFilter) bool { return name == "" || f.GetName() == name })
			if ok {
				r.hit(p)
			}
		}
		for _, f := range h.GetHttpFilters() {
			for _, p := range here {
				if name := p.subFilter(); p.merges() && (name == "" || f.GetName() == name) {
					r.mergeHTTP(p, f)
				}
			}
		}
		return true
	})
}

func (r *run) mergeHTTP(p *Patch, f *hcmv3.HttpFilter) {
	value := p.value.(*hcmv3.HttpFilter)
	config, ok := r.mergeTyped(p, f.GetName(), f.GetTypedConfig(), value.GetTypedConfig())
	if !ok {
		return
	}
	if config != nil {
		f.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}
	}
	if value.GetName() != "" {
		f.Name = value.GetName()
	}
}

// classPosition returns where a filter of a class is inserted: after the filters of authentication,
// after those of authorization, or before those that only observe requests.
func classPosition(filters []*hcmv3.HttpFilter, class networkingv1alpha3.EnvoyFilter_Patch_FilterClass) int {
	const authn, authz = "envoy.filters.http.jwt_authn", "envoy.filters.http.rbac"
	after := []string{authn}
	switch class {
	case networkingv1alpha3.EnvoyFilter_Patch_AUTHZ:
		after = []string{authn, authz, "envoy.filters.http.ext_authz"}
	case networkingv1alpha3.EnvoyFilter_Patch_STATS:
		return max(0, len(filters)-1) // before the router
	}
	for i, f := range slices.Backward(filters) {
		if slices.Contains(after, f.GetName()) {
			return i + 1
		}
	}
	return 0
}
