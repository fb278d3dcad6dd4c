// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package quarantine

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Sets are the sets of a proxy, in the order of [xds.Types].
type Sets [5]*xds.Set

// Item is a resource in any version: its type, as an index of [xds.Types], and its name.
type Item struct {
	Type int
	Name string
}

// Key is a resource in one version.
type Key struct {
	Item
	Hash uint64
}

// Indexes of types in Sets.
var (
	typeEndpoint = slices.Index(xds.Types, xds.TypeEndpoint)
	typeCluster  = slices.Index(xds.Types, xds.TypeCluster)
	typeListener = slices.Index(xds.Types, xds.TypeListener)
	typeRoute    = slices.Index(xds.Types, xds.TypeRoute)
	typeHost     = slices.Index(xds.Types, xds.TypeVirtualHost)
)

// Stream is the stream of a member. Notify may be called by any goroutine, with a lock of the
// Quarantine held; the other methods are called by methods of its member.
type Stream interface {
	// Notify wakes the stream, so that it calls [Member.Place] again.
	Notify()
	// Idle reports whether the proxy stays connected and has answered everything.
	Idle() bool
	// Requests reports whether the proxy requests a resource. If no accepted version
	// is known, replaceable is false, and the proxy must be able to keep what it has
	// when it rejects the resource.
	Requests(it Item, replaceable bool) bool
	// Accepted reports whether the proxy has accepted exactly this version.
	Accepted(Key) bool
}

// Member is a stream in its group. One goroutine calls its methods. The mutex of the Quarantine
// guards the fields from group on.
type Member struct {
	q        *Quarantine
	proxy    Proxy
	identity string // text of the proven identity; empty for none
	address  string
	stream   Stream

	group  *group
	cohort *cohort
	// tries are the resources that the proxy tries for the others, nil unless it is a canary.
	// After due, another proxy tries the suspects. result is that of the attempt, once known.
	tries  map[Item]*variant
	due    time.Time
	result string
	// outlier is true for a proxy that rejected what others accept.
	outlier bool
	// open is true while the member waits for the canary of its cohort.
	open bool
	// sequence is the sequence of the snapshot of the last call of Place. placing is that of the
	// current one.
	sequence, placing uint64
}

// Decision is what a proxy receives in one round.
type Decision struct {
	// Sets are the sets to send; Made are the sets that were generated.
	Sets, Made Sets
	// Open is true if the proxy waits for a canary.
	Open bool
	// Undecided is true if the proxy may become a canary.
	Undecided bool
	// Trying is true if the proxy is a canary.
	Trying bool
	// Spared are rejected resources without a known accepted version. A proxy that has reconnected
	// may have one, which it keeps.
	Spared map[Key]bool
	epoch  uint64
}

// SparesType reports whether some resources of a type are spared.
func (r *Decision) SparesType(typ int) bool {
	for key := range r.Spared {
		if key.Type == typ {
			return true
		}
	}
	return false
}

// Current reports whether Place would return the same decision for the same snapshot.
func (m *Member) Current(r *Decision) bool { return !r.Undecided && r.epoch == m.group.epoch.Load() }

// Leave removes the stream from its group. It is called when the stream has ended.
func (m *Member) Leave() {
	m.q.mu.Lock()
	defer m.q.mu.Unlock()
	g := m.group
	delete(g.members, m)
	m.drop(attemptGone)
	g.move(m, nil)
	m.group = nil
	m.q.forget(g, time.Now())
}

// Place returns what the proxy receives, given the sets that were made from the snapshot with a
// sequence. Returned is true for a proxy that had resources before its stream.
func (m *Member) Place(made Sets, sequence uint64, returned bool) Decision {
	m.q.mu.Lock()
	defer m.q.mu.Unlock()
	g := m.group
	m.placing = sequence
	if m.cohort == nil || m.cohort.made != made {
		g.move(m, g.cohortOf(m, made))
	}
	m.sequence = sequence
	g.assign(m)
	by := viewKey{returned: returned}
	if m.tries != nil {
		by.by = m
	}
	view := m.cohort.view(by)
	m.open = view.open
	return Decision{
		Sets: view.sets, Made: made, Open: view.open, Undecided: view.undecided, Trying: m.tries != nil,
		Spared: view.spared, epoch: g.epoch.Load(),
	}
}

// FallBehind removes the proxy from its cohort. The configuration that it keeps is older than that
// of others, and must not count as accepted when it catches up.
func (m *Member) FallBehind() {
	m.q.mu.Lock()
	defer m.q.mu.Unlock()
	m.drop(attemptGone)
	m.group.move(m, nil)
}

// Withheld is a resource that is withheld from a proxy because of a rejection.
type Withheld struct {
	Item
	// Made is the rejected version.
	Made *xds.Resource
	// By is the node id of the proxy that rejected it; Reason is its message.
	By, Reason string
	Since      time.Time
	// LastGood is true if an older version is sent instead.
	LastGood bool
	// The change came with a snapshot whose sequence is above After and at most UpTo.
	After, UpTo uint64
}

// Withheld returns the resources that are withheld from the proxy because of rejections, sorted by
// type and name, and whether the proxy waits for a canary.
func (m *Member) Withheld() (list []Withheld, waits bool) {
	if m == nil {
		return nil, false
	}
	m.q.mu.Lock()
	defer m.q.mu.Unlock()
	if m.cohort == nil {
		return nil, false
	}
	for it, h := range m.cohort.overrides {
		if h.variant == nil || !h.variant.accused() {
			continue
		}
		t := h.variant.candidate
		list = append(list, Withheld{
			Item: it, Made: m.cohort.made[it.Type].Get(it.Name), By: t.proxy, Reason: t.reason, Since: t.since,
			LastGood: m.group.good(it, h.good) != nil, After: t.after, UpTo: t.upTo,
		})
	}
	slices.SortFunc(list, func(a, b Withheld) int { return compareItems(a.Item, b.Item) })
	return list, m.open
}

// Resource is a rejected resource that is made for connected proxies.
type Resource struct {
	// Type is a type URL.
	Type, Name string
	// Identity is the proven identity of the proxies from which it is withheld, empty for a proxy
	// on a port without authentication; Namespace is that of the proxy. Proxy is the reported node
	// id of the proxy that rejected it, and Reason is its message.
	Identity, Namespace, Proxy, Reason string
	// The change came with a snapshot whose sequence is above After and at most UpTo.
	After, UpTo uint64
	Since       time.Time
	// LastGood is true if an older version is sent instead, and false if the resource is omitted.
	LastGood bool
}

// Rejected returns the resources that are withheld because a proxy rejected them.
func (q *Quarantine) Rejected() []Resource {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []Resource
	for _, g := range q.groups {
		seen := map[Key]bool{}
		for _, sc := range g.cohorts {
			for it, h := range sc.overrides {
				if h.variant == nil || !h.variant.accused() || seen[Key{it, h.variant.hash}] {
					continue
				}
				seen[Key{it, h.variant.hash}] = true
				t := h.variant.candidate
				out = append(out, Resource{
					Type: xds.Types[it.Type], Name: it.Name, Identity: t.identity, Namespace: t.namespace, Proxy: t.proxy,
					Reason: t.reason, After: t.after, UpTo: t.upTo, Since: t.since, LastGood: g.good(it, h.good) != nil,
				})
			}
		}
	}
	slices.SortFunc(out, func(a, b Resource) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name), a.Since.Compare(b.Since))
	})
	return out
}
