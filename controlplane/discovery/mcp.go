// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Objects are what other control planes may take: a config store.
type Objects interface {
	Schemas() []config.Schema
	List(kind model.Kind, namespace string) []*model.Config
}

// MCPConfig says what other control planes get, and which.
type MCPConfig struct {
	// Objects are what there is to take; nil means that nobody gets anything.
	Objects Objects
	// Readers are the accounts that may take them: namespace/account, or
	// namespace/* for all of a namespace.
	Readers []string
}

// maxTypes bounds the types of one reader; there are some 70, in all versions.
const maxTypes = 200

// takesObjects reports whether a node is another control plane, which takes
// objects instead of what is made of them.
func takesObjects(n *corev3.Node) bool {
	return n.GetMetadata().GetFields()["GENERATOR"].GetStringValue() == "api"
}

// readerOf reads the node of a control plane that takes objects.
func readerOf(n *corev3.Node) (*model.Proxy, error) {
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

// peerOf reads the node of a stream's first request, and checks what it says
// of itself with who opened the stream. Objects are nil for a proxy.
func (s *Server) peerOf(n *corev3.Node, caller *authn.Caller, secure bool) (*model.Proxy, *objects, error) {
	if !takesObjects(n) {
		p, err := proxyOf(n)
		if err == nil {
			err = checkIdentity(p, caller)
		}
		return p, nil, err
	}
	p, err := readerOf(n)
	if err == nil {
		err = checkIdentity(p, caller)
	}
	if err == nil {
		err = s.objects.admit(caller, secure)
	}
	return p, s.objects, err
}

// admit decides who may take the objects: all of the mesh's configuration.
func (o *objects) admit(caller *authn.Caller, secure bool) error {
	switch {
	case o == nil:
		return status.Error(codes.PermissionDenied, "this control plane gives its objects to nobody")
	case caller == nil || !secure:
		return status.Error(codes.PermissionDenied, "objects are given on streams that are encrypted and have shown who they are: connect to the port with TLS")
	case slices.Contains(o.readers, caller.ID.Namespace+"/"+caller.ID.ServiceAccount), slices.Contains(o.readers, caller.ID.Namespace+"/*"):
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s may not take the objects of this control plane: name %s/%s in OUTRIGGER_MCP_READERS there",
		caller.ID, caller.ID.Namespace, caller.ID.ServiceAccount)
}

// admitType notes a type that a reader asks for. Types that do not exist have
// no objects; those of proxies are no objects.
func (s *stream) admitType(typeURL string) error {
	if _, ofProxies := shortTypes[typeURL]; ofProxies {
		return status.Errorf(codes.InvalidArgument, "a stream with the node metadata GENERATOR=api gets objects, not %s: open another one", typeURL)
	}
	if slices.Contains(s.kinds, typeURL) {
		return nil
	}
	if len(s.kinds) == maxTypes {
		return status.Errorf(codes.ResourceExhausted, "a stream asks for more than %d types", maxTypes)
	}
	s.kinds = append(s.kinds, typeURL)
	return nil
}

// types are those that are pushed, in order.
func (s *stream) types() []string {
	if s.objects != nil {
		return s.kinds
	}
	return order
}
