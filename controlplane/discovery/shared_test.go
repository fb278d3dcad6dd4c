// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// remembered returns how many updates, unions and bodies are held for streams.
func (h *harness) remembered() string {
	s := h.server.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(len(s.updates), len(s.unions), len(s.requested))
}

// Streams with equal subscriptions share the work, also while clusters wait for their removal.
func TestStreamsShare(t *testing.T) {
	each(t, func(t *testing.T, h *harness, p *peer) {
		many := map[string]string{"a": "a=1", "b": "b=1"}
		for i := range longAnswer {
			many[fmt.Sprintf("c%d", i)] = "c"
		}
		h.set(xds.TypeCluster, many)
		h.push()
		gone := map[string]string{"b": "b=2"}
		for name, content := range many {
			if name != "a" && name != "b" {
				gone[name] = content
			}
		}
		connect := func(p *peer) {
			p.subscribe(xds.TypeCluster)
			p.ack(p.any())
			p.subscribe(xds.TypeListener)
			p.wantAck("lds l=1")
			p.subscribe(xds.TypeRoute, "r")
			p.wantAck("rds r=1")
			p.quiet()
		}
		others := []*peer{p}
		connect(p)
		one := h.remembered()
		for range 5 {
			other := h.connect(t, p.delta)
			connect(other)
			others = append(others, other)
		}
		if all := h.remembered(); all != one {
			t.Errorf("six streams hold %s updates, unions and bodies, one holds %s", all, one)
		}
		h.set(xds.TypeCluster, gone)
		h.set(xds.TypeRoute, map[string]string{"r": "r=2"})
		h.push()
		for i, other := range others {
			other.ack(other.any())
			other.wantAck("rds r=2")
			other.ack(other.any()) // without a
			other.quiet()
			if i == 0 {
				one = h.remembered()
			}
		}
		if all := h.remembered(); all != one {
			t.Errorf("after a removal six streams hold %s updates, unions and bodies, one holds %s", all, one)
		}
	})
}

// The resources that a proxy reconnects with are not shared and not stored.
func TestResumedSetsAreNotRemembered(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	h.push()
	before := h.remembered()
	for i := range 5 {
		p := h.connect(t, true)
		p.must(&discoveryv3.DeltaDiscoveryRequest{
			Node: p.node, TypeUrl: xds.TypeCluster, InitialResourceVersions: map[string]string{"a": fmt.Sprint(i), "gone": "1"},
		})
		p.wantAck("cds a=1 -gone")
		p.quiet()
	}
	if after := h.remembered(); after != before {
		t.Errorf("%s updates, unions and bodies are held, %s before", after, before)
	}
}

// Names with the hash of other names are not taken for them.
func TestNamesDecide(t *testing.T) {
	t.Parallel()
	s := newShared()
	first := s.nameSet(7, []string{"b", "a"})
	for name, tc := range map[string]struct {
		names []string
		same  bool
	}{
		"in another order":      {[]string{"a", "b"}, true},
		"others, the same hash": {[]string{"c", "d"}, false},
		"twice the same":        {[]string{"c", "c"}, false},
	} {
		got := s.nameSet(7, tc.names)
		if (got == first) != tc.same {
			t.Errorf("%s: shared is %t, want %t", name, got == first, tc.same)
		}
		for _, n := range tc.names {
			if !got.contains(n) {
				t.Errorf("%s: the set lacks %s: %v", name, n, got.list)
			}
		}
	}
	if s.nameSet(7, []string{"a", "b"}) != first {
		t.Error("the first set was replaced")
	}
}

// A stream that adds the names of other streams shares their set, in any order and also with
// duplicates.
func TestAddedNamesShare(t *testing.T) {
	t.Parallel()
	s := newShared()
	first := s.with(noNames, []string{"a", "b", "c"})
	for name, tc := range map[string]struct {
		begin *nameSet
		more  []string
		same  bool
	}{
		"at once":               {noNames, []string{"a", "b", "c"}, true},
		"in another order":      {noNames, []string{"c", "a", "b"}, true},
		"in two steps":          {s.with(noNames, []string{"b"}), []string{"c", "a"}, true},
		"one twice":             {noNames, []string{"a", "b", "c", "a"}, true},
		"one in place of two":   {noNames, []string{"a", "b", "b"}, false},
		"as many others":        {noNames, []string{"a", "b", "d"}, false},
		"fewer":                 {noNames, []string{"a", "b"}, false},
		"more, one of it known": {first, []string{"a", "d"}, false},
	} {
		got := s.with(tc.begin, tc.more)
		if (got == first) != tc.same {
			t.Errorf("%s: shared is %t, want %t", name, got == first, tc.same)
		}
		want := slices.Compact(slices.Sorted(slices.Values(slices.Concat(tc.begin.list, tc.more))))
		if !slices.Equal(got.list, want) {
			t.Errorf("%s: the set is %v, want %v", name, got.list, want)
		}
	}
}

// together calls a function in many goroutines that begin at the same time, and
// returns the different results.
func together[V comparable](f func() V) map[V]bool {
	const many = 16
	results := make(chan V, many)
	begin := make(chan struct{})
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			<-begin
			results <- f()
		})
	}
	close(begin)
	all.Wait()
	close(results)
	different := map[V]bool{}
	for v := range results {
		different[v] = true
	}
	return different
}

// Streams that connect concurrently, as after a start, share like those that connect one after the
// other.
func TestCrowdShares(t *testing.T) {
	t.Parallel()
	const count = 500
	from, to := &xds.Set{}, &xds.Set{}
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("name-%03d", i)
		from.Resources = append(from.Resources, &xds.Resource{Name: names[i] + "-old", Hash: 1, Any: []byte("old")})
		to.Resources = append(to.Resources, &xds.Resource{Name: names[i], Hash: uint64(i), Any: []byte(names[i])})
	}
	for round := range 20 {
		s := newShared()
		sets := together(func() *nameSet { return s.nameSet(uint64(round), names) })
		if len(sets) != 1 {
			t.Fatalf("%d sets of the same names", len(sets))
		}
		type list struct {
			first  **xds.Resource
			common bool
		}
		lists := together(func() list {
			u := s.update(updateKey{from: from, to: to})
			return list{&u.changed[0], u.common}
		})
		if len(lists) != 1 {
			t.Fatalf("%d lists of the same difference", len(lists))
		}
		for range popularAfter - 1 {
			if b := s.body(to, to.Resources, false, true); len(b) != 2*count {
				t.Fatalf("a body that few ask for is in %d pieces, want no copy of %d resources", len(b), count)
			}
		}
		bodies := together(func() *byte { return &s.body(to, to.Resources, false, true)[0].ReadOnlyData()[0] })
		if len(bodies) != 1 {
			t.Fatalf("%d bodies of the same resources", len(bodies))
		}
		if unions := together(func() *xds.Set { return s.union(from, to) }); len(unions) != 1 {
			t.Fatalf("%d unions of the same sets", len(unions))
		}
	}
}

// Subscribers without delta that name the same endpoints first share one difference, which
// also contains those that do not exist.
func TestFirstEndpointsShare(t *testing.T) {
	t.Parallel()
	names := []string{"outbound|80||a.test", "outbound|80||b.test", "outbound|80||gone.test"}
	set := &xds.Set{Version: "1"}
	for _, n := range names[:2] {
		set.Resources = append(set.Resources, &xds.Resource{Name: n, Hash: 1, Any: []byte(n)})
	}
	s := newShared()
	var first []*xds.Resource
	ask := func(sub *subscription, names ...string) bool {
		raw, err := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: xds.TypeEndpoint, ResourceNames: names})
		if err != nil {
			t.Fatal(err)
		}
		q, err := readSotW(raw)
		if err != nil {
			t.Fatal(err)
		}
		return sub.setNames(q)
	}
	for i := range 3 {
		sub := newSubscription(xds.TypeEndpoint, s)
		sub.absent = emptyAbsent
		if !ask(sub, names...) {
			t.Fatal("new names do not extend the subscription")
		}
		u := sub.diff(set)
		var got []string
		for _, res := range u.changed {
			got = append(got, res.Name)
		}
		if !slices.Equal(got, names) {
			t.Fatalf("the first response contains %v, want %v", got, names)
		}
		if i == 0 {
			first = u.changed
		}
		if !u.common || &u.changed[0] != &first[0] {
			t.Error("a subscriber has a difference of its own")
		}
		if sub.sent(set, u); !sub.diff(set).empty() {
			t.Errorf("what was sent differs: %v", sub.diff(set))
		}
		if ask(sub, names[:2]...); !ask(sub, names...) || len(sub.diff(set).changed) != 1 {
			t.Errorf("a name that came back is not sent again: %v", sub.diff(set))
		}
	}
}

// Wildcard subscribers that claim to have nothing share one difference; one that has something
// has a difference of its own.
func TestFirstWildcardsShare(t *testing.T) {
	t.Parallel()
	set := &xds.Set{Version: "1", Resources: []*xds.Resource{{Name: "a", Hash: 1}, {Name: "b", Hash: 2}}}
	s := newShared()
	diff := func(versions map[string]string) update {
		sub := newSubscription(xds.TypeCluster, s)
		sub.wildcard = true
		sub.resume(versions)
		return sub.diff(set)
	}
	one, two := diff(nil), diff(map[string]string{})
	if len(one.changed) != 2 || !one.common || &one.changed[0] != &two.changed[0] {
		t.Errorf("the differences are not shared: %v, %v", one, two)
	}
	if own := diff(map[string]string{"a": versionOf(1)}); len(own.changed) != 1 || own.common {
		t.Errorf("the difference of one that has a: %v", own)
	}
}
