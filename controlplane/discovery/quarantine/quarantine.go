// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package quarantine

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Config configures a [Quarantine].
type Config struct {
	// Canary makes one proxy of a group try each change before the others. Rejected resources are
	// withheld even if Canary is false.
	Canary bool
	// Patience returns how long others wait for a canary; nil means 1 s.
	Patience func() time.Duration
	// Diff returns the resources of a set that are new or changed, and the names that were
	// removed. Its results are not modified.
	Diff func(from, to *xds.Set) (changed []*xds.Resource, removed []string)
	// Guard returns a hash of the security settings of a resource; a nil function means that there
	// are none.
	Guard func(*xds.Resource) uint64
	// Recovered logs and counts a panic of a timer.
	Recovered func(cause any) error
	Logger    *slog.Logger
	// Registerer registers the metrics; nil disables them.
	Registerer prometheus.Registerer
}

// Quarantine decides what proxies receive. Its methods are safe for concurrent use.
type Quarantine struct {
	cfg Config
	log *slog.Logger
	// canaries counts attempts by result.
	canaries *prometheus.CounterVec

	mu     sync.Mutex // guards the fields below and everything they refer to
	groups map[groupKey]*group
	// programs counts the groups of an identity that other streams may join.
	programs map[certs.ID]int
	// texts caches the strings of withheld resources; Sweep clears it.
	texts map[*xds.Resource]texts
	// joined counts the members that have joined. It provides the keys of single-stream groups.
	joined uint64
}

const (
	// canaryTime is the default time for which others wait for a canary.
	canaryTime = time.Second
	// goneTime is how long removed resources are remembered.
	goneTime = 10 * time.Second
	// rejectedTime is how long the rejection of a resource is remembered after the resource is no
	// longer made for any proxy.
	rejectedTime = 10 * time.Minute
	// maxPrograms is the maximum number of groups of one identity. Streams of further programs
	// have groups of their own.
	maxPrograms = 16
	// maxReason is the maximum length of a rejection message, in bytes.
	maxReason = 300
)

// New returns an empty Quarantine.
func New(cfg Config) *Quarantine {
	if cfg.Patience == nil {
		cfg.Patience = func() time.Duration { return canaryTime }
	}
	q := &Quarantine{
		cfg: cfg, log: cfg.Logger, groups: map[groupKey]*group{}, programs: map[certs.ID]int{}, texts: map[*xds.Resource]texts{},
		canaries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_canary_pushes", Help: "Changes that were first sent to one proxy of a group, by result.",
		}, []string{"result"}),
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(q.canaries, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "outrigger_control_rejected_resources", Help: "Resources that a proxy rejected and that are held back from others.",
		}, func() float64 { return float64(len(q.Rejected())) }))
	}
	return q
}

// Proxy contains what determines the group of a proxy and identifies it in logs.
type Proxy struct {
	// ID is the node id, and Program the running program, as reported by the proxy.
	ID, Program string
	Namespace   string
	// Identity is the proven identity; nil if there is none.
	Identity *certs.ID
	// Address occurs in the resources of this proxy only; may be empty.
	Address string
}

// groupKey identifies the proxies that share rejections: those of one proven identity that run the
// same program. The program is an unverified claim, which can only divide the streams of an
// identity further.
type groupKey struct {
	identity certs.ID // zero if none is proven
	program  string
	stream   uint64 // of the only stream; zero if others may join
}

// keyFor returns the key of the group of a proxy. The caller holds mu.
func (q *Quarantine) keyFor(p Proxy) groupKey {
	q.joined++
	alone := groupKey{stream: q.joined}
	if p.Identity == nil {
		return alone
	}
	alone.identity = *p.Identity
	key := groupKey{identity: *p.Identity, program: p.Program}
	if q.groups[key] == nil && q.programs[key.identity] >= maxPrograms {
		return alone
	}
	return key
}

// group contains the proxies that share rejections.
type group struct {
	q       *Quarantine
	key     groupKey
	members map[*Member]struct{}
	cohorts map[Sets]*cohort
	// variants contains the resources that are, or recently were, candidates, suspected or
	// rejected. candidates contains the same without the address of the proxy.
	variants   map[Key]*variant
	candidates map[Key]*candidate
	// epoch changes with every decision.
	epoch atomic.Uint64
	// atOnce is the number of suspects that are tried at a time.
	atOnce int
	// timer ends attempts that take too long; due is when it fires, zero if it is not set.
	timer *time.Timer
	due   time.Time
}

// Join adds a stream to its group. The caller must call Leave when the stream ends.
func (q *Quarantine) Join(p Proxy, s Stream) *Member {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &Member{q: q, proxy: p, stream: s, address: p.Address}
	if p.Identity != nil {
		m.identity = p.Identity.String()
	}
	key := q.keyFor(p)
	g := q.groups[key]
	if g == nil {
		g = &group{
			q: q, key: key, members: map[*Member]struct{}{}, cohorts: map[Sets]*cohort{},
			variants: map[Key]*variant{}, candidates: map[Key]*candidate{}, atOnce: 1,
		}
		q.groups[key] = g
		if key.stream == 0 {
			q.programs[key.identity]++
		}
	}
	g.members[m] = struct{}{}
	m.group = g
	return m
}

// Sweep drops state that is no longer needed. It is called for each push.
func (q *Quarantine) Sweep() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.texts)
	now := time.Now()
	for _, g := range q.groups {
		q.forget(g, now)
	}
}

// forget drops the rejections of resources that are no longer made, and the group if it is empty.
// The caller holds mu.
func (q *Quarantine) forget(g *group, now time.Time) {
	used := g.used()
	for key, v := range g.variants {
		switch t := v.candidate; {
		case used[t]:
			t.unused = time.Time{}
		case t.state == accepted:
		case !t.accused():
			delete(g.variants, key)
		case t.unused.IsZero():
			t.unused = now
		case now.Sub(t.unused) > rejectedTime:
			delete(g.variants, key)
		}
	}
	g.clean()
	if len(g.members) > 0 || len(g.variants) > 0 && g.key.stream == 0 || q.groups[g.key] != g {
		return
	}
	if g.timer != nil {
		g.timer.Stop()
	}
	delete(q.groups, g.key)
	if g.key.stream != 0 {
		return
	}
	if q.programs[g.key.identity]--; q.programs[g.key.identity] == 0 {
		delete(q.programs, g.key.identity)
	}
}

// used returns the candidates whose resources are made for a proxy.
func (g *group) used() map[*candidate]bool {
	if len(g.variants) == 0 {
		return nil
	}
	used := map[*candidate]bool{}
	for _, sc := range g.cohorts {
		for _, h := range sc.overrides {
			if h.variant != nil {
				used[h.variant.candidate] = true
			}
		}
	}
	return used
}

// clean drops the candidates without variants.
func (g *group) clean() {
	if len(g.candidates) == 0 {
		return
	}
	left := map[*candidate]bool{}
	for _, v := range g.variants {
		left[v.candidate] = true
	}
	for key, t := range g.candidates {
		if !left[t] {
			delete(g.candidates, key)
		}
	}
}
