// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/revisions"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Past is versions of objects, or of services with their endpoints.
type Past interface {
	List(f revisions.Filter) (report.History, error)
	Changes(from, to time.Time) ([]report.Changed, error)
}

var errNoPast = errors.New("this control plane records no versions of objects")

// history returns the versions of objects, or of services.
func (d debugger) history() (answerOf, error) {
	past, kind := d.cfg.Past, model.Kind(d.query.Get("kind"))
	if kind == model.KubernetesService {
		if past = d.cfg.PastServices; past == nil {
			return answerOf{}, errors.New("this control plane reads no services of clusters; a ServiceEntry is an object")
		}
	}
	if past == nil {
		return answerOf{}, errNoPast
	}
	since, err := d.moment("since", time.Time{})
	if err != nil {
		return answerOf{}, err
	}
	out, err := past.List(revisions.Filter{
		Kind: kind, Namespace: d.query.Get("namespace"), Name: d.query.Get("name"),
		Since: since, Revision: d.query.Get("revision"),
	})
	out.Replica = d.cfg.Replica
	if kind == model.KubernetesService {
		err = errors.Join(err, readable(out.Versions))
	}
	return answerOf{json: out}, err
}

// readable replaces the compressed services of versions by plain ones.
func readable(versions []report.Version) error {
	for i, v := range versions {
		if v.Object == nil {
			continue
		}
		svc, err := revisions.Service(v)
		if err != nil {
			return err
		}
		if versions[i].Object, err = json.Marshal(svc); err != nil {
			return err
		}
	}
	return nil
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

// inPast returns a debugger for the moment that the question names with at: objects, and services with
// their endpoints, are as they were then; the mesh config is the present one. If the services of then
// are not known, they are the present ones, and since is when their history begins. Without at it
// returns d.
func (d debugger) inPast() (_ debugger, since time.Time, err error) {
	if d.query.Get("at") == "" {
		return d, since, nil
	}
	if !d.asker.all {
		return d, since, fmt.Errorf("%w: the past is for callers of the namespace %s, not %s", errForbidden, rootOf(d.mesh), d.asker.name)
	}
	if d.cfg.Past == nil || d.cfg.Propose == nil || d.cfg.Preview == nil {
		return d, since, errNoPast
	}
	at, err := d.moment("at", time.Time{})
	if err != nil {
		return d, since, err
	}
	change, err := before(d.cfg.Past, at, revisions.Object)
	if err != nil {
		return d, since, err
	}
	for key := range change {
		if !proposedKinds[key.Kind] {
			return d, since, fmt.Errorf("%s has changed since, and the effect of earlier objects of its kind cannot be computed", key)
		}
	}
	var services map[model.Key]*registry.PlatformService
	if d.cfg.PastServices != nil {
		services, err = before(d.cfg.PastServices, at, revisions.Service)
		if early := (revisions.EarlierError{}); errors.As(err, &early) {
			since = early.Begins
		} else if err != nil {
			return d, since, err
		}
	}
	d.mesh = d.cfg.Propose(d.mesh, change, services)
	d.source = pastSource{d.source, d.cfg.Preview()}
	d.cfg.Objects = pastObjects{d.cfg.Objects, change}
	return d, since, nil
}

// before returns what was different at a moment; nil for what did not exist.
func before[T any](past Past, at time.Time, decode func(report.Version) (*T, error)) (map[model.Key]*T, error) {
	changes, err := past.Changes(at, time.Now())
	if err != nil {
		return nil, err
	}
	out := map[model.Key]*T{}
	for _, c := range changes {
		key := model.Key{Kind: model.Kind(c.Kind), Namespace: c.Namespace, Name: c.Name}
		if out[key] = nil; c.Before == nil {
			continue
		}
		if out[key], err = decode(*c.Before); err != nil {
			return nil, err
		}
	}
	return out, nil
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
