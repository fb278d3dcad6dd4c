// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package quarantine

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// Rejection is a rejected response.
type Rejection struct {
	Type int // index of xds.Types
	// Changed are the resources in the response.
	Changed []*xds.Resource
	Reason  string // Envoy's message
	// Mixed is true if the response also contained resources that are known to be bad.
	Mixed bool
	// The change came with a snapshot whose sequence is above After and at most UpTo.
	After, UpTo uint64
}

// Rejected determines which resources the proxy rejected and withholds them. It returns false if
// the rejection applies to this proxy only.
func (m *Member) Rejected(r Rejection) bool {
	q, g := m.q, m.group
	q.mu.Lock()
	defer q.mu.Unlock()
	if m.cohort == nil {
		return false
	}
	suspects := slices.DeleteFunc(slices.Clone(r.Changed), func(res *xds.Resource) bool { return g.isAccepted(Item{r.Type, res.Name}, res) })
	guilty := culprits(suspects, r)
	if len(suspects) > 0 && len(named(suspects, r.Reason)) == 0 {
		if others := named(m.cohort.made[r.Type].Resources, r.Reason); len(others) > 0 && !slices.Contains(r.Changed, others[0]) {
			m.drop(attemptRejected)
			return false // the proxy repeats an earlier rejection
		}
	}
	if len(guilty) == 0 {
		isGood := func(res *xds.Resource) bool { return g.isLastGood(Item{r.Type, res.Name}, res) }
		if made := slices.DeleteFunc(slices.Clone(suspects), isGood); len(made) > 0 {
			suspects, guilty = made, culprits(made, r)
		}
	}
	if guarded := g.release(m, r, suspects); len(guarded) > 0 {
		isGuarded := func(res *xds.Resource) bool { return slices.Contains(guarded, res) }
		named := len(guilty) > 0
		guilty, suspects = slices.DeleteFunc(guilty, isGuarded), slices.DeleteFunc(suspects, isGuarded)
		if named && len(guilty) == 0 {
			suspects = nil // Envoy's message names other resources only
		}
	}
	if r.Mixed && len(guilty) == 0 {
		return true // the known bad resources explain the rejection
	}
	known := func(res *xds.Resource) bool { return g.isHeld(m, Item{r.Type, res.Name}, res) }
	if len(guilty) == 0 && slices.ContainsFunc(suspects, known) && !local(r.Reason) {
		return true // the suspects are being tried already
	}
	if len(suspects) == 0 || local(r.Reason) || len(guilty) == 0 && r.Type == typeEndpoint {
		m.outlier = true
		m.drop(attemptRejected)
		return false
	}
	if m.tries != nil {
		m.result = attemptRejected
	}
	for _, res := range guilty {
		g.judge(m, r, res, rejected)
	}
	if len(guilty) == 0 {
		g.atOnce = max(1, len(suspects)/2)
		for _, res := range suspects {
			g.judge(m, r, res, suspected)
		}
	}
	m.end(attemptRejected)
	g.decided(true)
	return true
}

// release returns the resources of a rejection that must not be withheld from others because they
// change security settings. If other members wait for them, they are released to all.
func (g *group) release(m *Member, r Rejection, suspects []*xds.Resource) []*xds.Resource {
	var guarded []*xds.Resource
	for _, res := range suspects {
		it := Item{r.Type, res.Name}
		if !g.q.protects(res, m.cohort.lastGood(it, res)) {
			continue
		}
		guarded = append(guarded, res)
		if v := g.variants[Key{it, res.Hash}]; v != nil {
			v.take(g.q.cfg.Patience())
		}
	}
	if len(guarded) > 0 {
		g.q.log.Warn("a proxy rejected a security change; other proxies receive it regardless", "type_url", xds.Types[r.Type],
			"resource", guarded[0].Name, "count", len(guarded), "proxy", m.proxy.ID, "identity", m.identity, "reason", clip.Text(r.Reason, maxReason))
		g.decided(true)
	}
	return guarded
}

// protects reports whether a resource has other security settings than the last good version,
// which is nil if none is known.
func (q *Quarantine) protects(res, good *xds.Resource) bool {
	return q.cfg.Guard(res) != q.cfg.Guard(good)
}

// lastGood returns the version that would be sent instead of a resource.
func (sc *cohort) lastGood(it Item, res *xds.Resource) *xds.Resource {
	if h := sc.overrides[it]; h.of(res) {
		return sc.group.good(it, h.good)
	}
	if acked := sc.acked[it.Type]; acked != nil {
		return acked.Get(it.Name)
	}
	return nil
}

// isHeld reports whether a resource that was sent on a stream is now withheld from it.
func (g *group) isHeld(m *Member, it Item, res *xds.Resource) bool {
	v := g.variants[Key{it, res.Hash}]
	return v != nil && v.state != accepted && v.state != trying && v.canary != m
}

// isAccepted reports whether a proxy of the group has accepted a resource.
func (g *group) isAccepted(it Item, res *xds.Resource) bool {
	if v := g.variants[Key{it, res.Hash}]; v != nil && v.state == accepted {
		return true
	}
	for _, sc := range g.cohorts {
		if acked := sc.acked[it.Type]; acked != nil && xds.Same(acked.Get(it.Name), res) {
			return true
		}
	}
	return false
}

// isLastGood reports whether a resource is sent instead of one that is withheld or gone. No proxy
// tries such a resource again, so it is not suspected because of other resources in the response.
func (g *group) isLastGood(it Item, res *xds.Resource) bool {
	for _, sc := range g.cohorts {
		if h := sc.overrides[it]; h != nil && xds.Same(h.good, res) {
			return true
		}
	}
	return false
}

// judge sets the state of a resource in all cohorts for which it is made. A rejected resource
// without a good version is only suspected until a second proxy rejects it: another attempt does
// no harm.
func (g *group) judge(m *Member, r Rejection, res *xds.Resource, state verdict) {
	it := Item{r.Type, res.Name}
	v := g.variant(it, res, m)
	if v == nil {
		v = g.newCandidate(it, res, m)
	}
	for _, sc := range g.cohorts {
		if !xds.Same(sc.made[r.Type].Get(res.Name), res) || sc.overrides[it].of(res) {
			continue
		}
		h := &override{variant: v, unknown: sc.acked[r.Type] == nil && !sc.gone[it]}
		if acked := sc.acked[r.Type]; acked != nil && !sc.gone[it] {
			h.good = acked.Get(res.Name)
		}
		sc.put(it, h)
	}
	if h := m.cohort.overrides[it]; h.of(res) {
		v.instead(h.good, h.unknown, m)
	}
	delete(m.tries, it)
	if v.upTo == 0 {
		v.after, v.upTo = r.After, r.UpTo
	}
	v.canary, v.due, v.unused = nil, time.Time{}, time.Time{}
	if v.state != rejected {
		v.state = suspected
	}
	if state != rejected {
		return
	}
	if !slices.Contains(v.against, m.proxy.ID) && len(v.against) < 2 {
		v.against = append(v.against, m.proxy.ID)
	}
	if g.good(it, v.good) != nil || len(v.against) > 1 {
		v.state = rejected
	}
	if v.reason == "" {
		v.reason, v.by, v.since = clip.Text(r.Reason, maxReason), m, time.Now()
		v.proxy, v.identity, v.namespace = m.proxy.ID, m.identity, m.proxy.Namespace
		g.q.log.Warn("a resource that a proxy rejected is withheld from the proxies of its identity", "type_url", xds.Types[r.Type],
			"resource", res.Name, "version", strconv.FormatUint(res.Hash, 16), "proxy", m.proxy.ID, "identity", m.identity, "reason", v.reason)
	}
}

// culprits returns the resources that Envoy's message names, or the only suspect. It returns none
// if the cause is unclear.
func culprits(suspects []*xds.Resource, r Rejection) []*xds.Resource {
	if len(suspects) == 1 && !r.Mixed {
		return suspects
	}
	return named(suspects, r.Reason)
}

// named returns the resources that Envoy's message names.
func named(resources []*xds.Resource, reason string) []*xds.Resource {
	// A validation error contains the text of the message that violates its constraints, with its
	// name in the first line. Lines of nested messages are indented.
	for _, res := range resources {
		if strings.Contains("\n"+reason, "\nname: "+strconv.Quote(res.Name)+"\n") {
			return []*xds.Resource{res}
		}
	}
	_, list, found := strings.Cut(reason, "Error adding/updating ")
	if found {
		_, list, found = strings.Cut(list, " ") // cluster(s), listener(s)
	}
	if !found {
		return nil
	}
	list = ", " + list
	return slices.DeleteFunc(slices.Clone(resources), func(res *xds.Resource) bool {
		return !strings.Contains(list, ", "+res.Name+": ") && !strings.Contains(list, "\n"+res.Name+": ")
	})
}

// local reports whether the cause of a rejection is local to the proxy's machine, so that the
// resource may be good for others.
func local(words string) bool {
	for _, part := range []string{
		"cannot bind", "Address already in use", "Permission denied", "Cannot assign requested address",
		// Messages of gRPC in Go, Java and C++ for an application without certificates.
		"missing in bootstrap configuration", "not defined in the bootstrap file", "nrecognized certificate provider instance name",
	} {
		if strings.Contains(words, part) {
			return true
		}
	}
	return false
}
