// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcpserver

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Requested reports whether a node is another control plane, which reads objects
// instead of xDS resources made of them.
func Requested(n *corev3.Node) bool {
	return n.GetMetadata().GetFields()["GENERATOR"].GetStringValue() == "api"
}

// ReaderOf returns the claims of a control plane that reads objects. Errors are
// gRPC errors.
func ReaderOf(n *corev3.Node) (*model.Proxy, error) {
	id, err := node.ParseID(n.GetId())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	field := func(name string) string { return n.GetMetadata().GetFields()[name].GetStringValue() }
	p := &model.Proxy{ID: id.Name, Role: id.Role, Domain: id.Domain, Namespace: field("NAMESPACE"), ServiceAccount: field("SERVICE_ACCOUNT")}
	if p.Namespace == "" {
		p.Namespace = id.Namespace()
	}
	return p, nil
}

// Admit returns a gRPC error unless the caller may read the objects, which are all
// of the mesh's configuration.
func (s *Server) Admit(caller *authn.Caller, secure bool) error {
	switch {
	case s == nil:
		return status.Error(codes.PermissionDenied, "this control plane does not serve its objects")
	case caller == nil || !secure:
		return status.Error(codes.PermissionDenied, "objects are served only on authenticated TLS streams: connect to the TLS port")
	case slices.Contains(s.readers, caller.ID.Namespace+"/"+caller.ID.ServiceAccount), slices.Contains(s.readers, caller.ID.Namespace+"/*"):
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s may not read the objects of this control plane: add %s/%s to OUTRIGGER_MCP_READERS of this control plane",
		caller.ID, caller.ID.Namespace, caller.ID.ServiceAccount)
}
