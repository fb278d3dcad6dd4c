// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/revisions"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Past is the versions of objects.
type Past interface {
	List(f revisions.Filter) (report.History, error)
	Changes(from, to time.Time) ([]report.Changed, error)
	At(at time.Time) (map[model.Key]*model.Config, error)
}

var errNoPast = errors.New("this control plane records no versions of objects")

// history returns the versions of objects.
func (d debugger) history() (answerOf, error) {
	if d.cfg.Past == nil {
		return answerOf{}, errNoPast
	}
	since, err := d.moment("since", time.Time{})
	if err != nil {
		return answerOf{}, err
	}
	out, err := d.cfg.Past.List(revisions.Filter{
		Kind: model.Kind(d.query.Get("kind")), Namespace: d.query.Get("namespace"), Name: d.query.Get("name"),
		Since: since, Revision: d.query.Get("revision"),
	})
	out.Replica = d.cfg.Replica
	return answerOf{json: out}, err
}

// changes returns the objects that differ between two moments.
func (d debugger) changes() (answerOf, error) {
	if d.cfg.Past == nil {
		return answerOf{}, errNoPast
	}
	out := report.Changes{Replica: d.cfg.Replica}
	var err error
	if out.To, err = d.moment("to", time.Now()); err != nil {
		return answerOf{}, err
	}
	if out.From, err = d.moment("from", time.Time{}); err != nil {
		return answerOf{}, err
	}
	if out.From.After(out.To) {
		return answerOf{}, fmt.Errorf("from=%s is after to=%s", out.From.Format(time.RFC3339), out.To.Format(time.RFC3339))
	}
	objects, err := d.cfg.Past.Changes(out.From, out.To)
	out.Objects = orEmpty(objects)
	return answerOf{json: out}, err
}

// moment returns the time in a field.
func (d debugger) moment(name string, otherwise time.Time) (time.Time, error) {
	text := d.query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%s=%s is not a time: write it as in %s", name, text, time.Now().UTC().Format(time.RFC3339))
	}
	return at, nil
}

// inPast returns a debugger for the moment that the question names with at: objects are as they were
// then; services of a cluster, endpoints and the mesh config are the present ones. Without at it
// returns d.
func (d debugger) inPast() (debugger, error) {
	if d.query.Get("at") == "" {
		return d, nil
	}
	if !d.asker.all {
		return d, fmt.Errorf("%w: the past is for callers of the namespace %s, not %s", errForbidden, rootOf(d.mesh), d.asker.name)
	}
	if d.cfg.Past == nil || d.cfg.Propose == nil || d.cfg.Preview == nil {
		return d, errNoPast
	}
	at, err := d.moment("at", time.Time{})
	if err != nil {
		return d, err
	}
	change, err := d.cfg.Past.At(at)
	if err != nil {
		return d, err
	}
	for key := range change {
		if !proposedKinds[key.Kind] {
			return d, fmt.Errorf("%s has changed since, and the effect of earlier objects of its kind cannot be computed", key)
		}
	}
	d.mesh = d.cfg.Propose(d.mesh, change)
	d.source = pastSource{d.source, d.cfg.Preview()}
	d.cfg.Objects = pastObjects{d.cfg.Objects, change}
	return d, nil
}

// pastSource generates what proxies would have had.
type pastSource struct {
	Source
	preview Generator
}

func (s pastSource) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	return s.preview.Generate(mesh, proxy, typeURL)
}

// Streams returns the streams without the sets that their proxies have now.
func (s pastSource) Streams() []*Stream {
	var out []*Stream
	for _, st := range s.Source.Streams() {
		before := *st
		before.Given = nil
		out = append(out, &before)
	}
	return out
}

// pastObjects are the objects as they were.
type pastObjects struct {
	StoredObjects
	change map[model.Key]*model.Config
}

func (o pastObjects) Get(key model.Key) *model.Config {
	if c, changed := o.change[key]; changed {
		return c
	}
	return o.StoredObjects.Get(key)
}
