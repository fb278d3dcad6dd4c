// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"fmt"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// readOnlyCases run on read-only stores.
var readOnlyCases = []testCase{
	{"EmptyStore", testEmptyStore},
	{"ReadOnly", testReadOnly},
	{"Follow", testFollow},
	{"FollowsManyChanges", testFollowsManyChanges},
}

// testReadOnly checks that every write is rejected and changes nothing.
func testReadOnly(t *testing.T, s *suite) {
	l := s.prepare(t)
	there := workload("shop", "a", "10.0.0.1")
	s.opts.Fill(t, l.raw, there)
	l.run()
	l.until("the object is there", func() bool { return l.Get(there.Key) != nil })
	first := l.Get(there.Key)
	_, err := l.Create(t.Context(), workload("shop", "b", "10.0.0.2"))
	want(t, "create", err, config.ErrReadOnly)
	if code := config.StatusCode(err); code != 405 {
		t.Errorf("StatusCode() = %d, want 405", code)
	}
	_, err = l.Update(t.Context(), readdress(first, "10.0.0.2"))
	want(t, "update", err, config.ErrReadOnly)
	_, err = l.Patch(t.Context(), first.Key, func(c *model.Config) error { c.Labels = map[string]string{"a": "b"}; return nil })
	want(t, "patch", err, config.ErrReadOnly)
	want(t, "delete", l.Delete(t.Context(), first.Key, ""), config.ErrReadOnly)
	if got := l.Get(first.Key); got == nil || got.ResourceVersion != first.ResourceVersion || address(got) != "10.0.0.1" {
		t.Errorf("the object was changed: %v", got)
	}
	if list := l.List(model.WorkloadEntry, ""); len(list) != 1 {
		t.Errorf("objects: got %v, want 1", list)
	}
}

// testFollow changes the source and checks the events.
func testFollow(t *testing.T, s *suite) {
	l := s.prepare(t)
	a, b := workload("shop", "a", "10.0.0.1"), workload("shop", "b", "10.0.0.2")
	a.Labels = map[string]string{"app": "a"}
	route, class := httpRoute("shop", "a", "shop.example"), gatewayClass("a")
	s.opts.Fill(t, l.raw, a, b, route, class)
	l.run()
	if events, _ := l.follow.count(); events != 4 {
		t.Errorf("the handlers had received %d objects when the store was synced, want 4", events)
	}
	first := l.Get(a.Key)
	if !config.SameContent(first, a) || !config.SameContent(l.Get(route.Key), defaulted(route)) || !config.SameContent(l.Get(class.Key), defaulted(class)) {
		t.Errorf("the objects differ from those of the source: %v, %v", first, l.Get(route.Key))
	}
	s.opts.Fill(t, l.raw, readdress(a, "10.0.0.3"), route)
	l.gone(b.Key)
	l.gone(class.Key)
	l.until("the new address is there", func() bool { return address(l.Get(a.Key)) == "10.0.0.3" })
	second := l.Get(a.Key)
	if second.ResourceVersion == first.ResourceVersion || second.ResourceVersion == "" {
		t.Errorf("resource version after a change: got %q, before %q", second.ResourceVersion, first.ResourceVersion)
	}
	l.heard(a.Key, second.ResourceVersion)
	l.heard(b.Key, "")
	l.heard(class.Key, "")
	l.heard(route.Key, l.Get(route.Key).ResourceVersion)
}

// testFollowsManyChanges makes many changes, whose events the follower replays.
func testFollowsManyChanges(t *testing.T, s *suite) {
	const objects, rounds = 20, 10
	l := s.start(t)
	for round := range rounds {
		var all []*model.Config
		for i := range objects {
			if (i+round)%5 > 0 || round == rounds-1 {
				all = append(all, workload("shop", fmt.Sprintf("w%d", i), fmt.Sprintf("10.%d.0.1", round)))
			}
		}
		s.opts.Fill(t, l.raw, all...)
	}
	for i := range objects {
		k := key(model.WorkloadEntry, "shop", fmt.Sprintf("w%d", i))
		l.until("the last address is there", func() bool {
			c := l.Get(k)
			return c != nil && address(c) == fmt.Sprintf("10.%d.0.1", rounds-1)
		})
		l.heard(k, l.Get(k).ResourceVersion)
	}
}
