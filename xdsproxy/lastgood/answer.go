// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// chunk is the approximate maximum size of a response, in bytes, for types whose resources Envoy
// accepts in parts.
const chunk = 1 << 20

// query selects resources of one type.
type query struct {
	all    bool              // all resources, except those that Envoy has
	has    map[string]string // the resources that Envoy has, with their versions
	names  []string          // resources by name
	routes []string          // virtual hosts of these route configurations
}

// selection matches resources against a query.
type selection struct {
	query
	virtualHosts bool
	wanted       map[string]bool // requested names, and whether they were found
	hostsOf      map[string]bool // route configurations, and whether a virtual host was found
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

// matches reports whether a resource must be sent, and records what was found.
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
	// A virtual host may also be requested by its route configuration or an alias.
	parent := parentOf(r.name)
	want(parent)
	if _, ok := s.hostsOf[parent]; ok {
		s.hostsOf[parent], match = true, match || !s.all
	}
	_ = wire.EachBytes(r.body, errMalformed, func(n protowire.Number, alias []byte) error { // it was validated before it was written
		if n == wire.ResourceAliases && parentOf(string(alias)) == parent {
			want(string(alias))
		}
		return nil
	})
	return match
}

// answer sends the resources of a query. It also reports missing resources if Envoy would otherwise
// wait for them forever. A response with all resources of a type is not split, because Envoy
// continues after the first response.
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
	// Envoy waits for each route configuration. If one has no virtual hosts, report a nonexistent
	// virtual host as removed.
	for _, name := range q.routes {
		if !s.hostsOf[name] {
			removed = append(removed, name+"/")
		}
	}
	return v.send(v.end(b, t, removed))
}

// single reports whether Envoy waits for each resource of a type individually and accepts no
// response without it.
func single(typeURL string) bool { return typeURL == secretType || typeURL == extensionType }

// answerEach sends resources of a single type. Missing resources are sent in separate responses,
// because Envoy stops processing a response at the first resource that it rejects.
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
			again = b // resources that are not repeated would be removed
		}
		v.store.log.Warn("envoy starts without a resource that is not in the last good configuration", "type_url", t.typeURL, "resource", name)
		if err := v.send(v.end(v.appendRefusal(slices.Clone(again), t.typeURL, name), t, nil)); err != nil {
			return err
		}
	}
	return nil
}

// convert replaces extension configurations with ones that Envoy can use. It adds those that are
// unavailable to missing.
func (v *server) convert(found []*resource, missing []string) (rest []*resource, _ []string) {
	if v.extensions == nil || len(found) == 0 {
		return found, missing
	}
	anys := make([][]byte, len(found))
	for i, r := range found {
		_ = wire.EachBytes(r.body, errMalformed, func(n protowire.Number, value []byte) error { // it was validated before it was written
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

// unknown is the name of the resource that replaces a missing one. Envoy rejects it and continues
// without it; a filter then denies all requests.
const unknown = "not in the last good configuration"

// anyOf returns an encoded google.protobuf.Any.
func anyOf(typeURL string, value []byte) []byte {
	return wire.Append(wire.Append(nil, wire.AnyTypeURL, typeURL), wire.AnyValue, value)
}

// appendRefusal appends a resource that Envoy rejects, in place of a missing one: its name differs
// from the one in its wrapper.
func (v *server) appendRefusal(b []byte, typeURL, name string) []byte {
	content := wire.Append(nil, firstName, unknown)
	if typeURL == extensionType {
		content = wire.Append(content, wire.ExtensionConfig, wire.Append(nil, wire.AnyTypeURL, rbacType)) // required
	}
	r := &resource{name: name, body: wire.Append(nil, wire.ResourceAny, anyOf(typeURL, content))}
	if v.delta {
		return v.appendResource(b, r)
	}
	wrapper := wire.Append(wire.Append(nil, wire.ResourceName, name), wire.ResourceVersion, servedVersion)
	return wire.Append(b, wire.ResponseResources, anyOf(wrapperType, append(wrapper, r.body...)))
}

// placeholder returns the resource to send in place of a missing one, if nothing else keeps Envoy
// from waiting: a route configuration without routes, a cluster without endpoints, or a nonexistent
// virtual host. Otherwise it returns nil.
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
		_ = wire.Each(r.body, errMalformed, func(f wire.Field) error { // it was validated before it was written
			if f.Number == wire.ResourceAny {
				b = append(b, f.Raw...) // the field number is the same in both messages
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

// end appends the remaining fields of a response.
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
