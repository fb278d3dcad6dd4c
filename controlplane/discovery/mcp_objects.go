// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/mcp"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

const (
	typePrefix = "type.googleapis.com/"
	// syntheticPrefix begins the name of the ServiceEntry of a service that
	// comes from no object.
	syntheticPrefix = "synthetic-"
)

// objects makes the resources of objects, once for all who take them. Nothing
// is kept while nobody does.
type objects struct {
	source  Objects
	readers []string
	log     *slog.Logger

	mu   sync.Mutex // guards what follows
	open int        // streams
	sets map[model.Kind]*kindSet
}

// kindSet are the resources of a kind, in every version of its type.
type kindSet struct {
	set   *generate.Set
	stale bool
	// made are the resources by their objects; nil is one that there is no
	// resource of.
	made map[*model.Config]*generate.Resource
	// services and mesh are what else the set was made of.
	services *snapshot.Services
	mesh     *meshv1alpha1.MeshConfig
}

// newObjects gives nil if there is nothing to take.
func newObjects(cfg MCPConfig, log *slog.Logger) *objects {
	if cfg.Objects == nil {
		return nil
	}
	return &objects{source: cfg.Objects, readers: cfg.Readers, log: log, sets: map[model.Kind]*kindSet{}}
}

func (o *objects) opened() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open++
}

func (o *objects) closed() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open--; o.open == 0 {
		o.sets = map[model.Kind]*kindSet{}
	}
}

// changed has the kinds of a change looked at again.
func (o *objects) changed(change model.Change) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for kind, k := range o.sets {
		k.stale = k.stale || change.Touches(kind)
	}
}

// set gives the resources of a type. As long as they say the same it is the
// same set. Types that are none have no resources.
func (o *objects) set(mesh *snapshot.Mesh, typeURL string) *generate.Set {
	schema, ok := mcp.SchemaOf(typeURL)
	kind := schema.Kind
	switch {
	case typeURL == mcp.MeshConfigType:
		kind = model.MeshConfigKind
	case !ok:
		return noResources
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.sets[kind]
	if k == nil {
		k = &kindSet{set: noResources, stale: true}
		o.sets[kind] = k
	}
	switch kind {
	case model.MeshConfigKind:
		o.updateMesh(k, mesh)
	case model.ServiceEntry:
		k.stale = k.stale || k.services != mesh.Services
		fallthrough
	default:
		if k.stale {
			o.update(k, kind, mesh)
		}
	}
	return k.set
}

// update makes the set of a kind anew. The caller holds mu.
func (o *objects) update(k *kindSet, kind model.Kind, mesh *snapshot.Mesh) {
	list := o.source.List(kind, "")
	made := make(map[*model.Config]*generate.Resource, len(list))
	resources := make([]*generate.Resource, 0, len(list))
	add := func(c *model.Config) *generate.Resource {
		res, ok := k.made[c]
		if !ok {
			var err error
			if res, err = objectResource(c); err != nil {
				o.log.Warn("an object is not given to other control planes", "kind", c.Kind, "name", c.Name, "namespace", c.Namespace, "err", err)
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
	k.set, k.made, k.stale = setOf(k.set, resources), made, false
}

// updateMesh makes the set of the mesh config. The caller holds mu.
func (o *objects) updateMesh(k *kindSet, mesh *snapshot.Mesh) {
	if k.mesh == mesh.Config && !k.stale {
		return
	}
	k.mesh, k.stale = mesh.Config, false
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(mesh.Config)
	if err != nil {
		o.log.Warn("the mesh config is not given to other control planes", "err", err)
		return
	}
	k.set = setOf(k.set, []*generate.Resource{{
		Name: string(model.MeshConfigKind), Hash: xxhash.Sum64(b),
		Any: rawAny(typePrefix+string(proto.MessageName(mesh.Config)), b),
	}})
}

// setOf sorts resources, and gives before if they are the same.
func setOf(before *generate.Set, resources []*generate.Resource) *generate.Set {
	slices.SortStableFunc(resources, byResourceName)
	resources = slices.CompactFunc(resources, func(a, b *generate.Resource) bool { return a.Name == b.Name })
	same := func(a, b *generate.Resource) bool { return a.Name == b.Name && a.Hash == b.Hash }
	if slices.EqualFunc(before.Resources, resources, same) {
		return before
	}
	all := fnv.New64a()
	for _, r := range resources {
		_, _ = fmt.Fprintf(all, "%s\x00%x\x00", r.Name, r.Hash) // a hash takes everything
	}
	return &generate.Set{Resources: resources, Version: versionOf(all.Sum64())}
}

// objectResource makes the resource of an object. Its hash leaves out the
// object's version, which changes with the status, too, that nobody is told.
func objectResource(c *model.Config) (*generate.Resource, error) {
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
	return &generate.Resource{Name: m.Metadata.Name, Hash: xxhash.Sum64(content), Any: rawAny(typePrefix+string(proto.MessageName(m)), b)}, nil
}

// syntheticEntries gives a ServiceEntry, without endpoints, for each service
// that no object defines, as Istio's control plane does.
func syntheticEntries(services *snapshot.Services) []*model.Config {
	if services == nil {
		return nil
	}
	var all []*model.Config
	for _, s := range services.Sorted {
		if s.Registry == model.RegistryExternal {
			continue
		}
		entry := &networkingv1alpha3.ServiceEntry{
			Hosts: []string{s.Hostname}, Addresses: s.Addresses, SubjectAltNames: s.SubjectAltNames,
			Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		}
		if s.External {
			entry.Location = networkingv1alpha3.ServiceEntry_MESH_EXTERNAL
		}
		if s.Resolution == model.ResolutionDNS {
			entry.Resolution = networkingv1alpha3.ServiceEntry_DNS
		}
		for _, p := range s.Ports {
			entry.Ports = append(entry.Ports, &networkingv1alpha3.ServicePort{Name: p.Name, Number: p.Number, Protocol: strings.ToUpper(string(p.Protocol))})
		}
		first, _, _ := strings.Cut(s.Hostname, ".")
		all = append(all, &model.Config{
			Key:     model.Key{Kind: model.ServiceEntry, Namespace: s.Namespace, Name: syntheticPrefix + cmp.Or(s.Source.Name, first)},
			Created: s.Created, Spec: entry,
		})
	}
	return all
}
