// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcpserver

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/mcp"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

const (
	typePrefix = "type.googleapis.com/"
	// syntheticPrefix begins the name of the ServiceEntry of a service that no
	// object defines.
	syntheticPrefix = "synthetic-"
)

// Objects is the configuration that readers receive.
type Objects interface {
	List(kind model.Kind, namespace string) []*model.Config
}

// Config configures a [Server].
type Config struct {
	// Objects is what readers receive. With nil, [New] returns nil.
	Objects Objects
	// Readers are the service accounts that may read: namespace/account, or
	// namespace/* for all accounts of a namespace.
	Readers []string
	// Logger logs objects that cannot be encoded; nil discards.
	Logger *slog.Logger
}

// Server makes the resources of objects, once for all readers. It keeps nothing
// while there is no reader. A nil Server admits nobody. The methods are safe for
// concurrent use.
type Server struct {
	source  Objects
	readers []string
	log     *slog.Logger

	mu      sync.Mutex // guards the fields below
	streams int
	sets    map[model.Kind]*kindSet
}

// kindSet are the resources of a kind, in every version of its type.
type kindSet struct {
	set   *xds.Set
	stale bool
	// made holds the resource of each object; nil for an object that cannot be
	// encoded.
	made map[*model.Config]*xds.Resource
	// services and mesh are the other inputs of the set.
	services *snapshot.Services
	mesh     *meshv1alpha1.MeshConfig
}

// noResources is the set of a type without objects. It is never written to.
var noResources = &xds.Set{}

// New returns a Server, or nil if there are no objects to serve.
func New(cfg Config) *Server {
	if cfg.Objects == nil {
		return nil
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{source: cfg.Objects, readers: cfg.Readers, log: cfg.Logger, sets: map[model.Kind]*kindSet{}}
}

// Opened counts a stream of a reader. The caller calls Closed when it ends.
func (s *Server) Opened() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams++
}

// Closed drops all resources when the last stream has ended.
func (s *Server) Closed() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams--; s.streams == 0 {
		s.sets = map[model.Kind]*kindSet{}
	}
}

// Changed marks the kinds of a change as stale.
func (s *Server) Changed(change model.Change) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for kind, k := range s.sets {
		k.stale = k.stale || change.Touches(kind)
	}
}

// Resources returns the resources of a type: the set of the previous call while
// the content is the same, and an empty set for unknown types.
func (s *Server) Resources(mesh *snapshot.Mesh, typeURL string) *xds.Set {
	schema, ok := mcp.SchemaOf(typeURL)
	kind := schema.Kind
	switch {
	case typeURL == mcp.MeshConfigType:
		kind = model.MeshConfigKind
	case !ok:
		return noResources
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.sets[kind]
	if k == nil {
		k = &kindSet{set: noResources, stale: true}
		s.sets[kind] = k
	}
	switch kind {
	case model.MeshConfigKind:
		s.updateMesh(k, mesh)
	case model.ServiceEntry:
		k.stale = k.stale || k.services != mesh.Services
		fallthrough
	default:
		if k.stale {
			s.update(k, kind, mesh)
		}
	}
	return k.set
}

// update rebuilds the set of a kind. The caller holds mu.
func (s *Server) update(k *kindSet, kind model.Kind, mesh *snapshot.Mesh) {
	list := s.source.List(kind, "")
	made := make(map[*model.Config]*xds.Resource, len(list))
	resources := make([]*xds.Resource, 0, len(list))
	add := func(c *model.Config) *xds.Resource {
		res, ok := k.made[c]
		if !ok {
			var err error
			if res, err = objectResource(c); err != nil {
				s.log.Warn("object is not served to other control planes", "kind", c.Kind, "name", c.Name, "namespace", c.Namespace, "err", err)
			} else if before := k.set.Get(res.Name); before != nil && before.Hash == res.Hash {
				res = before
			}
		}
		if res != nil {
			resources = append(resources, res)
		}
		return res
	}
	for _, c := range list {
		made[c] = add(c)
	}
	if kind == model.ServiceEntry {
		for _, c := range syntheticEntries(mesh.Services) {
			add(c)
		}
		k.services = mesh.Services
	}
	k.set, k.made, k.stale = xds.NewSet(k.set, resources, nil), made, false
}

// updateMesh makes the set of the mesh config. The caller holds mu.
func (s *Server) updateMesh(k *kindSet, mesh *snapshot.Mesh) {
	if k.mesh == mesh.Config && !k.stale {
		return
	}
	k.mesh, k.stale = mesh.Config, false
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(mesh.Config)
	if err != nil {
		s.log.Warn("mesh config is not served to other control planes", "err", err)
		return
	}
	res := &xds.Resource{
		Name: string(model.MeshConfigKind), Hash: xxhash.Sum64(b),
		Any: xds.Any(typePrefix+string(proto.MessageName(mesh.Config)), b),
	}
	if before := k.set.Get(res.Name); before != nil && before.Hash == res.Hash {
		res = before
	}
	k.set = xds.NewSet(k.set, []*xds.Resource{res}, nil)
}

// objectResource returns the resource of an object. The hash omits the version of
// the object, because a change of the status, which is not served, changes it too.
func objectResource(c *model.Config) (*xds.Resource, error) {
	m, err := mcp.Encode(c)
	if err != nil {
		return nil, err
	}
	version := m.Metadata.Version
	m.Metadata.Version = ""
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", c.Key, err)
	}
	m.Metadata.Version = version
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", c.Key, err)
	}
	return &xds.Resource{Name: m.Metadata.Name, Hash: xxhash.Sum64(content), Any: xds.Any(typePrefix+string(proto.MessageName(m)), b)}, nil
}

// syntheticEntries returns a ServiceEntry without endpoints for each service that
// no object defines, as Istio's control plane does.
func syntheticEntries(services *snapshot.Services) []*model.Config {
	if services == nil {
		return nil
	}
	var all []*model.Config
	for _, svc := range services.Sorted {
		if svc.Registry == model.RegistryExternal {
			continue
		}
		entry := &networkingv1alpha3.ServiceEntry{
			Hosts: []string{svc.Hostname}, Addresses: svc.Addresses, SubjectAltNames: svc.SubjectAltNames,
			Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		}
		if svc.External {
			entry.Location = networkingv1alpha3.ServiceEntry_MESH_EXTERNAL
		}
		if svc.Resolution == model.ResolutionDNS {
			entry.Resolution = networkingv1alpha3.ServiceEntry_DNS
		}
		for _, p := range svc.Ports {
			entry.Ports = append(entry.Ports, &networkingv1alpha3.ServicePort{Name: p.Name, Number: p.Number, Protocol: strings.ToUpper(string(p.Protocol))})
		}
		first, _, _ := strings.Cut(svc.Hostname, ".")
		all = append(all, &model.Config{
			Key:     model.Key{Kind: model.ServiceEntry, Namespace: svc.Namespace, Name: syntheticPrefix + cmp.Or(svc.Source.Name, first)},
			Created: svc.Created, Spec: entry,
		})
	}
	return all
}
