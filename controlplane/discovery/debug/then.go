// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/revisions"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// explainThen tells what an object was at the moment that the question names with at, and which
// resources of the proxies that are connected now it would have had a part in.
func (d debugger) explainThen(key model.Key) (report.Object, error) {
	past, err := d.pastOf(key.Kind)
	if err != nil {
		return report.Object{}, err
	}
	at, err := d.moment("at", time.Time{})
	if err != nil {
		return report.Object{}, err
	}
	if !d.asker.all {
		return report.Object{}, d.notOfPast()
	}
	then, err := d.versionAt(past, key, at)
	if err != nil {
		return report.Object{}, err
	}
	if key == revisions.MeshKey && then.Version == nil && then.Next != nil {
		return report.Object{}, revisions.EarlierError{Begins: then.Next.At} // there is a mesh config at all times
	}
	out := report.Object{Ref: refOf(key), Replica: d.cfg.Replica, InForce: snapshot.InForce(key.Kind) || key.Kind == model.KubernetesService}
	if then.Version != nil && key.Kind != model.MeshConfigKind {
		earlier, unknown, err := d.inPast()
		if err == nil {
			out = earlier.explainObject(key)
			out.Lacking = nil // certificates are those of now
			if then.Unrecorded = unknown; earlier.fetchesKeys(key) {
				then.Current = []string{issuersKeys}
			}
		} else {
			then.NoEffect = err.Error() // what the object was is known
		}
	}
	if out.Then = then; then.Version != nil {
		out.Found, out.Source = true, then.Version.Source
	}
	return out, nil
}

// versionAt returns the version of an object at a moment, with its content unless it is a service, and the
// one after it.
func (d debugger) versionAt(past Past, key model.Key, at time.Time) (*report.Then, error) {
	of := revisions.Filter{Kind: key.Kind, Namespace: key.Namespace, Name: key.Name}
	h, err := past.List(of)
	switch all := h.Versions; {
	case err != nil:
		return nil, err
	case at.Before(h.Begins):
		return nil, revisions.EarlierError{Begins: h.Begins}
	case !h.Stopped.IsZero() && at.After(h.Stopped):
		return nil, fmt.Errorf("nothing is recorded since %s: %s", h.Stopped.Format(time.RFC3339), h.Reason)
	case h.Omitted > 0 && at.Before(all[0].At):
		return nil, fmt.Errorf("%s has more than %d versions since then: name a time after %s", key, len(all), all[0].At.Format(time.RFC3339))
	case len(all) == 0 && d.cfg.Objects != nil && d.cfg.Objects.Get(key) != nil:
		return nil, fmt.Errorf("no versions of %s are recorded: it is too large, or a machine registered it", key)
	}
	out := &report.Then{At: at, Begins: h.Begins}
	next := slices.IndexFunc(h.Versions, func(v report.Version) bool { return v.At.After(at) })
	if next >= 0 {
		out.Next = &h.Versions[next]
	} else {
		next = len(h.Versions)
	}
	if next == 0 || h.Versions[next-1].Change == report.Deleted {
		return out, nil
	}
	out.Version = &h.Versions[next-1]
	if key.Kind == model.KubernetesService {
		return out, nil
	}
	of.Revision = out.Version.Revision
	if h, err = past.List(of); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(h.Versions, func(v report.Version) bool { return v.Object != nil && v.Revision == of.Revision })
	if i < 0 {
		return nil, errors.New("the version of then was removed just now: the history begins later")
	}
	out.Version.Object = h.Versions[i].Object
	return out, nil
}

// issuersKeys are what has no history.
const issuersKeys = "the keys of token issuers"

// fetchesKeys reports whether an object has keys fetched.
func (d debugger) fetchesKeys(key model.Key) bool {
	for _, source := range d.mesh.RequestAuthentications.KeySources() {
		if slices.Contains(source.Objects, key) {
			return true
		}
	}
	return false
}

// currentFor returns what a decision about a request of the past depends on that is as now: keys, the deny
// list if it has changed since, or may have, and the roots of mutual TLS.
func (d debugger) currentFor(of report.Decision) (out []string) {
	proxies := []string{of.Proxy}
	if of.Gateway != nil {
		proxies = append(proxies, of.Gateway.Proxy)
	}
	if slices.ContainsFunc(d.visible(), func(st *Stream) bool {
		return slices.Contains(proxies, st.Proxy.ID) && len(d.mesh.KeySourcesOf(st.Proxy)) > 0
	}) {
		out = append(out, issuersKeys)
	}
	at, err := d.moment("at", time.Time{})
	if list := d.source.DenyList(""); err == nil && list != nil && list.Since.After(at) {
		out = append(out, "the deny list")
	}
	if of.TLS != nil && of.TLS.Mutual {
		out = append(out, "the roots of the mesh")
	}
	return out
}
