// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// DebugConfig is what questions of people are answered with, beside what the
// server itself knows. Each function may be nil: then nothing is known.
type DebugConfig struct {
	// Authenticator tells who asks over HTTP; nil leaves loopback peers.
	Authenticator authn.Authenticator
	// Replica names this control plane, Version is that of its program.
	Replica, Version string
	// Push sends everything anew.
	Push func()
	// Objects are the configuration.
	Objects StoredObjects
	// Problems lists what is wrong with objects, in the stores and in the newest
	// snapshot, and since when.
	Problems func() []KnownProblem
	// Changed gives the sequence of the snapshot that brought the last change of
	// an object, and when; first is true for one that is as it was at the start.
	Changed func(model.Key) (sequence uint64, at time.Time, first bool)
	// ScopeGateways is that of the generator: Gateways select proxies of their own
	// namespace only.
	ScopeGateways bool
	// DenyListProblem returns why the newest text of the deny list is not in force;
	// empty if it is.
	DenyListProblem func() string
	// Registerer takes metrics of the newest snapshot.
	Registerer prometheus.Registerer
}

// StoredObjects are the objects of the stores.
type StoredObjects interface {
	Schemas() []schema.Schema
	Get(key model.Key) *model.Config
	List(kind model.Kind, namespace string) []*model.Config
}

// KnownProblem is a problem with the time at which it was seen first.
type KnownProblem struct {
	model.Problem
	Since time.Time
}

// Debug sets what questions of people are answered with. It is called once,
// before the server is used.
func (s *Server) Debug(cfg DebugConfig) {
	s.people.Store(&cfg)
	s.watchMesh(cfg.Registerer)
}

// config gives what was set.
func (s *Server) config() DebugConfig {
	if cfg := s.people.Load(); cfg != nil {
		return *cfg
	}
	return DebugConfig{}
}

// object gives an object of the stores, nil for none.
func (cfg DebugConfig) object(key model.Key) *model.Config {
	if cfg.Objects == nil {
		return nil
	}
	return cfg.Objects.Get(key)
}

// list gives the objects of a kind, of all namespaces.
func (cfg DebugConfig) list(kind model.Kind) []*model.Config {
	if cfg.Objects == nil {
		return nil
	}
	return cfg.Objects.List(kind, "")
}

// problems gives what is wrong with objects: as the stores and the snapshot have
// it, and what could not be made of them.
func (s *Server) problems() []KnownProblem {
	var out []KnownProblem
	if list := s.config().Problems; list != nil {
		out = list()
	}
	s.spoilt.each(func(p model.Problem, since time.Time) {
		out = append(out, KnownProblem{p, since})
	})
	slices.SortStableFunc(out, func(a, b KnownProblem) int {
		return cmp.Or(strings.Compare(a.Object.String(), b.Object.String()), strings.Compare(a.Reason, b.Reason))
	})
	return slices.CompactFunc(out, func(a, b KnownProblem) bool { return a.Object == b.Object && a.Reason == b.Reason })
}

// envoyVersion gives the version that a proxy says it has, "1.39.3"; empty for
// none.
func envoyVersion(n *corev3.Node) string {
	if v := n.GetUserAgentBuildVersion().GetVersion(); v != nil {
		return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	}
	return clip(n.GetUserAgentVersion())
}

// proxies tells of each proxy how far it is.
func (d debugger) proxies() (answerOf, error) {
	cfg := d.config()
	out := report.Replica{Name: cfg.Replica, Version: cfg.Version, Snapshot: d.mesh.Sequence, Proxies: []report.Proxy{}}
	if m := d.Server.mesh.Load(); m != nil {
		out.Pushed = m.since
	}
	for _, p := range d.Server.problems() {
		if d.asker.all || p.Object.Namespace == d.asker.namespace {
			out.Problems += p.Count()
		}
	}
	if d.asker.all {
		out.DenyList = d.denyList()
	}
	id := d.query.Get("proxyID")
	for _, st := range d.visible() {
		if st.objects == nil && (id == "" || id == st.proxy.ID) {
			out.Proxies = append(out.Proxies, d.describe(st))
		}
	}
	if id != "" && len(out.Proxies) == 0 {
		return answerOf{}, fmt.Errorf("%w: no proxy %q is connected that %s may ask about", errUnknown, id, d.asker.name)
	}
	return answerOf{json: out}, nil
}

// describe tells how far one proxy is.
func (d debugger) describe(st *stream) report.Proxy {
	standing, _ := st.standing.get()
	p := report.Proxy{
		Name: st.proxy.ID, Namespace: st.proxy.Namespace, Cluster: st.proxy.ClusterID, Role: st.proxy.Role, Addresses: st.proxy.IPs,
		Envoy: st.proxy.Envoy, Agent: st.proxy.Agent, Connected: st.connected, Delta: st.delta, Replica: d.config().Replica, Snapshot: standing.Settled,
	}
	if st.caller != nil {
		p.Identity = st.caller.ID.String()
	}
	refused, _ := d.heldFrom(st)
	given := st.standing.gives.Load()
	for _, typeURL := range order {
		progress := st.progress.of(typeURL)
		t := report.Type{
			Name: shortType(typeURL), State: progress.state(), Since: progress.since,
			Sent: nonceText(progress.sent), Acked: nonceText(progress.acked),
		}
		if t.State == report.Rejected {
			t.Reason = progress.reason
		}
		if i := slices.Index(xds.Types, typeURL); i >= 0 && given != nil && t.State != report.NotSent {
			t.Resources = len(given[i].Resources)
		}
		for _, h := range refused {
			if h.Type == t.Name && t.State != report.Rejected {
				t.State, t.Since, t.Reason = report.HeldBack, h.Since, h.Reason
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

func (t typeProgress) state() report.State {
	switch {
	case t.sent == 0 && t.resumed:
		return report.Synced
	case t.sent == 0:
		return report.NotSent
	case t.sent == t.rejected:
		return report.Rejected
	case t.sent == t.acked:
		return report.Synced
	}
	return report.Stale
}
