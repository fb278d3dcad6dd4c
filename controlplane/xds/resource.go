// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xds

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"weak"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// The type URLs of resources.
const (
	TypeCluster  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	TypeEndpoint = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	TypeListener = "type.googleapis.com/envoy.config.listener.v3.Listener"
	TypeRoute    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	// TypeVirtualHost is used for proxies with VHDS, whose routes contain no virtual hosts.
	TypeVirtualHost = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
	// TypeSecret resources are created by the package controlplane/discovery/secrets.
	TypeSecret = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	// TypeExtension resources are subscribed to by name; listeners refer to them.
	TypeExtension = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	// TypeNameTable and TypeProxyConfig are consumed by the agent.
	TypeNameTable   = nds.TypeURL
	TypeProxyConfig = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
	// TypeBootstrap has one resource, [node.BootstrapPatch], for the agent.
	TypeBootstrap = "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap"
	// TypeStruct is the type of the message of that resource.
	TypeStruct = "type.googleapis.com/google.protobuf.Struct"
)

// Types are the types that make up the configuration of Envoy, in the order in which they must be
// sent.
var Types = []string{TypeCluster, TypeEndpoint, TypeListener, TypeRoute, TypeVirtualHost}

// Resource is one xDS resource, ready to be sent. It is immutable.
type Resource struct {
	Name string
	// Hash is the hash of Any.
	Hash uint64
	// Any is a serialized google.protobuf.Any.
	Any []byte
	// Sources are the objects that the resource was built from; nil for resources without known
	// sources. They are not part of Hash: a resource with the same content but other sources is a
	// different Resource, but is not sent again.
	Sources Sources
}

// Set is the set of all resources of one type for a proxy. It is immutable.
type Set struct {
	// Resources are sorted by name, without duplicates.
	Resources []*Resource
	// Version is a hash of the content.
	Version string
	// Problems are the objects that were left out because no valid resource can be built from them.
	Problems []model.Problem
}

// Get returns the resource with the given name, or nil if it does not exist.
func (s *Set) Get(name string) *Resource {
	i, ok := slices.BinarySearchFunc(s.Resources, name, func(r *Resource, name string) int { return strings.Compare(r.Name, name) })
	if !ok {
		return nil
	}
	return s.Resources[i]
}

// NewSet returns a sorted set of the resources, with only the first resource of each name. It
// returns prev, which may be nil, if that has the same content.
func NewSet(prev *Set, resources []*Resource, problems []model.Problem) *Set {
	resources = slices.Clone(resources)
	slices.SortStableFunc(resources, func(a, b *Resource) int { return strings.Compare(a.Name, b.Name) })
	resources = slices.CompactFunc(resources, func(a, b *Resource) bool { return a.Name == b.Name })
	problems = model.LimitProblems(problems)
	if prev != nil && slices.Equal(prev.Resources, resources) && slices.Equal(prev.Problems, problems) {
		return prev
	}
	digest := xxhash.New()
	var sum [8]byte
	for _, r := range resources {
		// The digest never fails.
		_, _ = digest.WriteString(r.Name)
		binary.LittleEndian.PutUint64(sum[:], r.Hash)
		_, _ = digest.Write(sum[:])
	}
	return &Set{Resources: resources, Version: strconv.FormatUint(digest.Sum64(), 16), Problems: problems}
}

// Table interns resources, both by the input from which they were built and by their content and
// sources. It holds weak pointers, so that unused resources are freed. All methods are safe for
// concurrent use.
type Table struct {
	mu        sync.Mutex // guards all below
	byInput   map[any]weak.Pointer[Resource]
	byContent map[contentKey]weak.Pointer[Resource]
	sweepAt   int
}

type contentKey struct {
	name string
	hash uint64
	// from is 0 for the first resource with a given content. For the others, which share its bytes,
	// it is the hash of their sources.
	from uint64
}

// NewTable returns an empty Table.
func NewTable() *Table {
	return &Table{byInput: make(map[any]weak.Pointer[Resource]), byContent: make(map[contentKey]weak.Pointer[Resource]), sweepAt: 1024}
}

// Get returns the resource that was built earlier from the same input, or builds it. The input is a
// comparable value that contains everything that build reads, for the message and for its sources.
// Get returns an error if the message is invalid.
func (t *Table) Get(input any, typeURL, name string, build func() (proto.Message, Sources)) (*Resource, error) {
	t.mu.Lock()
	r := t.byInput[input].Value()
	t.mu.Unlock()
	if r != nil {
		return r, nil
	}
	msg, from := build()
	r, err := New(typeURL, name, msg)
	if err != nil {
		return nil, err
	}
	r.Sources = from.sorted()
	t.mu.Lock()
	defer t.mu.Unlock()
	r = t.intern(r)
	t.byInput[input] = weak.Make(r)
	t.sweep()
	return r, nil
}

// Put returns the interned resource for a message and its sources. It returns an error if the
// message is invalid.
func (t *Table) Put(typeURL, name string, msg proto.Message, from Sources) (*Resource, error) {
	r, err := New(typeURL, name, msg)
	if err != nil {
		return nil, err
	}
	r.Sources = from.sorted()
	return t.keep(r), nil
}

// PutBytes is like Put, but for a message that is already marshalled and has no sources.
func (t *Table) PutBytes(typeURL, name string, msg []byte) *Resource {
	b := Any(typeURL, msg)
	return t.keep(&Resource{Name: name, Hash: xxhash.Sum64(b), Any: b})
}

func (t *Table) keep(r *Resource) *Resource {
	t.mu.Lock()
	defer t.mu.Unlock()
	r = t.intern(r)
	t.sweep()
	return r
}

// intern returns the existing resource with equal content and sources, or r if there is none.
// Resources with equal content share their bytes.
func (t *Table) intern(r *Resource) *Resource {
	first := contentKey{name: r.Name, hash: r.Hash}
	other := first
	other.from = r.Sources.hash()
	holder := t.byContent[first].Value()
	for _, same := range []*Resource{holder, t.byContent[other].Value()} {
		if same == nil || !bytes.Equal(same.Any, r.Any) {
			continue
		}
		r.Any = same.Any
		if slices.Equal(same.Sources, r.Sources) {
			r = same
			break
		}
	}
	if holder == nil || !bytes.Equal(holder.Any, r.Any) {
		t.byContent[first] = weak.Make(r)
	} else if holder != r {
		t.byContent[other] = weak.Make(r)
	}
	return r
}

// sweep removes the entries of freed resources each time the table has doubled in size.
func (t *Table) sweep() {
	if len(t.byInput)+len(t.byContent) < t.sweepAt {
		return
	}
	for k, p := range t.byInput {
		if p.Value() == nil {
			delete(t.byInput, k)
		}
	}
	for k, p := range t.byContent {
		if p.Value() == nil {
			delete(t.byContent, k)
		}
	}
	t.sweepAt = max(1024, 2*(len(t.byInput)+len(t.byContent)))
}

// New validates a message and returns a resource of it, without sources.
func New(typeURL, name string, msg proto.Message) (*Resource, error) {
	if v, ok := msg.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return nil, fmt.Errorf("check resource %s: %w", name, err)
		}
	}
	opts := proto.MarshalOptions{Deterministic: true, UseCachedSize: true}
	size := proto.Size(msg)
	b := protowire.AppendVarint(anyHead(typeURL, size), uint64(size))
	b, err := opts.MarshalAppend(b, msg)
	if err != nil {
		return nil, fmt.Errorf("marshal resource %s: %w", name, err)
	}
	return &Resource{Name: name, Hash: xxhash.Sum64(b), Any: b}, nil
}

// Any returns a serialized google.protobuf.Any that contains a serialized message.
func Any(typeURL string, msg []byte) []byte {
	return protowire.AppendBytes(anyHead(typeURL, len(msg)), msg)
}

// anyHead returns the start of an Any up to the length of its value, with capacity for a value of
// the given size in bytes.
func anyHead(typeURL string, size int) []byte {
	b := make([]byte, 0, len(typeURL)+size+16)
	b = wire.Append(b, wire.AnyTypeURL, typeURL)
	return protowire.AppendTag(b, wire.AnyValue, protowire.BytesType)
}
