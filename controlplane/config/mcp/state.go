// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// watch is what is known of one type. The store's mu guards it.
type watch struct {
	typeURL string
	// schema is that of the type; the type of the mesh config has none.
	schema schema.Schema
	// answered is true when the type was answered once, even with nothing.
	answered bool
	// entries are the resources by name, strays those whose name cannot be
	// read (full states only).
	entries map[string]entry
	strays  []model.Problem
}

// entry is what is known of one resource.
type entry struct {
	// version is that of the resource in the delta protocol, for the next
	// stream; empty if its content was not taken.
	version string
	// object is in force: what the server sent last, or the last of it that
	// was good. Nil if there is none, or it is for another revision.
	object *model.Config
	// problem is nil if there is none.
	problem *model.Problem
}

// apply makes a response visible, as far as it is good. The error says what is
// not, for the server.
func (s *Store) apply(r *response) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[r.typeURL]
	var rejected rejection
	before := w.problems()
	if r.typeURL == MeshConfigType {
		s.applyMesh(w, r, &rejected)
	} else {
		s.applyObjects(w, r, &rejected)
	}
	s.logProblems(before, w.problems())
	w.answered = true
	if !slices.ContainsFunc(s.order, func(w *watch) bool { return !w.answered }) {
		s.Loaded()
	}
	return rejected.error()
}

// applyObjects does the work of apply for objects. The caller holds mu.
func (s *Store) applyObjects(w *watch, r *response, rejected *rejection) {
	seen := make(map[string]bool, len(r.resources))
	next := make(map[string]entry, len(r.resources))
	var strays []model.Problem
	for i, res := range r.resources {
		c, key, err := decode(w.schema, r.typeURL, res.resource)
		name := res.name // empty in a full state
		if key.Name != "" {
			name = key.Namespace + "/" + key.Name
		}
		if res.name != "" && res.name != name {
			err = fmt.Errorf("metadata.name is %s and the resource's name is %s: they must be equal", quote(name), quote(res.name))
			name, key = res.name, model.Key{Kind: key.Kind}
		}
		switch {
		case name == "":
			name = fmt.Sprintf("resource %d", i)
			rejected.add(name, err)
			strays = append(strays, model.Problem{Object: key, Source: s.place(w, name), Reason: err.Error()})
		case seen[name]:
			rejected.add(quote(name), errors.New("it is a duplicate: the first one takes effect"))
		case err != nil:
			rejected.add(quote(name), err)
			seen[name], next[name] = true, s.badEntry(w, name, key, err)
		default:
			seen[name], next[name] = true, s.goodEntry(w, name, c, res.version)
		}
	}
	gone := r.removed
	if r.full {
		w.strays, gone = strays, nil
		if len(strays) == 0 {
			gone = slices.Collect(maps.Keys(w.entries))
		}
		// Else what cannot be read may be the new version of any object: none
		// of those that are not in the answer counts as gone.
	}
	changes := map[model.Key]*model.Config{}
	for _, name := range gone {
		if old := w.entries[name].object; !seen[name] {
			if old != nil {
				changes[old.Key] = nil
			}
			delete(w.entries, name)
		}
	}
	for name, e := range next {
		if old := w.entries[name].object; e.object != nil {
			changes[e.object.Key] = e.object
		} else if old != nil {
			changes[old.Key] = nil
		}
		w.entries[name] = e
	}
	s.Apply(changes)
}

// goodEntry returns the entry of a good object. One that says the same as before
// stays the same object, so that nobody hears of it.
func (s *Store) goodEntry(w *watch, name string, c *model.Config, version string) entry {
	if rev := c.Labels[revisionLabel]; rev != "" && rev != s.revision {
		return entry{version: version}
	}
	if old := w.entries[name].object; old != nil && config.SameContent(old, c) && old.Created.Equal(c.Created) {
		return entry{version: version, object: old}
	}
	// The server may have been replaced by one that counts again, or give no
	// version at all.
	s.changes++
	c.ResourceVersion = fmt.Sprintf("%s.%d", c.ResourceVersion, s.changes)
	c.Source = s.place(w, name)
	return entry{version: version, object: c}
}

// badEntry returns the entry of a resource that is not good.
func (s *Store) badEntry(w *watch, name string, key model.Key, err error) entry {
	e := entry{object: w.entries[name].object, problem: &model.Problem{Object: key, Source: s.place(w, name), Reason: err.Error()}}
	if e.object != nil {
		e.problem.Reason += "; the last good version stays in force"
	}
	return e
}

// applyMesh does the work of apply for the mesh wide settings.
func (s *Store) applyMesh(w *watch, r *response, rejected *rejection) {
	if len(r.resources) == 0 {
		if r.full || len(r.removed) > 0 {
			s.mesh, w.entries = nil, map[string]entry{}
		}
		return
	}
	res := r.resources[0]
	mesh := &meshv1alpha1.MeshConfig{}
	err := func() error {
		want := string(proto.MessageName(mesh))
		if messageName(res.resource) != want && res.resource.GetTypeUrl() != r.typeURL {
			return fmt.Errorf("it is a %s: it must be a %s", quote(res.resource.GetTypeUrl()), want)
		}
		if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(res.resource.GetValue(), mesh); err != nil {
			return fmt.Errorf("it cannot be read: %s", parseFault(err))
		}
		return nil
	}()
	switch {
	case err != nil:
		rejected.add("MeshConfig", err)
		reason := err.Error()
		if s.mesh != nil {
			reason += "; the last good version stays in force"
		}
		key := model.Key{Kind: model.MeshConfigKind, Name: string(model.MeshConfigKind)}
		w.entries = map[string]entry{res.name: {problem: &model.Problem{Object: key, Source: s.place(w, res.name), Reason: reason}}}
	default:
		w.entries = map[string]entry{res.name: {version: res.version}}
		s.mesh = mesh
	}
}

// place says where a person finds a resource.
func (s *Store) place(w *watch, name string) string {
	if len(name) > maxFault {
		name = name[:maxFault] + "..."
	}
	return strings.TrimSuffix("xds://"+s.options.address+"/"+w.typeURL+"/"+name, "/")
}

// problems lists those of a type, in the order of their places.
func (w *watch) problems() []model.Problem {
	all := slices.Clone(w.strays)
	for _, e := range w.entries {
		if e.problem != nil {
			all = append(all, *e.problem)
		}
	}
	slices.SortFunc(all, func(a, b model.Problem) int { return cmp.Compare(a.Source, b.Source) })
	return all
}

// versions returns what the next stream says that it has.
func (w *watch) versions() map[string]string {
	has := map[string]string{}
	for name, e := range w.entries {
		if e.version != "" {
			has[name] = e.version
		}
	}
	return has
}

// Problems lists the resources that cannot be used now.
func (s *Store) Problems() []model.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []model.Problem
	for _, w := range s.order {
		all = append(all, w.problems()...)
	}
	slices.SortStableFunc(all, func(a, b model.Problem) int { return cmp.Compare(a.Source, b.Source) })
	return all
}

// logProblems says once that a problem is there and once that it is gone.
func (s *Store) logProblems(before, now []model.Problem) {
	say := func(log func(string, ...any), message string, of, in []model.Problem) {
		there := make(map[model.Problem]bool, len(in))
		for _, p := range in {
			there[p] = true
		}
		for _, p := range of {
			if !there[p] {
				log(message, "kind", string(p.Object.Kind), "name", p.Object.Name, "namespace", p.Object.Namespace, "source", p.Source, "reason", p.Reason)
			}
		}
	}
	say(s.log.Warn, "a configuration object has a problem", now, before)
	say(s.log.Info, "a problem with a configuration object is resolved", before, now)
}

// What is reported to a server: a response must not become a request that is too large
// to be read.
const (
	maxFaults = 20  // resources
	maxFault  = 400 // bytes of one
)

// rejection gathers what is wrong with a response.
type rejection struct {
	texts []string
	count int
}

func (r *rejection) add(name string, err error) {
	if r.count++; r.count > maxFaults {
		return
	}
	text := name + ": " + err.Error()
	if len(text) > maxFault {
		text = clip.Start(text, maxFault) + "..."
	}
	r.texts = append(r.texts, text)
}

func (r *rejection) error() error {
	if r.count == 0 {
		return nil
	}
	text := strings.Join(r.texts, "; ")
	if more := r.count - len(r.texts); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return errors.New(text)
}
