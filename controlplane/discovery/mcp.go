// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/mcpserver"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// maxTypes is the maximum number of types of one reader; there are about 70, in all
// versions.
const maxTypes = 200

// peerOf converts the node of a stream's first request and compares its claims with
// the caller. The returned server is nil for a proxy.
func (s *Server) peerOf(n *corev3.Node, caller *authn.Caller, secure bool) (*model.Proxy, *mcpserver.Server, error) {
	if !mcpserver.Requested(n) {
		p, err := proxyOf(n)
		if err == nil {
			err = checkIdentity(p, caller)
		}
		return p, nil, err
	}
	p, err := mcpserver.ReaderOf(n)
	if err == nil {
		err = checkIdentity(p, caller)
	}
	if err == nil {
		err = s.objects.Admit(caller, secure)
	}
	return p, s.objects, err
}

// admitType records a type that a reader requests. Unknown types have no objects;
// the types of proxies are refused.
func (s *stream) admitType(typeURL string) error {
	if _, ofProxies := shortTypes[typeURL]; ofProxies {
		return status.Errorf(codes.InvalidArgument, "a stream with the node metadata GENERATOR=api receives objects, not %s: open another one", typeURL)
	}
	if slices.Contains(s.kinds, typeURL) {
		return nil
	}
	if len(s.kinds) == maxTypes {
		return status.Errorf(codes.ResourceExhausted, "a stream requests more than %d types", maxTypes)
	}
	s.kinds = append(s.kinds, typeURL)
	return nil
}

// types returns the types that are pushed, in order.
func (s *stream) types() []string {
	if s.objects != nil {
		return s.kinds
	}
	return order
}
