// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
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
	kind := model.Kind(d.query.Get("kind"))
	past, err := d.pastOf(kind)
	if err != nil {
		return answerOf{}, err
	}
	since, err := d.moment("since", time.Time{})
	if err != nil {
		return answerOf{}, err
	}
	out, err := past.List(revisions.Filter{
		Kind: kind, Namespace: d.query.Get("namespace"), Name: d.query.Get("name"),
		Since: since, Revision: d.query.Get("revision"),
	})
	out.Replica, out.Stores = d.cfg.Replica, d.cfg.Stores
	if kind == model.KubernetesService {
		err = errors.Join(err, readable(out.Versions))
	}
	return answerOf{json: out}, err
}

// pastOf returns the versions of the objects of a kind.
func (d debugger) pastOf(kind model.Kind) (Past, error) {
	switch {
	case kind == model.KubernetesService && d.cfg.PastServices == nil:
		return nil, errors.New("this control plane reads no services of clusters; a ServiceEntry is an object")
	case kind == model.KubernetesService:
		return d.cfg.PastServices, nil
	case d.cfg.Past == nil:
		return nil, errNoPast
	}
	return d.cfg.Past, nil
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

// inPast returns a debugger for the moment that the question names with at: objects, the mesh config, and
// services with their endpoints, are as they were then, but for what is not known. Without at it
// returns d.
func (d debugger) inPast() (_ debugger, unknown report.Unrecorded, err error) {
	if d.query.Get("at") == "" {
		return d, unknown, nil
	}
	if !d.asker.all {
		return d, unknown, d.notOfPast()
	}
	if d.cfg.Past == nil || d.cfg.Propose == nil || d.cfg.Preview == nil {
		return d, unknown, errNoPast
	}
	at, err := d.moment("at", time.Time{})
	if err != nil {
		return d, unknown, err
	}
	changes, err := d.cfg.Past.Changes(at, time.Now())
	if err != nil {
		return d, unknown, err
	}
	then := Proposal{}
	if changes, unknown.MeshSince, err = then.settings(changes); err == nil {
		then.Objects, err = before(changes, revisions.Object)
	}
	if err != nil {
		return d, unknown, err
	}
	if d.cfg.PastServices != nil {
		changes, err = d.cfg.PastServices.Changes(at, time.Now())
		if err == nil {
			then.Services, err = before(changes, revisions.Service)
		}
		if early := (revisions.EarlierError{}); errors.As(err, &early) {
			unknown.ServicesSince = early.Begins
		} else if err != nil {
			return d, unknown, err
		}
	}
	made := d.cfg.Propose(d.mesh, then)
	d.mesh, unknown.Present = made.Mesh, presentOf(made.After)
	d.source = pastSource{d.source, d.cfg.Preview()}
	d.cfg.Objects = pastObjects{d.cfg.Objects, then.Objects}
	d.then = true
	return d, unknown, nil
}

// presentOf returns what a conversion of the past depends on that no history has.
func presentOf(made *gatewayapi.Result) (out []string) {
	if made == nil {
		return nil
	}
	secrets, configMaps, namespaces := made.Beside()
	for _, of := range []struct {
		used bool
		what string
	}{{secrets, "Secrets"}, {configMaps, "ConfigMaps"}, {namespaces, "labels of namespaces"}} {
		if of.used {
			out = append(out, of.what)
		}
	}
	return out
}

// notOfPast returns the error for callers that do not see all of the mesh.
func (d debugger) notOfPast() error {
	return fmt.Errorf("%w: the past is for callers of the namespace %s, not %s", errForbidden, rootOf(d.mesh), d.asker.name)
}

// settings takes the mesh config and the networks of before out of changes. If they are not known,
// since is when their history begins.
func (p *Proposal) settings(changes []report.Changed) (others []report.Changed, since time.Time, err error) {
	for _, c := range changes {
		switch key := keyOf(c.Ref); {
		case key.Kind != model.MeshConfigKind:
			others = append(others, c)
		case key == revisions.MeshKey && c.Before != nil:
			p.Mesh, err = revisions.Mesh(*c.Before)
		case key == revisions.MeshKey && c.After != nil:
			since = c.After.At // there is a mesh config at all times
		case key == revisions.NetworksKey && c.Before != nil:
			p.Networks, err = revisions.Networks(*c.Before)
		case key == revisions.NetworksKey:
			p.Networks = &meshv1alpha1.MeshNetworks{}
		}
		if err != nil {
			return nil, since, err
		}
	}
	if !since.IsZero() {
		p.Networks = nil // they were not recorded either
	}
	return others, since, nil
}

// before returns what was different before changes; nil for what did not exist.
func before[T any](changes []report.Changed, decode func(report.Version) (*T, error)) (map[model.Key]*T, error) {
	out := map[model.Key]*T{}
	for _, c := range changes {
		key := keyOf(c.Ref)
		if out[key] = nil; c.Before == nil {
			continue
		}
		var err error
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
