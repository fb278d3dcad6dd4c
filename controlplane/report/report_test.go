// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package report

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestMerge merges the reports of two replicas about one object: numbers are added, and facts that
// both report are listed once.
func TestMerge(t *testing.T) {
	t.Parallel()
	early, late := time.Unix(100, 0), time.Unix(200, 0)
	ref := Ref{Kind: "VirtualService", Namespace: "shop", Name: "web"}
	problem := func(since time.Time) Problem { return Problem{Object: ref, Reason: "spec.x: no", Since: since} }
	got := Merge([]Object{
		{
			Ref: ref, Replica: "b", Found: true, InForce: true, Changed: early, Problems: []Problem{problem(late)}, Others: 1,
			Resources: []Resource{{Type: "vhds", Name: "v", Proxies: 2}, {Type: "cds", Name: "c", Proxies: 1}},
			Proxies:   []Standing{{Proxy: "z.shop", State: Synced}}, Lacking: []string{"spec.b", "spec.a"},
		},
		{
			Ref: ref, Replica: "a", Found: true, InForce: true, Changed: late, Problems: []Problem{problem(early)}, Others: 2, Source: "web.yaml:1",
			Resources: []Resource{{Type: "vhds", Name: "v", Proxies: 1, HeldBack: 1}},
			Proxies:   []Standing{{Proxy: "a.shop", State: HeldBack, Reason: "no"}}, Lacking: []string{"spec.a"},
		},
		{Ref: ref, Replica: "c", Found: true, InForce: true, Nobody: "none is connected"},
	})
	want := Object{
		Ref: ref, Replica: "b, a, c", Found: true, InForce: true, Changed: late, Problems: []Problem{problem(early)}, Others: 3, Source: "web.yaml:1",
		Resources: []Resource{{Type: "cds", Name: "c", Proxies: 1}, {Type: "vhds", Name: "v", Proxies: 3, HeldBack: 1}},
		Proxies:   []Standing{{Proxy: "a.shop", State: HeldBack, Reason: "no"}, {Proxy: "z.shop", State: Synced}},
		Lacking:   []string{"spec.a", "spec.b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := Merge([]Object{{Ref: ref}, {Ref: ref, Nobody: "none is connected"}}); got.Nobody != "none is connected" {
		t.Errorf("Merge() = %+v, want the reason why no proxy has the object", got)
	}
	if got := Merge(nil); got.Found || len(got.Proxies) > 0 {
		t.Errorf("Merge(nil) = %+v, want an empty report", got)
	}
}
