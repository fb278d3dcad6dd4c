// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// PresenceConfig is who hears of proxies that come, and knows their labels.
type PresenceConfig struct {
	// OnConnect takes a proxy before it is served; an error refuses the stream.
	// It must not wait. Config.OnGone hears of all proxies that it was called
	// with. Nil takes all.
	OnConnect func(model.ConnectedProxy) error
	// Labels returns the labels that a proxy has now, or nil if only the proxy
	// knows them. It has to be quick, and is asked again with each snapshot. The
	// map is the caller's. Nil means that what proxies say at the start holds.
	Labels func(*model.Proxy) map[string]string
	// Registered is true if Labels knows every workload sooner or later. What a
	// proxy claims then selects no objects but those that protect the proxy
	// itself; one that is not known yet waits a moment before it is served.
	Registered bool
}

// A new proxy waits up to labelWait for its workload to be known. It asks after
// labelPoll and then after twice the time before, so that thousands of proxies that
// nobody knows cost little.
const (
	labelWait = 2 * time.Second
	labelPoll = 20 * time.Millisecond
)

// bind replaces the labels that a new proxy claims by those of its workload. An
// informer may hear of a pod after its proxy has connected, so it waits a moment.
// It returns false if ctx has ended.
func (s *Server) bind(ctx context.Context, proxy *model.Proxy) bool {
	if !s.presence.Registered {
		return true
	}
	found := s.presence.Labels(proxy)
	// The entry of a machine that registers itself comes after its stream.
	if wait := time.Duration(s.labelWait.Load()); found == nil && proxy.AutoRegisterGroup == "" && wait > 0 {
		for pause := labelPoll; wait > 0 && found == nil; pause *= 2 {
			pause = min(pause, wait)
			wait -= pause
			// Cases: the stream ends; the workload may be known.
			select {
			case <-ctx.Done():
				return false
			case <-time.After(pause):
				found = s.presence.Labels(proxy)
			}
		}
	}
	proxy.ClaimedLabels = nil
	if found == nil {
		if proxy.ClaimedLabels = proxy.Labels; proxy.ClaimedLabels == nil {
			proxy.ClaimedLabels = map[string]string{}
		}
		s.log.Warn("the workload of a proxy is not known: no object is chosen by the labels that it claims, until there is a Pod or WorkloadEntry", "proxy", proxy.ID, "namespace", proxy.Namespace)
	}
	proxy.Labels = found
	return true
}

// presented tells of a new proxy.
func (s *Server) presented(ctx context.Context, proxy *model.Proxy, caller *authn.Caller, n *corev3.Node) error {
	if s.presence.OnConnect == nil {
		return nil
	}
	err := s.presence.OnConnect(model.ConnectedProxy{
		Proxy: proxy, Verified: caller != nil && private(ctx), Source: sourceOf(ctx), Locality: localityOf(n), Probed: isProbed(n),
	})
	if err == nil {
		return nil
	}
	s.log.Warn("refused a stream", "proxy", proxy.ID, "address", address(ctx), "err", err)
	return status.Error(codes.FailedPrecondition, err.Error())
}

// gone tells of the end of a proxy.
func (s *Server) gone(proxy *model.Proxy) {
	if s.onGone != nil {
		s.onGone(proxy)
	}
}

// sourceOf returns the address that a stream comes from.
func sourceOf(ctx context.Context) netip.Addr {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	at, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

func localityOf(n *corev3.Node) string {
	l := n.GetLocality()
	return strings.TrimRight(l.GetRegion()+"/"+l.GetZone()+"/"+l.GetSubZone(), "/")
}

// isProbed reports whether the configuration of a proxy has a readinessProbe. A
// value of another shape was refused before.
func isProbed(n *corev3.Node) bool {
	field := n.GetMetadata().GetFields()["PROXY_CONFIG"]
	if text := field.GetStringValue(); text != "" {
		var fields map[string]json.RawMessage
		err := json.Unmarshal([]byte(text), &fields)
		return err == nil && fields["readinessProbe"] != nil
	}
	return field.GetStructValue().GetFields()["readinessProbe"].GetStructValue() != nil
}

// labels are those of the proxy of a stream.
type labels struct {
	// static were given to the agent for itself; those of its workload go over
	// them. Before they are known no others are looked for.
	static atomic.Pointer[map[string]string]
	// at is the snapshot with which they were looked at; of the stream's loop.
	at *published
	// seen is the proxy with them; nil as long as they are as it said.
	seen atomic.Pointer[model.Proxy]
}

// given notes which labels count beneath those of the workload: those that the
// agent was given, and what a machine that registers itself claims, as its entry
// has the labels of its group alone. Where a registry knows the workloads, none do.
func (l *labels) given(n *corev3.Node, proxy *model.Proxy, registered bool) {
	static := map[string]string{}
	switch {
	case registered:
		n = nil
	case proxy.AutoRegisterGroup != "":
		maps.Copy(static, proxy.Labels)
	}
	for k, v := range n.GetMetadata().GetFields()["STATIC_LABELS"].GetStructValue().GetFields() {
		static[k] = v.GetStringValue()
	}
	l.static.Store(&static)
}

// view returns the proxy for which resources are made: with the labels that its
// workload has now.
func (s *stream) view() *model.Proxy {
	if seen := s.labels.seen.Load(); seen != nil {
		return seen
	}
	return s.proxy
}

// take takes the newest snapshot. The labels of the proxy are looked at with it,
// so that all that is made of one snapshot is made of the same labels. A stream
// that leaves keeps the snapshot that it has: while new ones come all the time, a
// proxy owes an answer all the time.
func (s *stream) take() {
	if s.mesh != nil && s.leaving.Load() {
		return
	}
	s.mesh = s.server.mesh.Load()
	if s.labels.at == s.mesh {
		return
	}
	s.labels.at = s.mesh
	if fresh := s.relabelled(); fresh != s.view() {
		s.labels.seen.Store(fresh)
		s.log.Debug("a proxy has other labels", "count", len(fresh.Labels))
	}
}

// relabelled returns the proxy with the labels that it has now. Who nobody knows
// anything of any more keeps what was known.
func (s *stream) relabelled() *model.Proxy {
	known, static := s.view(), s.labels.static.Load()
	if static == nil || s.server.presence.Labels == nil {
		return known
	}
	found := s.server.presence.Labels(s.proxy)
	if found == nil {
		return known
	}
	for k, v := range *static {
		if _, ok := found[k]; !ok {
			found[k] = v
		}
	}
	if known.ClaimedLabels == nil && maps.Equal(found, known.Labels) {
		return known
	}
	next := *known
	next.Labels, next.ClaimedLabels = found, nil
	return &next
}

// denied returns the error that ends the stream of a caller that is served no
// more.
func (s *stream) denied() error {
	if s.server.denied == nil || s.caller == nil {
		return nil
	}
	if err := s.server.denied(s.caller); err != nil {
		s.log.Warn("ended a stream of a caller that is denied", "identity", s.caller.ID.String(), "err", err)
		return status.Error(codes.Unauthenticated, err.Error())
	}
	return nil
}
