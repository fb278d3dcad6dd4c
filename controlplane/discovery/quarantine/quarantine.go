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
	// Canary has one proxy of a group try each change before the others. Without
	// it, rejected resources are withheld all the same.
	Canary bool
	// Patience returns how long others wait for a canary; nil means 1 s.
	Patience func() time.Duration
	// Diff returns the resources of a set that are new or changed, and the names
	// that are gone. Its results are not written to.
	Diff func(from, to *xds.Set) (changed []*xds.Resource, removed []string)
	// Guard returns a hash of what a resource protects; nil has none.
	Guard func(*xds.Resource) uint64
	// Recovered logs and counts a panic of a timer.
	Recovered func(cause any) error
	Logger    *slog.Logger
	// Registerer takes the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Quarantine decides what proxies receive. Its methods are safe for concurrent use.
type Quarantine struct {
	cfg Config
	log *slog.Logger
	// canaries counts attempts by result.
	canaries *prometheus.CounterVec

	mu     sync.Mutex // guards what follows, and all that it leads to
	groups map[groupKey]*group
	// programs counts the groups of an identity that other streams may join.
	programs map[certs.ID]int
	// texts are those of withheld resources; Sweep drops them.
	texts map[*xds.Resource]texts
	// joined counts members so far, for the keys of those with groups of their own.
	joined uint64
}

const (
	// canaryTime is how long others wait for a canary.
	canaryTime = time.Second
	// goneTime is how long removed resources are remembered.
	goneTime = 10 * time.Second
	// rejectedTime is how long the rejection of a resource is remembered that is
	// no longer made for any proxy.
	rejectedTime = 10 * time.Minute
	// maxPrograms bounds the groups of one identity. The streams of more programs
	// have groups of their own.
	maxPrograms = 16
	// maxReason bounds the text of a rejection, in bytes.
	maxReason = 300
)

// New returns a Quarantine that withholds nothing yet.
func New(cfg Config) *Quarantine {
	if cfg.Patience == nil {
		cfg.Patience = func() time.Duration { return canaryTime }
	}
	q := &Quarantine{
		cfg: cfg, log: cfg.Logger, groups: map[groupKey]*group{}, programs: map[certs.ID]int{}, texts: map[*xds.Resource]texts{},
		canaries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_canary_pushes", Help: "Changes that one proxy tried for others, by result.",
		}, []string{"result"}),
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(q.canaries, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "outrigger_control_rejected_resources", Help: "Resources that a proxy rejected and that are held back from others.",
		}, func() float64 { return float64(len(q.Rejected())) }))
	}
	return q
}

// Proxy is what decides the group of a proxy, and identifies it in logs.
type Proxy struct {
	// ID is the node id and Program what runs there, as the proxy says.
	ID, Program string
	Namespace   string
	// Identity is the proven identity; nil if there is none.
	Identity *certs.ID
	// Address occurs in the resources of this proxy alone; may be empty.
	Address string
}

// groupKey says which proxies share rejections: those of one proven identity that
// run the same program. The program is a claim, so it can only divide the streams of
// an identity further.
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

// group are the proxies that share rejections.
type group struct {
	q       *Quarantine
	key     groupKey
	members map[*Member]struct{}
	cohorts map[Sets]*cohort
	// variants are the resources that are, or were a moment ago, candidates,
	// suspected or rejected; candidates are the same without the address of the proxy.
	variants   map[Key]*variant
	candidates map[Key]*candidate
	// epoch changes with every decision.
	epoch atomic.Uint64
	// atOnce is how many suspects are tried at a time.
	atOnce int
	// timer ends what takes too long; due is when it fires, zero if it does not.
	timer *time.Timer
	due   time.Time
}

// Join adds a stream to its group. The caller calls Leave when the stream ends.
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

// Sweep drops what nobody needs any more. It is called for each push.
func (q *Quarantine) Sweep() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.texts)
	now := time.Now()
	for _, g := range q.groups {
		q.forget(g, now)
	}
}

// forget drops the rejections of resources that are no longer made, and the group
// if it is empty. The caller holds mu.
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

// used are the candidates whose resources are made for some proxy.
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

// clean drops the candidates of which no variant is left.
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
