// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"errors"
	"io"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Register serves ADS on a gRPC server that uses [Codec]. A nil auth accepts every
// caller, which only a plaintext port on loopback should do.
func (s *Server) Register(r grpc.ServiceRegistrar, auth authn.Authenticator) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, &service{server: s, auth: auth})
}

// service is the server on one port.
type service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	server *Server
	auth   authn.Authenticator
}

func (s *service) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.serve(g, false, receiver(g, readSotW))
}

func (s *service) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.serve(g, true, receiver(g, readDelta))
}

// receiver returns a function that receives the next request of a stream.
func receiver(g grpc.ServerStream, read func([]byte) (*request, error)) func() (*request, error) {
	return func() (*request, error) {
		var f frame
		if err := g.RecvMsg(&f); err != nil {
			return nil, err
		}
		q, err := read(f.request.ReadOnlyData())
		if err != nil {
			f.request.Free()
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		q.free = f.request.Free
		return q, nil
	}
}

// serve runs one stream.
func (s *service) serve(g grpc.ServerStream, delta bool, recv func() (*request, error)) (err error) {
	ctx := g.Context()
	defer func() {
		if cause := recover(); cause != nil {
			err = s.server.fault(cause, "other")
		}
	}()
	if !s.server.Ready() {
		return status.Error(codes.Unavailable, "server is not ready to serve discovery information: configuration is still loading")
	}
	var caller *authn.Caller
	if s.auth != nil {
		if caller, err = s.auth.Authenticate(ctx); err != nil {
			s.server.log.Warn("refused a stream", "address", address(ctx), "err", err)
			if errors.Is(err, authn.ErrUnavailable) {
				return status.Error(codes.Unavailable, err.Error())
			}
			return status.Error(codes.Unauthenticated, err.Error())
		}
	}
	quota, err := s.server.callers.enter(ctx, caller)
	if err != nil {
		s.server.log.Warn("refused a stream", "address", address(ctx), "err", err)
		return err
	}
	defer quota.leave()
	recv = quota.slowed(ctx, recv)
	first, report, err := firstRequest(recv)
	if err == nil {
		err = checkNode(first.node)
	}
	if err != nil {
		if callersFault(err) {
			s.server.log.Warn("refused a stream", "address", address(ctx), "err", err)
		}
		return err
	}
	proxy, objects, err := s.server.peerOf(first.node, caller, caller != nil && private(ctx))
	if err != nil {
		s.server.log.Warn("refused a stream", "address", address(ctx), "err", err)
		return err
	}
	proxy.VHDS = delta && !s.server.noVHDS && takesVirtualHosts(first.node)
	if objects == nil {
		if !s.server.bind(ctx, proxy) {
			return status.FromContextError(ctx.Err()).Err()
		}
		if err := s.server.admit(ctx, proxy); err != nil {
			return err
		}
		if err := s.server.notifyConnected(ctx, proxy, caller, first.node); err != nil {
			return err
		}
	}
	// The header tells the proxy that the stream is accepted: if its configuration
	// is current, the first response may come much later.
	if err := g.SendHeader(nil); err != nil {
		s.server.notifyGone(proxy)
		return err
	}
	if report != nil && objects == nil {
		s.server.report(proxy, caller, report)
	}
	st := s.server.newStream(g, proxy, caller, objects)
	st.delta, st.quota = delta, quota
	if objects == nil {
		st.labels.setStatic(first.node, proxy, s.server.presence.Registered)
		st.member = s.server.quarantine.Join(quarantined(st, first.node), st)
	}
	s.server.enter(st)
	defer s.server.remove(st)
	requests := make(chan *request) // unbuffered: flow control reaches the proxy
	ended := make(chan error, 1)
	go func() {
		defer func() {
			if cause := recover(); cause != nil {
				ended <- s.server.fault(cause, "other")
			}
		}()
		ended <- read(ctx, first, recv, requests)
	}()
	err = st.loop(ctx, requests, ended)
	if callersFault(err) {
		st.log.Warn("invalid request of a proxy; ending its stream", "err", err)
	}
	return err
}

// admit generates the first configuration of a proxy before its stream begins, for
// at most Workers proxies at a time. A proxy for which everything is cached passes at
// once. During a burst of others the rest wait, so that served proxies are not
// delayed.
func (s *Server) admit(ctx context.Context, proxy *model.Proxy) error {
	select {
	case s.admission <- struct{}{}:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	defer func() { <-s.admission }()
	if _, ok := s.generateAll(s.mesh.Load().Mesh, proxy); !ok {
		return errNotGenerated
	}
	return nil
}

// read passes requests to the stream's loop until the proxy or ctx ends
// the stream.
func read(ctx context.Context, q *request, recv func() (*request, error), requests chan<- *request) error {
	for {
		select {
		case requests <- q:
		case <-ctx.Done():
			return nil
		}
		var err error
		if q, err = recv(); errors.Is(err, io.EOF) || ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// firstRequest returns the first subscription, and the last health report before it,
// or nil if there was none.
func firstRequest(recv func() (*request, error)) (first, report *request, err error) {
	for {
		q, err := recv()
		if err != nil {
			return nil, nil, err
		}
		if !ignored(q.typeURL) {
			return q, report, nil
		}
		q.free()
		if q.typeURL == typeHealth {
			report = q
		}
	}
}

// typeHealth is the type of health reports: a request with error_detail if the
// application is not healthy.
const typeHealth = "type.googleapis.com/istio.v1.HealthInformation"

// ignored reports whether requests of a type are no subscriptions: reports and debug
// questions. firstRequest does not wait for an answer to them.
func ignored(typeURL string) bool {
	return typeURL == typeHealth || typeURL == node.UnknownKeyType || strings.HasPrefix(typeURL, "istio.io/")
}

// quarantined describes a proxy to the quarantine.
func quarantined(st *stream, n *corev3.Node) quarantine.Proxy {
	p := quarantine.Proxy{ID: st.proxy.ID, Namespace: st.proxy.Namespace, Program: programOf(n)}
	if st.caller != nil {
		p.Identity = &st.caller.ID
	}
	if len(st.proxy.IPs) > 0 {
		p.Address = st.proxy.IPs[0]
	}
	return p
}

// programOf returns the client program that the node names, in bounded length.
func programOf(n *corev3.Node) string {
	v := n.GetUserAgentBuildVersion()
	return clipped(strings.Join([]string{n.GetUserAgentName(), n.GetUserAgentVersion(), v.GetVersion().String()}, " "))
}
