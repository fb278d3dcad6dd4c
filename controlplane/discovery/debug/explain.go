// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
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
		return answerOf{}, fmt.Errorf("%w: the object is in the namespace %q, and the caller is %s", errForbidden, ref.Namespace, d.asker.name)
	}
	if d.query.Get("at") != "" {
		out, err := d.explainThen(keyOf(ref))
		return answerOf{json: out}, err
	}
	return answerOf{json: d.explainObject(keyOf(ref))}, nil
}

func keyOf(r report.Ref) model.Key {
	return model.Key{Kind: model.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name}
}

func refOf(k model.Key) report.Ref {
	return report.Ref{Kind: string(k.Kind), Namespace: k.Namespace, Name: k.Name}
}

// explained are the types of the resources that are looked at: those of sets, and
// then what listeners ask for.
var explained = append(slices.Clone(xds.Types), xds.TypeExtension)

// patchedTypes are those that EnvoyFilters change.
var patchedTypes = append(slices.Clone(explained), xds.TypeBootstrap)

// made returns the set of a type that is made for a proxy.
func (d debugger) made(st *Stream, typ int) *xds.Set {
	return d.source.Generate(d.mesh, st.Proxy, explained[typ])
}

// sidecarOf returns the Sidecar object of a proxy, nil for none: gateways have none.
func sidecarOf(mesh *snapshot.Mesh, proxy *model.Proxy) *snapshot.Sidecar {
	if proxy.Role == node.Router {
		return nil
	}
	return mesh.Sidecars.For(proxy.Namespace, proxy.Labels)
}

// finder finds the resources that come from an object. Sets that proxies share are
// read once.
type finder struct {
	key   model.Key
	found map[*xds.Set][]string
}

// in returns the names of the resources of a set that come from the object.
func (f finder) in(set *xds.Set) []string {
	names, known := f.found[set]
	if !known {
		for _, r := range set.Resources {
			if r.Sources.Has(f.key) {
				names = append(names, r.Name)
			}
		}
		f.found[set] = names
	}
	return names
}

// explainObject tells which resources an object has a part in, and how far the
// proxies are that get them.
func (d debugger) explainObject(key model.Key) report.Object {
	cfg := d.cfg
	out := report.Object{Ref: refOf(key), Replica: cfg.Replica, InForce: snapshot.InForce(key.Kind) || key.Kind == model.KubernetesService}
	if c := cfg.object(key); c != nil {
		out.Found, out.Source = true, c.Source
	}
	sequence := d.mesh.Sequence
	if cfg.Changed != nil && !d.then {
		sequence, out.Changed, out.Started = cfg.Changed(key)
		out.Pending = sequence > d.mesh.Sequence || cfg.Pending != nil && cfg.Pending(key)
	}
	out.Problems = d.problemsOf(func(k model.Key) bool { return k == key })
	of := finder{key, map[*xds.Set][]string{}}
	resources := map[item]*report.Resource{}
	var having []*Stream
	for _, st := range d.visible() {
		if !st.Follows || st.Objects {
			continue
		}
		mine := map[item]bool{}
		for typ := range explained {
			for _, name := range of.in(d.made(st, typ)) {
				mine[item{typ, name}] = true
			}
		}
		sidecar := sidecarOf(d.mesh, st.Proxy)
		if len(mine) == 0 && (sidecar == nil || sidecar.Config.Key != key) {
			out.Others++
			continue
		}
		having = append(having, st)
		var refused []heldBack
		standing := report.Standing{Proxy: st.Proxy.ID, State: report.Unknown}
		if !d.then {
			all, waits := d.heldFrom(st)
			refused = slices.DeleteFunc(all, func(h heldBack) bool { return !mine[h.item] })
			standing = d.standingOf(st, mine, refused, waits, sequence)
		}
		out.Proxies = append(out.Proxies, standing)
		for it := range mine {
			r := resources[it]
			if r == nil {
				r = &report.Resource{Type: st.nameOf(explained[it.typ]), Name: it.name}
				resources[it] = r
			}
			r.Proxies++
			if slices.ContainsFunc(refused, func(h heldBack) bool { return h.item == it }) {
				r.HeldBack++
			}
		}
	}
	for _, g := range d.gone() {
		out.Gone = append(out.Gone, g.Proxy.ID)
	}
	for _, r := range resources {
		out.Resources = append(out.Resources, *r)
	}
	slices.SortFunc(out.Resources, report.ByName)
	out.Found = out.Found || len(out.Resources) > 0 // Services of a cluster are in no store
	d.hint(&out, key, having)
	out.Cut = len(out.Resources) > maxExplained || len(out.Proxies) > maxExplained
	out.Resources, out.Proxies = out.Resources[:min(len(out.Resources), maxExplained)], out.Proxies[:min(len(out.Proxies), maxExplained)]
	return out
}

// standingOf tells how far a proxy is with the snapshot of a sequence, as far as
// its resources mine are concerned, of which some are refused.
func (d debugger) standingOf(st *Stream, mine map[item]bool, refused []heldBack, waits bool, sequence uint64) report.Standing {
	out := report.Standing{Proxy: st.Proxy.ID, State: report.Synced}
	if len(refused) > 0 {
		h := refused[0]
		out.State, out.What, out.Since, out.By, out.Reason, out.LastGood = report.HeldBack, h.Type+" "+h.Name, h.Since, h.By, h.Reason, h.LastGood
		if n := len(refused) - 1; n > 0 {
			out.What += fmt.Sprintf(" and %d more", n)
		}
		if h.By == st.Proxy.ID {
			out.State = report.Rejected
		}
		return out
	}
	types := map[string]bool{}
	for it := range mine {
		types[explained[it.typ]] = true
	}
	for _, r := range st.Rejections {
		i := slices.IndexFunc(explained, func(typeURL string) bool { return st.nameOf(typeURL) == r.Type })
		ours := len(r.Names) == 0 || slices.ContainsFunc(r.Names, func(name string) bool { return mine[item{i, name}] })
		if i >= 0 && ours && types[explained[i]] && r.After < sequence && sequence <= r.UpTo {
			out.State, out.What, out.Reason, out.By = report.Rejected, r.Type, r.Reason, st.Proxy.ID
			out.Since = st.typeOf(explained[i]).Since
			last := st.typeOf(explained[i])
			last.Reason = r.Reason
			out.LastGood = last.lastGood()
			return out
		}
	}
	if st.Settled >= sequence {
		out.What, out.Since = report.Acknowledged, st.Connected
		for typeURL := range types {
			if p := st.typeOf(typeURL); p.Since.After(out.Since) {
				out.Since = p.Since
			}
		}
		return out
	}
	out.State, out.Since = report.Stale, st.Connected
	if _, since := d.source.Snapshot(); since.After(out.Since) {
		out.Since = since
	}
	var open []string
	for _, typeURL := range explained {
		if p := st.typeOf(typeURL); p.State() == report.Stale {
			open = append(open, p.Name)
			out.Since = p.Since
		}
	}
	switch {
	case len(open) > 0:
		out.What = "no answer yet to " + strings.Join(open, ", ")
	case waits:
		out.What = "another proxy receives it first"
	default:
		out.What = "being sent"
	}
	return out
}

// problemsOf returns the problems of some objects.
func (d debugger) problemsOf(of func(model.Key) bool) []report.Problem {
	var out []report.Problem
	for _, p := range d.problems() {
		if of(p.Object) {
			warning := p.Warning && !p.Dangling // as in analyze, a reference to nothing is an error
			out = append(out, report.Problem{Object: refOf(p.Object), Source: p.Source, Reason: p.Reason, Warning: warning, Since: p.Since.Truncate(time.Second)})
		}
	}
	return out
}

// explainProxy tells which objects have a part in the resources of a proxy.
func (d debugger) explainProxy() (answerOf, error) {
	at, err := d.moment("at", time.Time{})
	if err != nil {
		return answerOf{}, err
	}
	d, unknown, err := d.inPast()
	if err != nil {
		return answerOf{}, err
	}
	st, err := d.subject()
	if err != nil {
		return answerOf{}, err
	}
	out := report.Decided{Proxy: d.describe(st), Objects: []report.Part{}}
	if d.then {
		out.Types, out.Held, out.Snapshot = nil, nil, 0 // they are of now
		if len(d.mesh.KeySourcesOf(st.Proxy)) > 0 {
			unknown.Current = []string{issuersKeys}
		}
		out.Then = &report.Then{At: at, Unrecorded: unknown}
	}
	parts := map[model.Key]*report.Part{}
	part := func(key model.Key) *report.Part {
		if parts[key] == nil {
			parts[key] = &report.Part{Ref: refOf(key)}
			if c := d.cfg.object(key); c != nil {
				parts[key].Source = c.Source
			}
		}
		return parts[key]
	}
	for typ := range explained {
		for _, r := range d.made(st, typ).Resources {
			for _, key := range r.Sources.Keys() {
				p := part(key)
				if p.Resources == nil {
					p.Resources = map[string]int{}
				}
				p.Resources[st.nameOf(explained[typ])]++
			}
		}
	}
	if sidecar := sidecarOf(d.mesh, st.Proxy); sidecar != nil {
		seen, all := len(d.mesh.Services.Visible(st.Proxy.Namespace, sidecar)), len(d.mesh.Services.Visible(st.Proxy.Namespace, nil))
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
	kinds := []model.Kind{
		model.Sidecar, model.Gateway, model.KubernetesGateway, model.ListenerSet, model.PeerAuthentication, model.WasmPlugin, model.TrafficExtension,
		model.HTTPRoute, model.GRPCRoute, model.TLSRoute, model.TCPRoute, model.Ingress, model.VirtualService, model.DestinationRule, model.BackendTLSPolicy,
	}
	if i := slices.Index(kinds, model.Kind(kind)); i >= 0 {
		return i
	}
	return len(kinds)
}
