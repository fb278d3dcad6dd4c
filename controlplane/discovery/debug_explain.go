// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// An answer about an object or a proxy holds at most so many resources, proxies
// or objects: a mesh may have more than anybody reads.
const maxExplained = 10_000

// explain tells what became of an object, or what decides the configuration of a
// proxy.
func (d debugger) explain() (answerOf, error) {
	if d.mesh.Services == nil {
		return answerOf{}, errors.New("there is no snapshot of services yet")
	}
	if d.query.Get("proxyID") != "" {
		return d.explainProxy()
	}
	ref := report.Ref{Kind: d.query.Get("kind"), Namespace: d.query.Get("namespace"), Name: d.query.Get("name")}
	if ref.Kind == "" || ref.Name == "" {
		return answerOf{}, errors.New("name an object, as in ?kind=VirtualService&namespace=shop&name=catalog, or a proxy, as in ?proxyID=catalog-1.shop")
	}
	if !d.asker.all && ref.Namespace != d.asker.namespace {
		return answerOf{}, fmt.Errorf("%w: the object is of the namespace %q, and this is %s", errForbidden, ref.Namespace, d.asker.name)
	}
	return answerOf{json: d.explainObject(keyOf(ref))}, nil
}

func keyOf(r report.Ref) model.Key {
	return model.Key{Kind: model.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name}
}

func refOf(k model.Key) report.Ref {
	return report.Ref{Kind: string(k.Kind), Namespace: k.Namespace, Name: k.Name}
}

// origin makes origins, once for proxies that see the same.
type origin struct {
	d    debugger
	seen map[originKey]*origins
	// peers are the PeerAuthentication objects.
	peers []*model.Config
	// found are the resources with a part of the object that is asked about.
	found map[sharedSet][]item
}

// sharedSet is a set of proxies that see the same.
type sharedSet struct {
	set *generate.Set
	of  *origins
}

type originKey struct {
	namespace, rules string
	sidecar          *snapshot.Sidecar
}

func (d debugger) newOrigin() *origin {
	return &origin{d: d, seen: map[originKey]*origins{}, found: map[sharedSet][]item{}, peers: d.config().list(model.PeerAuthentication)}
}

func (o *origin) of(p *model.Proxy) *origins {
	mesh := o.d.mesh
	key := originKey{namespace: p.Namespace, sidecar: mesh.Sidecars.For(p.Namespace, p.Labels)}
	for _, name := range mesh.DestinationRules.SelectorLabels {
		if v, ok := p.Labels[name]; ok {
			key.rules += fmt.Sprintf("%q=%q,", name, v)
		}
	}
	if o.seen[key] == nil {
		cfg := o.d.config()
		o.seen[key] = newOrigins(mesh, p, func(k model.Key) bool { return cfg.object(k) != nil })
	}
	return o.seen[key]
}

// parts calls for each resource of some types that is made for a proxy with the
// objects that have a part in it, its PeerAuthentications among them.
func (o *origin) parts(st *stream, types []int, made sets, call func(typ int, r *generate.Resource, keys []model.Key)) {
	from := o.of(st.proxy)
	var peers []model.Key
	for _, i := range types {
		typeURL := generate.Types[i]
		for _, r := range made[i].Resources {
			keys := from.of(typeURL, r.Name)
			if typeURL == generate.TypeListener && from.takes(r.Name) {
				if peers == nil {
					peers = peerAuthentications(o.peers, rootOf(o.d.mesh), st.proxy.Namespace, st.proxy.Labels)
				}
				keys = slices.Concat(keys, peers)
			}
			call(i, r, keys)
		}
	}
}

// having gives the resources of a proxy in which an object has a part. Sets that
// proxies share are looked at once.
func (o *origin) having(st *stream, key model.Key) map[item]bool {
	made, mine := o.d.madeFor(st), map[item]bool{}
	for i, typeURL := range generate.Types {
		memo := sharedSet{made[i], o.of(st.proxy)}
		items, known := o.found[memo]
		if !known {
			o.parts(st, []int{i}, made, func(typ int, r *generate.Resource, keys []model.Key) {
				if slices.Contains(keys, key) {
					items = append(items, item{typ, r.Name})
				}
			})
		}
		if typeURL != generate.TypeListener { // they have PeerAuthentications of their own
			o.found[memo] = items
		}
		for _, it := range items {
			mine[it] = true
		}
	}
	return mine
}

// explainObject tells which resources an object has a part in, and how far the
// proxies are that get them.
func (d debugger) explainObject(key model.Key) report.Object {
	cfg := d.config()
	out := report.Object{Ref: refOf(key), Replica: cfg.Replica, InForce: snapshot.InForce(key.Kind) || key.Kind == model.KubernetesService}
	if c := cfg.object(key); c != nil {
		out.Found, out.Source = true, c.Source
	}
	sequence := d.mesh.Sequence
	if cfg.Changed != nil {
		sequence, out.Changed, out.Started = cfg.Changed(key)
	}
	out.Problems = d.problemsOf(func(k model.Key) bool { return k == key })
	from := d.newOrigin()
	resources := map[item]*report.Resource{}
	for _, st := range d.visible() {
		if _, follows := st.standing.get(); !follows || st.objects != nil {
			continue
		}
		mine := from.having(st, key)
		sidecar := d.mesh.Sidecars.For(st.proxy.Namespace, st.proxy.Labels)
		if len(mine) == 0 && (sidecar == nil || sidecar.Config.Key != key) {
			out.Others++
			continue
		}
		refused, waits := d.kept.heldFrom(st)
		refused = slices.DeleteFunc(refused, func(h heldBack) bool { return !mine[h.item] })
		out.Proxies = append(out.Proxies, d.standingOf(st, mine, refused, waits, sequence))
		for it := range mine {
			r := resources[it]
			if r == nil {
				r = &report.Resource{Type: shortType(generate.Types[it.typ]), Name: it.name}
				resources[it] = r
			}
			r.Proxies++
			if slices.ContainsFunc(refused, func(h heldBack) bool { return h.item == it }) {
				r.HeldBack++
			}
		}
	}
	for _, r := range resources {
		out.Resources = append(out.Resources, *r)
	}
	slices.SortFunc(out.Resources, report.ByName)
	out.Found = out.Found || len(out.Resources) > 0 // Services of a cluster are in no store
	out.Cut = len(out.Resources) > maxExplained || len(out.Proxies) > maxExplained
	out.Resources, out.Proxies = out.Resources[:min(len(out.Resources), maxExplained)], out.Proxies[:min(len(out.Proxies), maxExplained)]
	return out
}

// standingOf tells how far a proxy is with the snapshot of a sequence, as far as
// its resources mine are concerned, of which some are refused.
func (d debugger) standingOf(st *stream, mine map[item]bool, refused []heldBack, waits bool, sequence uint64) report.Standing {
	out := report.Standing{Proxy: st.proxy.ID, State: report.Synced}
	if len(refused) > 0 {
		h := refused[0]
		out.State, out.What, out.Since, out.By, out.Reason, out.LastGood = report.HeldBack, h.Type+" "+h.Name, h.Since, h.By, h.Reason, h.LastGood
		if n := len(refused) - 1; n > 0 {
			out.What += fmt.Sprintf(" and %d more", n)
		}
		if h.By == st.proxy.ID {
			out.State = report.Rejected
		}
		return out
	}
	types := map[string]bool{}
	for it := range mine {
		types[generate.Types[it.typ]] = true
	}
	standing, _ := st.standing.get()
	for _, r := range standing.Rejections {
		i := slices.IndexFunc(generate.Types, func(typeURL string) bool { return shortType(typeURL) == r.Type })
		if i >= 0 && types[generate.Types[i]] && r.covers(sequence) {
			out.State, out.What, out.Reason, out.By = report.Rejected, r.Type, r.Reason, st.proxy.ID
			out.Since, out.LastGood = st.progress.of(generate.Types[i]).since, true // Envoy keeps what it had
			return out
		}
	}
	if standing.Settled >= sequence {
		for typeURL := range types {
			if p := st.progress.of(typeURL); p.since.After(out.Since) {
				out.Since = p.since
			}
		}
		return out
	}
	out.State, out.Since = report.Stale, st.connected
	if m := d.Server.mesh.Load(); m != nil && m.since.After(out.Since) {
		out.Since = m.since
	}
	var open []string
	for _, typeURL := range generate.Types {
		if p := st.progress.of(typeURL); p.state() == report.Stale {
			open = append(open, shortType(typeURL))
			out.Since = p.since
		}
	}
	switch {
	case len(open) > 0:
		out.What = "no answer yet to " + strings.Join(open, ", ")
	case waits:
		out.What = "another proxy tries it first"
	default:
		out.What = "on its way"
	}
	return out
}

// problemsOf gives the problems of some objects.
func (d debugger) problemsOf(of func(model.Key) bool) []report.Problem {
	var out []report.Problem
	for _, p := range d.Server.problems() {
		if of(p.Object) {
			out = append(out, report.Problem{Object: refOf(p.Object), Source: p.Source, Reason: p.Reason, Warning: p.Warning, Since: p.Since.Truncate(time.Second)})
		}
	}
	return out
}

// explainProxy tells which objects have a part in the resources of a proxy.
func (d debugger) explainProxy() (answerOf, error) {
	st, err := d.subject()
	if err != nil {
		return answerOf{}, err
	}
	out := report.Decided{Proxy: d.describe(st), Objects: []report.Part{}}
	parts := map[model.Key]*report.Part{}
	part := func(key model.Key) *report.Part {
		if parts[key] == nil {
			parts[key] = &report.Part{Ref: refOf(key)}
		}
		return parts[key]
	}
	var types []int
	for i := range generate.Types {
		types = append(types, i)
	}
	d.newOrigin().parts(st, types, d.madeFor(st), func(typ int, _ *generate.Resource, keys []model.Key) {
		for _, key := range keys {
			p := part(key)
			if p.Resources == nil {
				p.Resources = map[string]int{}
			}
			p.Resources[shortType(generate.Types[typ])]++
		}
	})
	if sidecar := d.mesh.Sidecars.For(st.proxy.Namespace, st.proxy.Labels); sidecar != nil {
		seen, all := len(d.mesh.Services.Visible(st.proxy.Namespace, sidecar)), len(d.mesh.Services.Visible(st.proxy.Namespace, nil))
		if sidecar.ImportsKey() != "" {
			part(sidecar.Config.Key).Role = fmt.Sprintf("it sees %d of %d services", seen, all)
		} else {
			part(sidecar.Config.Key).Role = "it sees all services"
		}
	}
	for _, p := range parts {
		out.Objects = append(out.Objects, *p)
	}
	slices.SortFunc(out.Objects, func(a, b report.Part) int {
		return cmp.Or(cmp.Compare(rank(a.Kind), rank(b.Kind)), a.Compare(b.Ref))
	})
	out.Cut = len(out.Objects) > maxExplained
	out.Objects = out.Objects[:min(len(out.Objects), maxExplained)]
	out.Problems = d.problemsOf(func(k model.Key) bool { return parts[k] != nil })
	return answerOf{json: out}, nil
}

// rank orders kinds by how few objects of it a proxy has.
func rank(kind string) int {
	kinds := []model.Kind{model.Sidecar, model.PeerAuthentication, model.VirtualService, model.DestinationRule}
	if i := slices.Index(kinds, model.Kind(kind)); i >= 0 {
		return i
	}
	return len(kinds)
}
