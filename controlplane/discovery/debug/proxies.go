// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// object returns an object of the stores, nil for none.
func (cfg Config) object(key model.Key) *model.Config {
	if cfg.Objects == nil {
		return nil
	}
	return cfg.Objects.Get(key)
}

// problems returns what is wrong with objects: as the stores and the snapshot have it,
// and what could not be made of them.
func (d debugger) problems() []KnownProblem {
	var out []KnownProblem
	if d.then {
		for _, p := range d.mesh.Problems {
			p.Warning = true // a snapshot contains only objects in force
			out = append(out, KnownProblem{Problem: p})
		}
	} else if d.cfg.Problems != nil {
		out = d.cfg.Problems()
	}
	if !d.then {
		out = append(out, d.source.Problems()...)
	}
	slices.SortStableFunc(out, func(a, b KnownProblem) int {
		return cmp.Or(strings.Compare(a.Object.String(), b.Object.String()), strings.Compare(a.Reason, b.Reason))
	})
	return slices.CompactFunc(out, func(a, b KnownProblem) bool { return a.Object == b.Object && a.Reason == b.Reason })
}

// proxies tells of each proxy how far it is.
func (d debugger) proxies() (answerOf, error) {
	cfg := d.cfg
	out := report.Replica{Name: cfg.Replica, Version: cfg.Version, Snapshot: d.mesh.Sequence, Proxies: []report.Proxy{}}
	_, out.Pushed = d.source.Snapshot()
	hash := fnv.New64a()
	for _, p := range d.problems() {
		if d.asker.all || p.Object.Namespace == d.asker.namespace {
			out.Problems += p.Count()
			_, _ = fmt.Fprintln(hash, p.Problem) // never fails
		}
	}
	out.ProblemsHash = strconv.FormatUint(hash.Sum64(), 16)
	if d.asker.all {
		problem := ""
		if ask := cfg.DenyListProblem; ask != nil {
			problem = ask()
		}
		out.DenyList = d.source.DenyList(problem)
		if cfg.Faults != nil {
			out.Faults = cfg.Faults()
		}
		if problem != "" {
			out.Faults = append(out.Faults, "the newest text of the deny list is not in force: "+problem)
		}
		if ask := cfg.Credentials; ask != nil {
			out.Credentials = ask()
		}
	}
	id := d.query.Get("proxyID")
	for _, st := range d.visible() {
		if !st.Objects && (id == "" || id == st.Proxy.ID) {
			out.Proxies = append(out.Proxies, d.describe(st))
		}
	}
	for _, g := range d.gone() {
		if id == "" || id == g.Proxy.ID {
			out.Gone = append(out.Gone, report.Proxy{
				Name: g.Proxy.ID, Namespace: g.Proxy.Namespace, Cluster: g.Proxy.ClusterID, Role: g.Proxy.Role, Addresses: g.Proxy.IPs,
				Identity: g.Identity, Envoy: g.Proxy.Envoy, Agent: g.Proxy.Agent, Replica: cfg.Replica,
				Types: []report.Type{{Name: "-", State: report.Gone, Since: g.Since, Reason: report.Lost}},
			})
		}
	}
	if id != "" && len(out.Proxies)+len(out.Gone) == 0 {
		return answerOf{}, fmt.Errorf("%w: no proxy %q is connected that %s may query", errUnknown, id, d.asker.name)
	}
	return answerOf{json: out}, nil
}

// gone returns the proxies that are not connected any more and that the caller may query, by id.
func (d debugger) gone() []Gone {
	if d.then {
		return nil
	}
	out := slices.DeleteFunc(d.source.Gone(), func(g Gone) bool { return !d.asker.all && g.Proxy.Namespace != d.asker.namespace })
	slices.SortFunc(out, func(a, b Gone) int { return strings.Compare(a.Proxy.ID, b.Proxy.ID) })
	return out
}

// describe tells how far one proxy is.
func (d debugger) describe(st *Stream) report.Proxy {
	p := report.Proxy{
		Name: st.Proxy.ID, Namespace: st.Proxy.Namespace, Cluster: st.Proxy.ClusterID, Role: st.Proxy.Role, Addresses: st.Proxy.IPs,
		Envoy: st.Proxy.Envoy, Agent: st.Proxy.Agent, Connected: st.Connected, Delta: st.Delta, Replica: d.cfg.Replica, Snapshot: st.Settled,
	}
	if st.Caller != nil {
		p.Identity = st.Caller.ID.String()
	}
	refused, _ := d.heldFrom(st)
	for _, progress := range st.Types {
		t := report.Type{
			Name: progress.Name, State: progress.State(), Since: progress.Since, Reason: progress.reason(),
			Sent: nonceText(progress.Sent), Acked: nonceText(progress.Acked),
		}
		if t.Since.IsZero() {
			t.Since = st.Connected
		}
		t.LastGood = t.State == report.Rejected && progress.lastGood()
		if t.Reason == report.Unrequested && progress.TypeURL == xds.TypeListener && st.typeOf(xds.TypeCluster).State() == report.Synced {
			t.Reason = report.Incomplete
		}
		if i := slices.Index(xds.Types, progress.TypeURL); i >= 0 && st.Given != nil && t.State != report.NotSent {
			t.Resources = len(st.Given[i].Resources)
		}
		for _, h := range refused {
			if h.Type == t.Name && t.State != report.Rejected {
				t.State, t.Since, t.Reason, t.LastGood = report.HeldBack, h.Since, h.Reason, h.LastGood
				if h.By == p.Name {
					t.State = report.Rejected
				}
			}
		}
		p.Types = append(p.Types, t)
	}
	for _, h := range refused {
		p.Held = append(p.Held, h.Held)
	}
	return p
}
