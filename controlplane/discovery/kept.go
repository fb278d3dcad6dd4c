// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// What proxies are given is what the generator makes, but for resources that
// are on trial or that a proxy rejected: in their place stands the last good one.
//
//   - A scope are the proxies for which the generator makes the same sets of all
//     types. A circle are the scopes whose proxies count for each other: those of
//     one proven identity that run the same program in the same version. A stream
//     whose caller is not proven, as on the plaintext port, has a circle of its
//     own. The word of a proxy harms nobody outside its circle.
//   - A rejection never withholds a change of what protects (see generate.Guard):
//     where the last good version would protect in another way, what was made is
//     given to all, and the proxy that rejects it speaks for itself alone.
//   - A resource is known by type, name and hash. When a scope comes to a new
//     snapshot, each cluster, listener, route and virtual host that is new or
//     changed is put on trial. What differs only in the address of the proxy, as
//     its own listeners do, is one trial.
//   - One proxy of the circle, the canary, claims the trials of its scope and is
//     given what was made; the others are given the last good ones, and what is
//     gone from the snapshot stays for them. Each resource that the canary takes
//     is given to all at once. As the canary gets its resources in an order that
//     breaks nothing (see push), so do the others, each in its own rounds.
//   - A trial ends after a second, whatever the canary does: it is as if there had
//     been none. If the canary goes, another claims. Proxies that still owe an
//     answer do not claim; the only proxy of a circle needs none. Endpoints are
//     never on trial.
//   - When a proxy rejects a response, Envoy names the resources in its words, or
//     there is only one that is new: it is rejected, and its last good one given
//     to all of the circle, also to those that come later, until the generator
//     makes another. If there is none, the resource is left out, but not taken
//     away from a proxy that came back and may have one. If it is not clear which
//     one is bad, all that were new in the response are suspected, and tried
//     again in halves.
//   - What another proxy of the circle has taken is not rejected because of one
//     that does not take it, nor is what fails for a reason of the machine: such
//     a proxy speaks for itself alone, and is no canary.
//   - A last good listener or route may name clusters and routes that are gone:
//     those are given, too, with the endpoints that they had.
//
// A scope holds only what differs from what was made: bytes of a last good
// resource live as long as the resource that takes its place is held back.

// keeper decides what the proxies are given. Its methods are safe for
// concurrent use.
type keeper struct {
	// canary is false if nothing is on trial: what is rejected is held back
	// all the same.
	canary bool
	// patience is how long others wait for a canary.
	patience time.Duration
	shared   *shared
	log      *slog.Logger
	metrics  *metrics

	mu      sync.Mutex // guards what follows, and all that it leads to
	circles map[circleKey]*circle
	// programs is how many circles of an identity are open to other streams.
	programs map[certs.ID]int
}

// Times of the keeper.
const (
	// trialTime is how long others wait for a canary.
	trialTime = time.Second
	// goneTime is how long it is remembered what is gone.
	goneTime = 10 * time.Second
	// rejectedTime is how long it is remembered that a resource was rejected
	// which is made for no proxy any more.
	rejectedTime = 10 * time.Minute
)

// circleKey says whose word counts for whom: the streams of one proven identity
// that run the same program. The program is what the proxy says, so it can only
// divide the streams of an identity further.
type circleKey struct {
	identity certs.ID // zero if the caller is not proven
	program  string
	stream   uint64 // number of the only stream; zero if others may join
}

// maxPrograms bounds the circles of one identity. The streams of more programs
// have circles of their own.
const maxPrograms = 16

// keyFor returns the key of the circle of a stream. The caller holds mu.
func (k *keeper) keyFor(st *stream, program string) circleKey {
	alone := circleKey{stream: st.number}
	if st.caller == nil {
		return alone
	}
	alone.identity = st.caller.ID
	key := circleKey{identity: st.caller.ID, program: program}
	if k.circles[key] == nil && k.programs[key.identity] >= maxPrograms {
		return alone
	}
	return key
}

// programOf returns what runs at the other end, as its node says, in bounded
// length.
func programOf(n *corev3.Node) string {
	v := n.GetUserAgentBuildVersion()
	return clip(strings.Join([]string{n.GetUserAgentName(), n.GetUserAgentVersion(), v.GetVersion().String()}, " "))
}

// circle are the proxies whose word counts for each other.
type circle struct {
	keeper  *keeper
	key     circleKey
	streams map[*stream]struct{}
	scopes  map[sets]*scope
	// variants are the resources that are, or were a moment ago, on trial,
	// suspected or rejected; trials the same without the address of the proxy.
	variants map[resourceKey]*variant
	trials   map[resourceKey]*trial
	// epoch changes with every decision.
	epoch atomic.Uint64
	// atOnce is how many suspects are tried at a time.
	atOnce int
	// timer ends what takes too long; due is when it fires, zero if it does not.
	timer *time.Timer
	due   time.Time
}

// sets are those that were made for a scope, in the order of generate.Types.
type sets [5]*xds.Set

// item is the place of a resource in sets.
type item struct {
	typ  int
	name string
}

// resourceKey is a resource in a version.
type resourceKey struct {
	item
	hash uint64
}

// types that stand in sets.
var (
	typeEndpoint = slices.Index(xds.Types, xds.TypeEndpoint)
	typeCluster  = slices.Index(xds.Types, xds.TypeCluster)
	typeRoute    = slices.Index(xds.Types, xds.TypeRoute)
	typeHost     = slices.Index(xds.Types, xds.TypeVirtualHost)
)

// placement is a stream's place among the proxies, and what it is given there.
// The keeper's mutex guards it.
type placement struct {
	circle *circle
	scope  *scope
	claim  *claim
	// odd is true for a proxy that rejected what others take.
	odd bool
	// open is true while it waits for the canary of its scope.
	open bool
	// sequence is that of the snapshot for which it was placed.
	sequence uint64
}

// given is what a stream gives out in one round. Its loop owns it.
type given struct {
	mesh  *published
	epoch uint64
	sets  sets
	// made is what was generated, before anything is held back.
	made sets
	// open is true if others try something first.
	open bool
	// undecided is true if it may be the one that tries something.
	undecided bool
	// spared are resources that were rejected and of which no good one is
	// known: a proxy that came back may have one.
	spared map[resourceKey]bool
	// trying is true if it tries something for others.
	trying bool
}

func newKeeper(cfg Config, s *shared, m *metrics) *keeper {
	return &keeper{canary: cfg.CanaryPush, patience: trialTime, shared: s, log: cfg.Logger, metrics: m, circles: map[circleKey]*circle{}, programs: map[certs.ID]int{}}
}

// join puts a stream into its circle.
func (k *keeper) join(st *stream, program string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := k.keyFor(st, program)
	c := k.circles[key]
	if c == nil {
		c = &circle{
			keeper: k, key: key, streams: map[*stream]struct{}{}, scopes: map[sets]*scope{},
			variants: map[resourceKey]*variant{}, trials: map[resourceKey]*trial{}, atOnce: 1,
		}
		k.circles[key] = c
		if key.stream == 0 {
			k.programs[key.identity]++
		}
	}
	c.streams[st] = struct{}{}
	st.place.circle = c
}

// leave takes a stream that has ended out of its circle.
func (k *keeper) leave(st *stream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := st.place.circle
	if c == nil {
		return
	}
	delete(c.streams, st)
	c.drop(st.place.claim, claimGone)
	c.move(st, nil)
	st.place.circle = nil
	k.forget(c, time.Now())
}

// give gives a stream what it gives out in this round, of the snapshot that it
// works with. Where that cannot be generated it goes on with what it had; one
// that had nothing yet ends.
func (k *keeper) give(st *stream) error {
	c := st.place.circle
	if c == nil || st.objects != nil {
		return nil
	}
	g := &st.given
	if g.mesh == st.mesh && !g.undecided && g.epoch == c.epoch.Load() {
		return nil // as most times: what was made for a snapshot does not change
	}
	made, ok := st.server.made(st.mesh.Mesh, st.view())
	if !ok && g.mesh == nil {
		return errNotGenerated
	} else if !ok {
		k.fallBehind(st)
		g.mesh, g.open, g.trying = st.mesh, true, false
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if st.place.scope == nil || st.place.scope.made != made {
		c.move(st, c.scopeOf(st, made))
	}
	st.place.sequence = st.mesh.Sequence
	c.claim(st)
	view := st.place.scope.view(viewKey{by: st.place.claim, returned: st.returned})
	if g.spared != nil || view.spared != nil {
		for _, typeURL := range xds.Types {
			if sub := st.subs[typeURL]; sub != nil {
				sub.at = nil // other resources are left out of the same set
			}
		}
	}
	*g = given{mesh: st.mesh, epoch: c.epoch.Load(), sets: view.sets, made: made, open: view.open, undecided: view.undecided, spared: view.spared, trying: st.place.claim != nil}
	st.place.open = view.open
	return nil
}

// fallBehind takes a stream out of its scope: what it goes on with is older than
// what others have, and must not be what is good for them when it comes back.
func (k *keeper) fallBehind(st *stream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := st.place.circle
	c.drop(st.place.claim, claimGone)
	c.move(st, nil)
}

// sweep forgets what nobody needs any more. It is called for each push.
func (k *keeper) sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for _, c := range k.circles {
		k.forget(c, now)
	}
}

// forget drops the rejections that nobody meets any more, and the circle if
// nothing is left of it.
func (k *keeper) forget(c *circle, now time.Time) {
	used := c.used()
	for key, v := range c.variants {
		switch t := v.trial; {
		case used[t]:
			t.unused = time.Time{}
		case t.state == taken:
		case !t.accused():
			delete(c.variants, key)
		case t.unused.IsZero():
			t.unused = now
		case now.Sub(t.unused) > rejectedTime:
			delete(c.variants, key)
		}
	}
	c.clean()
	if len(c.streams) > 0 || len(c.variants) > 0 && c.key.stream == 0 || k.circles[c.key] != c {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	delete(k.circles, c.key)
	if c.key.stream != 0 {
		return
	}
	if k.programs[c.key.identity]--; k.programs[c.key.identity] == 0 {
		delete(k.programs, c.key.identity)
	}
}

// used are the trials whose resources are made for some proxy.
func (c *circle) used() map[*trial]bool {
	if len(c.variants) == 0 {
		return nil
	}
	used := map[*trial]bool{}
	for _, sc := range c.scopes {
		for _, h := range sc.holds {
			if h.variant != nil {
				used[h.variant.trial] = true
			}
		}
	}
	return used
}

// clean drops the trials of which no variant is left.
func (c *circle) clean() {
	if len(c.trials) == 0 {
		return
	}
	left := map[*trial]bool{}
	for _, v := range c.variants {
		left[v.trial] = true
	}
	for key, t := range c.trials {
		if !left[t] {
			delete(c.trials, key)
		}
	}
}

// RejectedResource is a resource that a proxy rejected and that is made for
// proxies that are connected.
type RejectedResource struct {
	// Type is short: cds, eds, lds, rds or vhds.
	Type, Name string
	// Identity is the proven identity of the proxies for which it is held back,
	// empty for a proxy on a port that asks for none; Namespace is that of the
	// proxy. Proxy is the node id of the one that rejected it, as it says, and
	// Reason its words.
	Identity, Namespace, Proxy, Reason string
	// The snapshots with sequences above After, up to UpTo, brought it.
	After, UpTo uint64
	Since       time.Time
	// LastGood is true if an older version is given in its place, false if
	// there is none and it is left out.
	LastGood bool
}

// Rejected lists the resources that are held back because a proxy rejected them.
func (s *Server) Rejected() []RejectedResource { return s.kept.rejected() }

func (k *keeper) rejected() []RejectedResource {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []RejectedResource
	for _, c := range k.circles {
		seen := map[resourceKey]bool{}
		for _, sc := range c.scopes {
			for it, h := range sc.holds {
				key := resourceKey{it, h.hash}
				if h.variant == nil || !h.variant.accused() || seen[key] {
					continue
				}
				seen[key] = true
				t := h.variant.trial
				out = append(out, RejectedResource{
					Type: shortType(xds.Types[it.typ]), Name: it.name, Identity: t.identity, Namespace: t.namespace, Proxy: t.proxy,
					Reason: t.reason, After: t.after, UpTo: t.upTo, Since: t.since, LastGood: c.good(it, h.good) != nil,
				})
			}
		}
	}
	slices.SortFunc(out, func(a, b RejectedResource) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name), a.Since.Compare(b.Since))
	})
	return out
}

// rejections are those that keep from a stream what was made for it.
func (k *keeper) rejections(st *stream) []Rejection {
	k.mu.Lock()
	defer k.mu.Unlock()
	if st.place.scope == nil {
		return nil
	}
	var out []Rejection
	for it, h := range st.place.scope.holds {
		if h.variant == nil || !h.variant.accused() {
			continue
		}
		t := h.variant.trial
		out = append(out, Rejection{Type: shortType(xds.Types[it.typ]), After: t.after, UpTo: t.upTo, Reason: t.reason, By: t.proxy})
	}
	slices.SortFunc(out, func(a, b Rejection) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), cmp.Compare(a.UpTo, b.UpTo), strings.Compare(a.Reason, b.Reason))
	})
	return out
}
