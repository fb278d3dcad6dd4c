// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// chunk is the size at which a response that may have a part of what is asked
// for ends and another one begins, in bytes.
const chunk = 1 << 20

// answer is what is sent: resources on disk, and names that are not there.
type answer struct {
	locs    map[key]loc
	missing []string
	removed []string
	whole   bool // it is one response
}

// all answers with all of a type. It is not sent in parts: Envoy goes on when
// it has the first one.
func all(kept set) answer { return answer{locs: maps.Clone(kept), whole: true} }

// with adds another answer.
func (a answer) with(b answer) answer {
	if b.locs == nil {
		return a
	}
	maps.Copy(b.locs, a.locs)
	b.missing = append(b.missing, a.missing...)
	return b
}

// find looks names up.
func (v *server) find(t *served, names []string) answer {
	kept := v.sets[t.typeURL]
	a := answer{locs: make(map[key]loc, len(names)), whole: whole(t.typeURL)}
	for _, name := range names {
		k := keyOf(name)
		if l, ok := kept[k]; ok && l.flags&flagWithheld == 0 {
			a.locs[k] = l
			continue
		}
		if t.typeURL != virtualHostType || !v.hosts(a.locs, kept, name) {
			a.missing = append(a.missing, name)
		}
	}
	return a
}

// hosts looks up the virtual hosts of a route configuration, or the one that
// has a name as an alias.
func (v *server) hosts(into map[key]loc, kept set, name string) (found bool) {
	own, parent := parentOf(name), keyOf(name)
	for k, l := range kept {
		if k.under(own) || k.under([parentSize]byte(parent[:parentSize])) && v.aliased(l, name) {
			into[k], found = l, true
		}
	}
	return found
}

// hostsOf answers with the virtual hosts of route configurations. Envoy asks
// for all virtual hosts at once and waits for each route configuration: of one
// that has none, something that is not there is removed.
func (v *server) hostsOf(routes []string) answer {
	kept := v.sets[virtualHostType]
	a := answer{locs: map[key]loc{}, whole: true}
	for _, name := range routes {
		found, parent := false, parentOf(name)
		for k, l := range kept {
			if k.under(parent) {
				a.locs[k], found = l, true
			}
		}
		if !found {
			a.removed = append(a.removed, name+"/")
		}
	}
	return a
}

// aliased says whether a resource has a name as an alias.
func (v *server) aliased(l loc, name string) (found bool) {
	p, err := v.readPut(&v.buffers, l)
	if err != nil {
		return false // it is told when it is to be sent
	}
	_ = eachField(p.body, func(n protowire.Number, _, alias []byte) error { // as far as it can be read
		found = found || n == wire.ResourceAliases && string(alias) == name
		return nil
	})
	return found
}

// answer sends resources, as they stand on disk, and says what is missing
// where Envoy would wait for it forever.
func (v *server) answer(t *served, a answer) error {
	locs := make([]loc, 0, len(a.locs))
	size := 0
	for _, l := range a.locs {
		if l.flags&flagWithheld == 0 {
			locs = append(locs, l)
			size += int(l.size)
		}
	}
	slices.SortFunc(locs, func(a, b loc) int { return cmp.Compare(a.at, b.at) })
	if single(t.typeURL) {
		return v.answerEach(t, locs, a)
	}
	if !a.whole {
		size = min(size, chunk)
	}
	b, filled := make([]byte, 0, size+chunk/16), 0
	for _, l := range locs {
		p, err := v.readPut(&v.buffers, l)
		if err != nil {
			return err
		}
		if filled > 0 && !a.whole && len(b)+len(p.body) > chunk {
			if err := v.send(v.end(b, t, nil)); err != nil {
				return err
			}
			b, filled = make([]byte, 0, size+chunk/16), 0
		}
		b = v.appendResource(b, p)
		filled++
		v.trim()
	}
	removed := a.removed
	for _, name := range a.missing {
		if p := placeholder(t.typeURL, name, v.delta); p != nil {
			b = v.appendResource(b, p)
		} else {
			removed = append(removed, name)
		}
	}
	return v.send(v.end(b, t, removed))
}

// single says whether Envoy waits for each resource of a type by itself, and
// takes no answer without it for one.
func single(typeURL string) bool { return typeURL == secretType || typeURL == extensionType }

// answerEach sends resources of a single type. Those that are missing are
// refused in responses of their own: the first that Envoy rejects of a response
// ends its work on it.
func (v *server) answerEach(t *served, locs []loc, a answer) error {
	var found []*put
	for _, l := range locs {
		p, err := v.readPut(&v.buffers, l)
		if err != nil {
			return err
		}
		p.body = slices.Clone(p.body)
		found = append(found, p)
	}
	missing := a.missing
	if t.typeURL == extensionType {
		found, missing = v.convert(found, missing)
	}
	var b []byte
	for _, p := range found {
		b = v.appendResource(b, p)
	}
	if len(found) > 0 || len(missing) == 0 {
		if err := v.send(v.end(slices.Clone(b), t, a.removed)); err != nil {
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
func (v *server) convert(found []*put, missing []string) (rest []*put, _ []string) {
	if v.extensions == nil || len(found) == 0 {
		return found, missing
	}
	anys := make([][]byte, len(found))
	for i, p := range found {
		_ = eachField(p.body, func(n protowire.Number, _, value []byte) error { // it was read before it was written
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
		found[i].body = appendField(nil, wire.ResourceAny, b)
		rest = append(rest, found[i])
	}
	return rest, missing
}

// unknown is the name of what stands for a missing resource: Envoy rejects it
// and goes on without, which for a filter means that it lets nothing pass.
const unknown = "not in the last good configuration"

// appendRefusal appends what Envoy rejects in place of a resource: one that
// bears another name than its wrapper says.
func (v *server) appendRefusal(b []byte, typeURL, name string) []byte {
	content := appendField(nil, firstName, unknown)
	if typeURL == extensionType {
		content = appendField(content, wire.ExtensionConfig, appendField(nil, wire.AnyTypeURL, rbacType)) // there has to be one
	}
	wrapper := appendField(nil, wire.ResourceAny, appendField(appendField(nil, wire.AnyTypeURL, typeURL), wire.AnyValue, content))
	p := &put{typeURL: typeURL, name: name, body: wrapper}
	if v.delta {
		return v.appendResource(b, p)
	}
	wrapper = appendField(appendField(nil, wire.ResourceName, name), wire.ResourceVersion, servedVersion)
	wrapper = append(wrapper, p.body...)
	return appendField(b, wire.ResponseResources, appendField(appendField(nil, wire.AnyTypeURL, wrapperType), wire.AnyValue, wrapper))
}

// placeholder is what is sent in place of a resource that is not there, if
// nothing else keeps Envoy from waiting: a route configuration without routes,
// a cluster without endpoints, a virtual host that does not exist.
func placeholder(typeURL, name string, delta bool) *put {
	p := &put{typeURL: typeURL, name: name}
	switch {
	case typeURL == virtualHostType && strings.Contains(name, "/"):
		p.body = appendField(nil, wire.ResourceAliases, name)
	case typeURL == routeType, typeURL == endpointType && !delta:
		content := appendField(nil, firstName, name)
		p.body = appendField(nil, wire.ResourceAny, appendField(appendField(nil, wire.AnyTypeURL, typeURL), wire.AnyValue, content))
	default:
		return nil
	}
	return p
}

// appendResource appends a resource to a response.
func (v *server) appendResource(b []byte, p *put) []byte {
	if !v.delta {
		_ = eachField(p.body, func(n protowire.Number, raw, _ []byte) error { // it was read before it was written
			if n == wire.ResourceAny {
				b = append(b, raw...) // the field has the same number in both
			}
			return nil
		})
		return b
	}
	size := protowire.SizeBytes(len(p.name)) + protowire.SizeBytes(len(servedVersion)) + 2 + len(p.body)
	b = protowire.AppendVarint(protowire.AppendTag(b, wire.ResponseResources, protowire.BytesType), uint64(size))
	b = appendField(appendField(b, wire.ResourceVersion, servedVersion), wire.ResourceName, p.name)
	return append(b, p.body...)
}

// end appends the rest of a response.
func (v *server) end(b []byte, t *served, removed []string) []byte {
	b = appendField(b, wire.ResponseVersion, servedVersion)
	b = appendField(appendField(b, wire.ResponseTypeURL, t.typeURL), wire.ResponseNonce, v.nextNonce(t))
	if v.delta {
		for _, name := range removed {
			b = appendField(b, wire.ResponseRemoved, name)
		}
	}
	return b
}
