// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package quarantine

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// stream requests everything and answers nothing.
type stream struct{ woken int }

func (s *stream) Notify()                  { s.woken++ }
func (s *stream) Idle() bool               { return true }
func (s *stream) Requests(Item, bool) bool { return true }
func (s *stream) Accepted(Key) bool        { return false }

var shop = certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "shop"}

func newQuarantine() *Quarantine {
	return New(Config{
		Canary: true, Diff: xds.Diff, Guard: func(*xds.Resource) uint64 { return 0 }, Logger: slog.New(slog.DiscardHandler),
		Recovered: func(cause any) error { panic(cause) },
	})
}

func proxy(number int, program string) Proxy {
	return Proxy{ID: fmt.Sprintf("shop-%d.default", number), Program: program, Namespace: "default", Identity: &shop}
}

// TestStaleTimer fires the timer of a group that was removed while another group
// with the same key exists.
func TestStaleTimer(t *testing.T) {
	t.Parallel()
	q := newQuarantine()
	first := q.Join(proxy(1, "envoy"), &stream{})
	stale := first.group
	first.Leave()
	second := &stream{}
	m := q.Join(proxy(1, "envoy"), second)
	if m.group == stale || len(q.groups) != 1 {
		t.Fatal("the group was not removed")
	}
	epoch := m.group.epoch.Load()
	stale.variants[Key{Item{typeCluster, "a"}, 1}] = &variant{candidate: &candidate{state: trying}} // it still has state
	stale.expire()
	if q.groups[m.group.key] != m.group || q.programs[shop] != 1 || m.group.epoch.Load() != epoch || second.woken != 0 {
		t.Error("the new group is gone, counted wrong or disturbed")
	}
	if stale.timer != nil {
		t.Error("the removed group has started a timer")
	}
}

// TestTimerPanics checks that a panic in the timer of a group is reported, and disturbs neither the
// program nor other streams.
func TestTimerPanics(t *testing.T) {
	t.Parallel()
	q := newQuarantine()
	var causes []any
	q.cfg.Recovered = func(cause any) error {
		causes = append(causes, cause)
		return nil
	}
	m := q.Join(proxy(1, "envoy"), &stream{})
	m.group.variants[Key{Item{typeCluster, "a"}, 1}] = &variant{} // without a candidate, which is a fault
	m.group.expire()
	if len(causes) != 1 {
		t.Errorf("%d panics were reported, want 1: %v", len(causes), causes)
	}
	q.Join(proxy(2, "other"), &stream{}).Leave() // the lock is free
}

// TestGroupsAreBounded checks that an identity has at most maxPrograms shared groups: each
// stream of a further program has a group of its own.
func TestGroupsAreBounded(t *testing.T) {
	t.Parallel()
	q := newQuarantine()
	var all []*Member
	for i := range maxPrograms + 5 {
		all = append(all, q.Join(proxy(i, fmt.Sprint("program ", i)), &stream{}))
	}
	if q.programs[shop] != maxPrograms || len(q.groups) != maxPrograms+5 {
		t.Errorf("%d shared groups of %d, want %d of %d", q.programs[shop], len(q.groups), maxPrograms, maxPrograms+5)
	}
	unproven := Proxy{ID: "shop-1.default", Program: "program 0", Namespace: "default"}
	if m := q.Join(unproven, &stream{}); m.group == all[0].group {
		t.Error("a stream without a proven identity joins the group of an identity")
	} else {
		m.Leave()
	}
	if same := q.Join(proxy(99, "program 0"), &stream{}); same.group != all[0].group {
		t.Error("two streams of one identity and program have two groups")
	} else {
		same.Leave()
	}
	for _, m := range all {
		m.Leave()
	}
	if len(q.groups) != 0 || len(q.programs) != 0 {
		t.Errorf("%d groups and %d identities are remembered without a stream", len(q.groups), len(q.programs))
	}
}

// state describes a proxy that has all of a base, either like other proxies or by itself.
type state struct{ whole bool }

func (s state) Whole() bool            { return s.whole }
func (s state) Has(*xds.Resource) bool { return true }

// TestKnownByHashAlone checks that a resource from before a proxy's stream, which is no longer
// made and whose bytes are unknown, is not sent to others instead of a rejected one.
func TestKnownByHashAlone(t *testing.T) {
	t.Parallel()
	there := &xds.Resource{Name: "there", Hash: 8, Any: []byte{8}}
	for name, tc := range map[string]struct {
		base  []*xds.Resource
		whole bool
	}{
		"reconnected":          {[]*xds.Resource{{Name: "gone", Hash: 7}, there}, false},
		"has what others have": {[]*xds.Resource{there}, true},
	} {
		sc := &cohort{}
		sc.record(Answer{Type: typeCluster, Base: &xds.Set{Resources: tc.base}}, state{tc.whole}, nil)
		if got := sc.acked[typeCluster]; got == nil || got.Get("gone") != nil || got.Get("there") != there {
			t.Errorf("%s: the accepted set is %v", name, got)
		}
	}
}

// TestLateProxy checks a proxy that missed a snapshot, for example because its connection was
// dead, and comes to the next one first. What the others have accepted in the meantime must remain
// the last accepted version.
func TestLateProxy(t *testing.T) {
	t.Parallel()
	for _, canary := range []bool{false, true} {
		for _, gone := range []bool{false, true} {
			q := newQuarantine()
			q.cfg.Canary = canary
			q.cfg.Patience = func() time.Duration { return 0 }
			version := func(hash uint64) (made Sets) {
				for i := range made {
					made[i] = xds.NewSet(nil, nil, nil)
				}
				if hash > 0 {
					made[typeCluster] = xds.NewSet(nil, []*xds.Resource{{Name: "a", Hash: hash, Any: []byte{byte(hash)}}}, nil)
				}
				return made
			}
			accept := func(m *Member, made Sets, sequence uint64) {
				m.Accepted(Answer{Type: typeCluster, Base: made[typeCluster], Sequence: sequence, Changed: made[typeCluster].Resources}, state{true})
			}
			first, second, third := version(1), version(2), version(3)
			if gone {
				second = version(0)
			}
			late, other := q.Join(proxy(1, "envoy"), &stream{}), q.Join(proxy(2, "envoy"), &stream{})
			for _, m := range []*Member{late, other} {
				m.Place(first, 1, false)
				accept(m, first, 1)
			}
			other.Place(second, 2, false)
			other.group.expire() // nothing is tried any more
			other.Place(second, 2, false)
			accept(other, second, 2)

			late.Place(third, 3, false)
			other.Place(third, 3, false)
			other.Rejected(Rejection{Type: typeCluster, Changed: third[typeCluster].Resources, Reason: "is bad", After: 2, UpTo: 3})
			if got, want := other.Place(third, 3, false).Sets[typeCluster].Get("a"), second[typeCluster].Get("a"); !xds.Same(got, want) {
				t.Errorf("canaries %t, removed %t: a proxy receives %v in the place of what is rejected, want %v", canary, gone, got, want)
			}
		}
	}
}

// TestLateAcknowledgement rejects a change before the acknowledgements of the previous version
// have arrived. They must still determine the last good version.
func TestLateAcknowledgement(t *testing.T) {
	t.Parallel()
	made := func(hash uint64) (made Sets) {
		for i := range made {
			made[i] = xds.NewSet(nil, nil, nil)
		}
		made[typeRoute] = xds.NewSet(nil, []*xds.Resource{{Name: "a", Hash: hash, Any: []byte{byte(hash)}}}, nil)
		return made
	}
	first, second := made(1), made(2)
	before := Answer{Type: typeRoute, Base: first[typeRoute], Sequence: 1, Changed: first[typeRoute].Resources}
	reject := func(m *Member) {
		m.Place(second, 2, false)
		m.Rejected(Rejection{Type: typeRoute, Changed: second[typeRoute].Resources, Reason: "is bad", After: 1, UpTo: 2})
	}
	for name, run := range map[string]func(moved, slow, fresh *Member){
		"after the rejection": func(moved, _, fresh *Member) {
			reject(fresh)
			moved.Accepted(before, state{true})
		},
		"after the rejection, of a part": func(moved, _, fresh *Member) {
			reject(fresh)
			moved.Accepted(before, state{false})
		},
		"after a newer one": func(moved, _, fresh *Member) {
			reject(fresh)
			fresh.Accepted(Answer{Type: typeRoute, Base: fresh.Place(second, 2, false).Sets[typeRoute], Sequence: 2}, state{true})
			moved.Accepted(before, state{true})
		},
		"by a proxy that moves before the rejection": func(_, slow, fresh *Member) {
			slow.Accepted(before, state{true})
			slow.Place(second, 2, false)
			reject(fresh)
		},
		"by a proxy that moves after the rejection": func(_, slow, fresh *Member) {
			slow.Accepted(before, state{true})
			reject(fresh)
			slow.Place(second, 2, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQuarantine()
			q.cfg.Canary = false
			moved, slow := q.Join(proxy(1, "envoy"), &stream{}), q.Join(proxy(2, "envoy"), &stream{})
			moved.Place(first, 1, false)
			slow.Place(first, 1, false)
			moved.Place(second, 2, false)
			run(moved, slow, q.Join(proxy(3, "envoy"), &stream{}))
			last := q.Join(proxy(4, "envoy"), &stream{})
			if got := last.Place(second, 2, false).Sets[typeRoute].Get("a"); got != first[typeRoute].Get("a") {
				t.Errorf("a new proxy receives %v, want what others accepted", got)
			}
			if list := q.Rejected(); len(list) != 1 || !list[0].LastGood {
				t.Errorf("rejected: %+v", list)
			}
		})
	}
}

// TestLateRemoval rejects a resource that was removed and is made again, before the
// acknowledgements of the removal have arrived. The version before the removal must stay removed.
func TestLateRemoval(t *testing.T) {
	t.Parallel()
	for _, canary := range []bool{false, true} {
		q := newQuarantine()
		q.cfg.Canary = canary
		var all [4]Sets
		for n := range all {
			for i := range all[n] {
				all[n][i] = xds.NewSet(nil, nil, nil)
			}
			if n != 1 {
				all[n][typeRoute] = xds.NewSet(nil, []*xds.Resource{{Name: "a", Hash: uint64(n + 1), Any: []byte{byte(n + 1)}}}, nil)
			}
		}
		accepts := func(m *Member) {
			m.Accepted(Answer{Type: typeRoute, Base: all[0][typeRoute], Sequence: 1, Changed: all[0][typeRoute].Resources}, state{true})
		}
		first, slow := q.Join(proxy(1, "envoy"), &stream{}), q.Join(proxy(2, "envoy"), &stream{})
		for _, m := range []*Member{first, slow} {
			m.Place(all[0], 1, false)
		}
		accepts(first)
		for _, m := range []*Member{first, slow} {
			m.Place(all[1], 2, false)
		}
		first.Place(all[2], 3, false)
		first.Rejected(Rejection{Type: typeRoute, Changed: all[2][typeRoute].Resources, Reason: "is bad", After: 2, UpTo: 3})
		accepts(slow)
		slow.Place(all[2], 3, false)
		if got := first.Place(all[2], 3, false).Sets[typeRoute].Get("a"); got != nil {
			t.Errorf("canary %t: a proxy receives %v, which was removed", canary, got)
		}
		first.Place(all[3], 4, false)
		first.Rejected(Rejection{Type: typeRoute, Changed: all[3][typeRoute].Resources, Reason: "is bad", After: 3, UpTo: 4})
		slow.Place(all[3], 4, false)
		if got := first.Place(all[3], 4, false).Sets[typeRoute].Get("a"); got != nil {
			t.Errorf("canary %t: after another version a proxy receives %v, which was removed", canary, got)
		}
	}
}

// TestNewAndBad adds a resource that a proxy rejects before any acknowledgement has arrived. No
// proxy can have an older version, so that also those that have reconnected do not receive it.
func TestNewAndBad(t *testing.T) {
	t.Parallel()
	q := newQuarantine()
	made := func(names ...string) (made Sets) {
		for i := range made {
			made[i] = xds.NewSet(nil, nil, nil)
		}
		var all []*xds.Resource
		for _, name := range names {
			all = append(all, &xds.Resource{Name: name, Hash: 1, Any: []byte{1}})
		}
		made[typeCluster] = xds.NewSet(nil, all, nil)
		return made
	}
	first, second := made("a"), made("a", "b")
	m := q.Join(proxy(1, "envoy"), &stream{})
	m.Place(first, 1, true)
	m.Place(second, 2, true)
	m.Rejected(Rejection{Type: typeCluster, Changed: second[typeCluster].Resources[1:], Reason: "is bad", After: 1, UpTo: 2})
	if got := m.Place(second, 2, true); got.Sets[typeCluster].Get("b") != nil || len(got.Spared) > 0 {
		t.Errorf("the proxy receives %v, and %v is spared", got.Sets[typeCluster].Resources, got.Spared)
	}
}

// TestLastGoodIsNoSuspect rejects, without a name, a response with a change and the last good
// version of another resource. Only the change must be withheld.
func TestLastGoodIsNoSuspect(t *testing.T) {
	t.Parallel()
	q := newQuarantine()
	q.cfg.Canary = false
	made := func(hash uint64, names ...string) (made Sets) {
		for i := range made {
			made[i] = xds.NewSet(nil, nil, nil)
		}
		var all []*xds.Resource
		for _, name := range names {
			all = append(all, &xds.Resource{Name: name, Hash: hash, Any: []byte{byte(hash)}})
		}
		made[typeRoute] = xds.NewSet(nil, all, nil)
		return made
	}
	first, second, others := made(1, "a", "b"), made(2, "a", "b"), made(1, "b")
	m := q.Join(proxy(1, "envoy"), &stream{})
	m.Place(first, 1, false)
	m.Accepted(Answer{Type: typeRoute, Base: first[typeRoute], Sequence: 1, Changed: first[typeRoute].Resources}, state{true})
	m.Place(second, 2, false)
	m.Rejected(Rejection{Type: typeRoute, Changed: second[typeRoute].Resources[:1], Reason: "is bad", After: 1, UpTo: 2})
	m.Accepted(Answer{Type: typeRoute, Base: others[typeRoute], Sequence: 2}, state{true}) // of a part

	fresh := q.Join(proxy(2, "envoy"), &stream{})
	got := fresh.Place(second, 2, false).Sets[typeRoute]
	if got.Get("a") != first[typeRoute].Get("a") || got.Get("b") != second[typeRoute].Get("b") {
		t.Fatalf("a new proxy receives %v", got.Resources)
	}
	fresh.Rejected(Rejection{Type: typeRoute, Changed: got.Resources, Reason: "cannot read that", UpTo: 2})
	if got := fresh.Place(second, 2, false).Sets[typeRoute]; got.Get("a") != first[typeRoute].Get("a") || xds.Same(got.Get("b"), second[typeRoute].Get("b")) {
		t.Errorf("after the rejection it receives %v", got.Resources)
	}
}

// TestGoneIsNoSuspect rejects, without a name, a response with a change and a removed resource
// that is still needed. Only the change must be withheld.
func TestGoneIsNoSuspect(t *testing.T) {
	t.Parallel()
	q := newQuarantine()
	q.cfg.Canary = false
	var first, second Sets
	for i := range first {
		first[i], second[i] = xds.NewSet(nil, nil, nil), xds.NewSet(nil, nil, nil)
	}
	gone := resource(t, typeCluster, "gone", &clusterv3.Cluster{Name: "gone"})
	first[typeCluster] = xds.NewSet(nil, []*xds.Resource{gone}, nil)
	first[typeListener] = xds.NewSet(nil, []*xds.Resource{listener(t, "l", "127.0.0.1", "1", "gone")}, nil)
	second[typeCluster] = xds.NewSet(nil, []*xds.Resource{{Name: "new", Hash: 1, Any: []byte{1}}}, nil)
	second[typeListener] = xds.NewSet(nil, []*xds.Resource{listener(t, "l", "127.0.0.1", "2", "new")}, nil)
	m := q.Join(proxy(1, "envoy"), &stream{})
	m.Place(first, 1, false)
	m.Accepted(Answer{Type: typeListener, Base: first[typeListener], Sequence: 1, Changed: first[typeListener].Resources}, state{true})
	m.Place(second, 2, false)
	m.Rejected(Rejection{Type: typeListener, Changed: second[typeListener].Resources, Reason: "is bad", After: 1, UpTo: 2})
	fresh := q.Join(proxy(2, "envoy"), &stream{})
	for range 2 {
		got := fresh.Place(second, 2, false).Sets[typeCluster]
		if got.Get("gone") != gone {
			t.Fatalf("a new proxy receives %v", got.Resources)
		}
		fresh.Rejected(Rejection{Type: typeCluster, Changed: got.Resources, Reason: "cannot read that", UpTo: 2})
	}
	if list := q.Rejected(); len(list) != 2 || list[0].Name != "new" {
		t.Errorf("rejected: %+v", list)
	}
}

// TestOtherIsNamed rejects a response because of a resource that was sent before. The only new
// resource in the response must not be withheld.
func TestOtherIsNamed(t *testing.T) {
	t.Parallel()
	q := newQuarantine()
	q.cfg.Canary = false
	var made Sets
	for i := range made {
		made[i] = xds.NewSet(nil, nil, nil)
	}
	made[typeCluster] = xds.NewSet(nil, []*xds.Resource{{Name: "bad", Hash: 1, Any: []byte{1}}, {Name: "good", Hash: 2, Any: []byte{2}}}, nil)
	m := q.Join(proxy(1, "envoy"), &stream{})
	m.Place(made, 1, true)
	reject := func(reason string) bool {
		return m.Rejected(Rejection{Type: typeCluster, Changed: made[typeCluster].Resources[1:], Reason: reason, UpTo: 1})
	}
	if reject("Error adding/updating cluster(s) bad: is bad") || len(q.Rejected()) > 0 {
		t.Errorf("withheld: %+v", q.Rejected())
	}
	if reject("is bad"); len(q.Rejected()) != 1 {
		t.Errorf("withheld: %+v", q.Rejected())
	}
}

// TestNamed finds the resources that the messages of Envoy name.
func TestNamed(t *testing.T) {
	t.Parallel()
	resources := []*xds.Resource{{Name: "main"}, {Name: "beside"}, {Name: "x"}}
	for reason, want := range map[string][]string{
		"name: \"main\"\ntype: STATIC\n: Proto constraint validation failed (ClusterValidationError: x)":         {"main"},
		"updates: \nname: \"main\"\ntype: STATIC\n: Proto constraint validation failed (ClusterValidationError)": {"main"},
		"name: \"main\"\nload_assignment {\n  name: \"beside\"\n}\n: Proto constraint validation failed":         {"main"},
		"alt_stat_name: \"x\"\n: Proto constraint validation failed":                                             nil,
		"Error adding/updating cluster(s) main: a, beside: b":                                                    {"main", "beside"},
		"Error adding/updating listener(s) other: a\nbeside: b":                                                  {"beside"},
		"missing ): (": nil,
	} {
		var got []string
		for _, res := range named(resources, reason) {
			got = append(got, res.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q names %q, want %q", reason, got, want)
		}
	}
}

// TestNewerAcknowledgement rejects a version when only the version before the last one is
// acknowledged. The last one must be sent once its acknowledgement has arrived.
func TestNewerAcknowledgement(t *testing.T) {
	t.Parallel()
	q := newQuarantine()
	q.cfg.Canary = false
	var all [3]Sets
	for n := range all {
		for i := range all[n] {
			all[n][i] = xds.NewSet(nil, nil, nil)
		}
		all[n][typeRoute] = xds.NewSet(nil, []*xds.Resource{{Name: "a", Hash: uint64(n + 1), Any: []byte{byte(n + 1)}}}, nil)
	}
	accepts := func(m *Member, n int) {
		m.Accepted(Answer{Type: typeRoute, Base: all[n][typeRoute], Sequence: uint64(n + 1), Changed: all[n][typeRoute].Resources}, state{true})
	}
	m, fresh := q.Join(proxy(1, "envoy"), &stream{}), q.Join(proxy(2, "envoy"), &stream{})
	for n := range all {
		m.Place(all[n], uint64(n+1), false)
		if n == 0 {
			accepts(m, n)
		}
	}
	fresh.Place(all[2], 3, false)
	fresh.Rejected(Rejection{Type: typeRoute, Changed: all[2][typeRoute].Resources, Reason: "is bad", After: 2, UpTo: 3})
	want := func(n int) {
		t.Helper()
		if got := fresh.Place(all[2], 3, false).Sets[typeRoute].Get("a"); !xds.Same(got, all[n][typeRoute].Get("a")) {
			t.Errorf("a new proxy receives %v, want version %d", got, n+1)
		}
	}
	want(0)
	accepts(m, 1)
	want(1)
	accepts(m, 0)
	want(1)
}
