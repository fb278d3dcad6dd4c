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

// PresenceConfig has the functions that are notified of new proxies and that return
// their labels.
type PresenceConfig struct {
	// OnConnect is called before a proxy is served; an error refuses the stream.
	// It must not block. Config.OnGone is called for every proxy that OnConnect
	// was called with. If it is nil, all proxies are accepted.
	OnConnect func(model.ConnectedProxy) error
	// Labels returns the current labels of a proxy's workload, or nil if they are
	// not known. It must be fast: it is called again with each snapshot. The
	// caller owns the map. If it is nil, the labels in the first request apply.
	Labels func(*model.Proxy) map[string]string
	// Registered is true if Labels eventually returns labels for every workload.
	// The labels that a proxy claims then select only objects that restrict the
	// proxy itself. A proxy that is not known yet is served after a short wait.
	Registered bool
}

// A new proxy waits up to labelWait for its workload to be known. The first retry is
// after labelPoll, and the interval doubles, so that thousands of unknown proxies cost
// little.
const (
	labelWait = 2 * time.Second
	labelPoll = 20 * time.Millisecond
)

// bind replaces the labels that a new proxy claims by those of its workload. It waits
// for up to labelWait, because an informer may see a pod after its proxy has
// connected. It returns false if ctx has ended.
func (s *Server) bind(ctx context.Context, proxy *model.Proxy) bool {
	if !s.presence.Registered {
		return true
	}
	found := s.presence.Labels(proxy)
	// The WorkloadEntry of an auto-registered machine is created after its stream.
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
		s.log.Warn("the workload of a proxy is unknown: the labels that it claims select no object until there is a Pod or WorkloadEntry", "proxy", proxy.ID, "namespace", proxy.Namespace)
	}
	proxy.Labels = found
	return true
}

// notifyConnected calls OnConnect for a new proxy.
func (s *Server) notifyConnected(ctx context.Context, proxy *model.Proxy, caller *authn.Caller, n *corev3.Node) error {
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

// notifyGone calls OnGone.
func (s *Server) notifyGone(proxy *model.Proxy) {
	if s.onGone != nil {
		s.onGone(proxy)
	}
}

// sourceOf returns the remote address of a stream.
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

// isProbed reports whether the configuration of a proxy has a readinessProbe. Values
// of another type were refused before.
func isProbed(n *corev3.Node) bool {
	field := n.GetMetadata().GetFields()["PROXY_CONFIG"]
	if text := field.GetStringValue(); text != "" {
		var fields map[string]json.RawMessage
		err := json.Unmarshal([]byte(text), &fields)
		return err == nil && fields["readinessProbe"] != nil
	}
	return field.GetStructValue().GetFields()["readinessProbe"].GetStructValue() != nil
}

// labels are the current labels of the proxy of a stream.
type labels struct {
	// static are labels from the agent's settings; labels of the workload
	// override them. No labels are looked up while it is nil.
	static atomic.Pointer[map[string]string]
	// at is the snapshot with which the labels were last updated. The stream's
	// loop owns it.
	at *published
	// seen is the proxy with its current labels; nil while they are those of its
	// first request.
	seen atomic.Pointer[model.Proxy]
}

// setStatic sets the labels that those of the workload override: the agent's static
// labels, and for an auto-registered machine the labels that it claims, as its
// WorkloadEntry has only the labels of its group. There are none if a registry knows
// all workloads.
func (l *labels) setStatic(n *corev3.Node, proxy *model.Proxy, registered bool) {
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

// view returns the proxy with the current labels of its workload, for which
// resources are generated.
func (s *stream) view() *model.Proxy {
	if seen := s.labels.seen.Load(); seen != nil {
		return seen
	}
	return s.proxy
}

// updateSnapshot switches to the newest snapshot. It updates the labels of the proxy,
// too, so that all resources of a snapshot are generated for the same labels. A
// stream whose proxy is to move keeps its snapshot: otherwise frequent snapshots
// would always leave a response unanswered.
func (s *stream) updateSnapshot() {
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
		s.log.Debug("the labels of a proxy have changed", "count", len(fresh.Labels))
	}
}

// relabelled returns the proxy with its current labels. If its workload is not known
// any more, it keeps the last labels.
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

// denied returns the error that ends the stream of a caller that is not served any
// more, or nil.
func (s *stream) denied() error {
	if s.server.denied == nil || s.caller == nil {
		return nil
	}
	if err := s.server.denied(s.caller); err != nil {
		s.log.Warn("ended the stream of a denied caller", "identity", s.caller.ID.String(), "err", err)
		return status.Error(codes.Unauthenticated, err.Error())
	}
	return nil
}
