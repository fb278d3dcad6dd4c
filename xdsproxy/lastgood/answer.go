// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// chunk is the size at which a response ends and another one begins, in bytes,
// where Envoy takes a part of what it asked for.
const chunk = 1 << 20

// query selects resources of one type.
type query struct {
	all    bool              // all of them, except those that Envoy has
	has    map[string]string // those, with their versions
	names  []string          // by name
	routes []string          // the virtual hosts of route configurations
}

// selection matches resources with a query.
type selection struct {
	query
	virtualHosts bool
	wanted       map[string]bool // names, and whether there is something
	hostsOf      map[string]bool // route configurations, and whether they have a virtual host
}

func newSelection(typeURL string, q query) *selection {
	s := &selection{query: q, virtualHosts: typeURL == virtualHostType, wanted: map[string]bool{}, hostsOf: map[string]bool{}}
	for _, name := range q.names {
		s.wanted[name] = false
	}
	for _, name := range q.routes {
		s.hostsOf[name] = false
	}
	return s
}

// matches reports whether a resource is to be sent, and notes what was found.
func (s *selection) matches(r *resource) bool {
	if r.flags&flagWithheld != 0 {
		return false
	}
	_, has := s.has[r.name]
	match := s.all && !has
	want := func(name string) {
		if _, ok := s.wanted[name]; ok {
			s.wanted[name], match = true, true
		}
	}
	want(r.name)
	if !s.virtualHosts {
		return match
	}
	// A virtual host is asked for by its route configuration or an alias, too.
	parent := parentOf(r.name)
	want(parent)
	if _, ok := s.hostsOf[parent]; ok {
		s.hostsOf[parent], match = true, match || !s.all
	}
	_ = wire.EachBytes(r.body, errMalformed, func(n protowire.Number, alias []byte) error { // it was read before it was written
		if n == wire.ResourceAliases && parentOf(string(alias)) == parent {
			want(string(alias))
		}
		return nil
	})
	return match
}

// answer sends the resources of a query, and says what is missing where Envoy
// would wait for it forever. Envoy goes on when it has the first response for
// all of a type: that is not sent in parts.
func (v *server) answer(t *served, q query) error {
	if single(t.typeURL) {
		return v.answerEach(t, q)
	}
	whole := q.all || len(q.routes) > 0 || whole(t.typeURL)
	size := v.snapshot.types[t.typeURL]
	if !whole {
		size = min(size, chunk)
	}
	room := func() []byte { return make([]byte, 0, size+chunk/16) }
	b := room()
	s := newSelection(t.typeURL, q)
	_, err := v.scan(func(r *resource) error {
		if r.typeURL != t.typeURL || !s.matches(r) {
			return nil
		}
		if !whole && len(b) > 0 && len(b)+len(r.body) > chunk {
			if err := v.send(v.end(b, t, nil)); err != nil {
				return err
			}
			b = room()
		}
		b = v.appendResource(b, r)
		return nil
	})
	if err != nil {
		return err
	}
	var removed []string
	for _, name := range q.names {
		if s.wanted[name] {
			continue
		}
		if p := placeholder(t.typeURL, name, v.delta); p != nil {
			b = v.appendResource(b, p)
		} else {
			removed = append(removed, name)
		}
	}
	// Envoy waits for each route configuration: of one without virtual hosts,
	// one that does not exist is removed.
	for _, name := range q.routes {
		if !s.hostsOf[name] {
			removed = append(removed, name+"/")
		}
	}
	return v.send(v.end(b, t, removed))
}

// single reports whether Envoy waits for each resource of a type by itself, and
// takes no answer without it for one.
func single(typeURL string) bool { return typeURL == secretType || typeURL == extensionType }

// answerEach sends resources of a single type. Those that are missing are
// refused in responses of their own: the first that Envoy rejects of a response
// ends its work on it.
func (v *server) answerEach(t *served, q query) error {
	var found []*resource
	s := newSelection(t.typeURL, q)
	_, err := v.scan(func(r *resource) error {
		if r.typeURL == t.typeURL && s.matches(r) {
			found = append(found, &resource{name: r.name, body: slices.Clone(r.body)})
		}
		return nil
	})
	if err != nil {
		return err
	}
	var missing []string
	for _, name := range q.names {
		if !s.wanted[name] {
			missing = append(missing, name)
		}
	}
	if t.typeURL == extensionType {
		found, missing = v.convert(found, missing)
	}
	var b []byte
	for _, r := range found {
		b = v.appendResource(b, r)
	}
	if len(found) > 0 || len(missing) == 0 {
		if err := v.send(v.end(slices.Clone(b), t, nil)); err != nil {
			return err
		}
	}
	for _, name := range missing {
		var again []byte
		if !v.delta {
			again = b // what is not repeated would be gone
		}
		v.store.log.Warn("envoy starts without a resource that is not in the last good configuration", "type_url", t.typeURL, "resource", name)
		if err := v.send(v.end(v.appendRefusal(slices.Clone(again), t.typeURL, name), t, nil)); err != nil {
			return err
		}
	}
	return nil
}

// convert makes extension configurations what Envoy can use. Those that cannot
// be had are missing.
func (v *server) convert(found []*resource, missing []string) (rest []*resource, _ []string) {
	if v.extensions == nil || len(found) == 0 {
		return found, missing
	}
	anys := make([][]byte, len(found))
	for i, r := range found {
		_ = wire.EachBytes(r.body, errMalformed, func(n protowire.Number, value []byte) error { // it was read before it was written
			if n == wire.ResourceAny {
				anys[i] = value
			}
			return nil
		})
	}
	for i, b := range v.extensions(anys) {
		if b == nil {
			missing = append(missing, found[i].name)
			continue
		}
		found[i].body = wire.Append(nil, wire.ResourceAny, b)
		rest = append(rest, found[i])
	}
	return rest, missing
}

// unknown is the name of what replaces a missing resource: Envoy rejects it and
// goes on without, which for a filter means that it lets nothing pass.
const unknown = "not in the last good configuration"

// anyOf returns the content of a google.protobuf.Any.
func anyOf(typeURL string, value []byte) []byte {
	return wire.Append(wire.Append(nil, wire.AnyTypeURL, typeURL), wire.AnyValue, value)
}

// appendRefusal appends what Envoy rejects in place of a resource: one with
// another name than its wrapper says.
func (v *server) appendRefusal(b []byte, typeURL, name string) []byte {
	content := wire.Append(nil, firstName, unknown)
	if typeURL == extensionType {
		content = wire.Append(content, wire.ExtensionConfig, wire.Append(nil, wire.AnyTypeURL, rbacType)) // there has to be one
	}
	r := &resource{name: name, body: wire.Append(nil, wire.ResourceAny, anyOf(typeURL, content))}
	if v.delta {
		return v.appendResource(b, r)
	}
	wrapper := wire.Append(wire.Append(nil, wire.ResourceName, name), wire.ResourceVersion, servedVersion)
	return wire.Append(b, wire.ResponseResources, anyOf(wrapperType, append(wrapper, r.body...)))
}

// placeholder is what is sent in place of a missing resource, if nothing else
// keeps Envoy from waiting: a route configuration without routes, a cluster
// without endpoints, a virtual host that does not exist.
func placeholder(typeURL, name string, delta bool) *resource {
	switch {
	case typeURL == virtualHostType && strings.Contains(name, "/"):
		return &resource{name: name, body: wire.Append(nil, wire.ResourceAliases, name)}
	case typeURL == routeType, typeURL == endpointType && !delta:
		return &resource{name: name, body: wire.Append(nil, wire.ResourceAny, anyOf(typeURL, wire.Append(nil, firstName, name)))}
	}
	return nil
}

// appendResource appends a resource to a response.
func (v *server) appendResource(b []byte, r *resource) []byte {
	if !v.delta {
		_ = wire.Each(r.body, errMalformed, func(f wire.Field) error { // it was read before it was written
			if f.Number == wire.ResourceAny {
				b = append(b, f.Raw...) // the field has the same number in both
			}
			return nil
		})
		return b
	}
	size := protowire.SizeBytes(len(r.name)) + protowire.SizeBytes(len(servedVersion)) + 2 + len(r.body)
	b = protowire.AppendVarint(protowire.AppendTag(b, wire.ResponseResources, protowire.BytesType), uint64(size))
	b = wire.Append(wire.Append(b, wire.ResourceVersion, servedVersion), wire.ResourceName, r.name)
	return append(b, r.body...)
}

// end appends the rest of a response.
func (v *server) end(b []byte, t *served, removed []string) []byte {
	b = wire.Append(b, wire.ResponseVersion, servedVersion)
	b = wire.Append(wire.Append(b, wire.ResponseTypeURL, t.typeURL), wire.ResponseNonce, v.nextNonce(t))
	if v.delta {
		for _, name := range removed {
			b = wire.Append(b, wire.ResponseRemoved, name)
		}
	}
	return b
}
