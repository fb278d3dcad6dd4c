// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// observed is the state of one key at one revision.
type observed struct {
	path     string
	revision int64
	// object is nil when the key is gone, or its value is not valid; then
	// problem says why, and invalid is the object if it can be read at least.
	object  *model.Config
	invalid *model.Config
	gone    bool
	problem *model.Problem
	// before is the last of the key that could be read, if object cannot;
	// nil if nobody looked, or there is none.
	before *model.Config
}

// read returns the state that a key and its value are.
func (s *Store) read(path string, kv *mvccpb.KeyValue) observed {
	o := observed{path: path, revision: kv.ModRevision}
	key, err := keyOf(path)
	if err == nil {
		o.object, err = s.decode(key, kv)
	}
	if err != nil {
		o.problem = &model.Problem{Object: key, Source: s.conn.place(path), Reason: err.Error()}
		_, o.problem.Warning = err.(errUnknownKind)
		return o
	}
	o.object.Source = s.conn.place(path)
	if errs, _ := validate.Object(o.object); len(errs) > 0 {
		// Somebody wrote past the rules: what takes snapshots relies on them.
		texts := make([]string, len(errs))
		for i, e := range errs {
			texts[i] = e.Error()
		}
		o.problem = &model.Problem{Object: key, Source: o.object.Source, Reason: strings.Join(texts, "; ")}
		o.object, o.invalid = nil, o.object
	}
	return o
}

// decode reads the object of a key.
func (s *Store) decode(key model.Key, kv *mvccpb.KeyValue) (*model.Config, error) {
	object, err := codec.DecodeStored(kv.Value)
	if err != nil {
		return nil, err
	}
	if object.Key != key {
		return nil, fmt.Errorf("the value is the object %s: write it under its own key, or remove it", object.Key)
	}
	object.ResourceVersion = strconv.FormatInt(kv.ModRevision, 10)
	object.UID = strconv.FormatInt(kv.CreateRevision, 10)
	return object, nil
}

// entry returns what is known of a key.
func (s *Store) entry(path string) entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[path]
}

// observe makes newer states visible, all at once. What is older than what is
// known changes nothing.
func (s *Store) observe(revision int64, states ...observed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = max(s.revision, revision)
	s.apply(states)
}

// apply does the work of observe. The caller holds mu.
func (s *Store) apply(states []observed) {
	next := map[model.Key]*model.Config{}
	for _, o := range states {
		old := s.entries[o.path]
		if o.revision <= old.revision {
			continue
		}
		e := entry{revision: o.revision, gone: o.gone, object: o.object, invalid: o.invalid, problem: o.problem}
		if good := cmp.Or(old.object, o.before); e.object == nil && !e.gone && good != nil {
			e.object = good
			kept := *e.problem
			kept.Reason += "; the last good version stays in force until the control plane restarts and etcd has forgotten it"
			e.problem = &kept
		}
		if e.gone {
			s.graves = append(s.graves, grave{o.path, o.revision})
		}
		s.entries[o.path] = e
		s.logProblem(old.problem, e.problem)
		switch {
		case e.object != nil:
			next[e.object.Key] = e.object
		case old.object != nil:
			next[old.object.Key] = nil
		}
	}
	if len(next) > 0 {
		s.Apply(next)
	}
}

// logProblem says once that a problem is there and once that it is gone.
func (s *Store) logProblem(old, now *model.Problem) {
	say := func(log func(string, ...any), message string, p *model.Problem) {
		log(message, "kind", string(p.Object.Kind), "name", p.Object.Name, "namespace", p.Object.Namespace, "source", p.Source, "reason", p.Reason)
	}
	same := old != nil && now != nil && *old == *now
	if now != nil && !same {
		say(s.log.Warn, "a configuration object has a problem", now)
	}
	if old != nil && !same {
		say(s.log.Info, "a problem with a configuration object is resolved", old)
	}
}

// highest returns the highest revision that was seen.
func (s *Store) highest() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// passed says that nothing older than a revision will come any more.
func (s *Store) passed(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = max(s.revision, revision)
	s.graves = slices.DeleteFunc(s.graves, func(g grave) bool {
		if g.revision > revision {
			return false
		}
		if e := s.entries[g.path]; e.gone && e.revision == g.revision {
			delete(s.entries, g.path)
		}
		return true
	})
}

// replace makes states all there is at a revision. Keys that are in there
// names only are as they were.
func (s *Store) replace(revision int64, there map[string]bool, states []observed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = max(s.revision, revision)
	for path, e := range s.entries {
		if !there[path] && !e.gone && e.revision <= revision {
			states = append(states, observed{path: path, revision: revision, gone: true})
		}
	}
	s.apply(states)
}

// wentBack reports whether etcd is at a lower revision than it was: it was
// set up again, or from an old copy. Then no revision counts any more.
func (s *Store) wentBack(revision int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision >= s.revision {
		return false
	}
	s.revision, s.graves = revision, nil
	for path, e := range s.entries {
		if e.gone {
			delete(s.entries, path)
			continue
		}
		e.revision = 0
		s.entries[path] = e
	}
	return true
}
