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

// The type URLs of the resources.
const (
	TypeCluster  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	TypeEndpoint = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	TypeListener = "type.googleapis.com/envoy.config.listener.v3.Listener"
	TypeRoute    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	// TypeVirtualHost is for proxies with VHDS; their routes hold none.
	TypeVirtualHost = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
	// TypeSecret is not for [Generator.Generate]: see [KeyPair] and [Roots].
	TypeSecret = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	// TypeExtension is asked for by name, by what listeners name.
	TypeExtension = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	// TypeNameTable and TypeProxyConfig are for the agent.
	TypeNameTable   = nds.TypeURL
	TypeProxyConfig = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
)

// Types are the types that make up Envoy's configuration in the order in which
// they must be sent.
var Types = []string{TypeCluster, TypeEndpoint, TypeListener, TypeRoute, TypeVirtualHost}

// Resource is one xDS resource, ready to be sent. It is never written to.
type Resource struct {
	Name string
	// Hash is the hash of Any.
	Hash uint64
	// Any is a serialized google.protobuf.Any.
	Any []byte
	// Sources are the objects that the resource was made of. They are no part of
	// Hash: other sources of the same content are another Resource, and nothing is
	// sent. Nil for resources that nobody explains.
	Sources Sources
}

// Set are all resources of one type for a proxy. It is never written to.
type Set struct {
	// Resources are sorted by name, without duplicates.
	Resources []*Resource
	// Version is a hash of the content.
	Version string
	// Problems are objects that had to be left out because no valid
	// resource can be made of them.
	Problems []model.Problem
}

// Get returns the resource of a name; nil means that there is none.
func (s *Set) Get(name string) *Resource {
	i, ok := slices.BinarySearchFunc(s.Resources, name, func(r *Resource, name string) int { return strings.Compare(r.Name, name) })
	if !ok {
		return nil
	}
	return s.Resources[i]
}

// NewSet sorts the resources, drops all but the first of equal names and returns
// prev when that is the same; prev may be nil.
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

// Table keeps resources as long as somebody uses them, by what they were built
// from, and by content and sources. All of its methods are safe for concurrent
// use.
type Table struct {
	mu        sync.Mutex // guards all below
	byInput   map[any]weak.Pointer[Resource]
	byContent map[contentKey]weak.Pointer[Resource]
	sweepAt   int
}

type contentKey struct {
	name string
	hash uint64
	// from is 0 for the first resource of a content, and the hash of the sources
	// for others, which share its bytes.
	from uint64
}

// NewTable returns a Table that holds nothing.
func NewTable() *Table {
	return &Table{byInput: make(map[any]weak.Pointer[Resource]), byContent: make(map[contentKey]weak.Pointer[Resource]), sweepAt: 1024}
}

// Get returns the resource that was built from the input before, or builds it.
// The input is a comparable value that holds everything that the build reads, for
// the message and for its sources.
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

// Put returns the resource of a message and its sources, with the pointer of an
// equal one.
func (t *Table) Put(typeURL, name string, msg proto.Message, from Sources) (*Resource, error) {
	r, err := New(typeURL, name, msg)
	if err != nil {
		return nil, err
	}
	r.Sources = from.sorted()
	return t.keep(r), nil
}

// PutBytes is Put for a message that is marshalled already, without sources.
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

// intern returns the resource of equal content and sources, which is r if there is
// none yet. Resources of equal content share their bytes.
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

// sweep forgets what nobody uses, whenever the table has doubled.
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

// New checks a message and makes a resource of it, without sources.
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

// Any returns a serialized google.protobuf.Any with a serialized message.
func Any(typeURL string, msg []byte) []byte {
	return protowire.AppendBytes(anyHead(typeURL, len(msg)), msg)
}

// anyHead begins an Any: what stands before the length of its value. It has
// room for a value of that size.
func anyHead(typeURL string, size int) []byte {
	b := make([]byte, 0, len(typeURL)+size+16)
	b = wire.Append(b, wire.AnyTypeURL, typeURL)
	return protowire.AppendTag(b, wire.AnyValue, protowire.BytesType)
}
