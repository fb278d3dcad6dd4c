// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/revisions"
)

// fixedPast is a history of one object.
type fixedPast report.History

func (p fixedPast) List(f revisions.Filter) (report.History, error) {
	out := report.History(p)
	out.Versions = nil
	for _, v := range p.Versions {
		if strings.HasPrefix(v.Revision, f.Revision) {
			if v.Object = nil; f.Revision != "" {
				v.Object = []byte(v.Revision)
			}
			out.Versions = append(out.Versions, v)
		}
	}
	return out, nil
}

func (p fixedPast) Changes(time.Time, time.Time) ([]report.Changed, error) { return nil, nil }

// TestVersionAt checks which version of an object is that of a moment, and the moments of which that is not
// known.
func TestVersionAt(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Date(2026, 5, 1, 3, minute, 0, 0, time.UTC) }
	versions := []report.Version{
		{At: at(10), Change: report.Created, Revision: "1"},
		{At: at(20), Change: report.Updated, Revision: "2"},
		{At: at(30), Change: report.Deleted},
		{At: at(40), Change: report.Created, Revision: "3"},
	}
	whole := fixedPast{Begins: at(0), Versions: versions}
	stopped, many, none := whole, whole, whole
	stopped.Stopped, stopped.Reason = at(25), "no space"
	many.Omitted, none.Versions = 3, nil
	objects := debugtest.Shop()
	for _, tc := range []struct {
		past   fixedPast
		minute int
		want   string // revision, and that of the next version, or the error
	}{
		{whole, 5, "- 1"},
		{whole, 10, "1 2"},
		{whole, 29, "2 deleted"},
		{whole, 35, "- 3"},
		{whole, 50, "3 -"},
		{whole, -1, "it begins at 2026-05-01T03:00:00Z"},
		{stopped, 25, "2 deleted"},
		{stopped, 26, "nothing is recorded since 2026-05-01T03:25:00Z: no space"},
		{many, 9, "has more than 4 versions since then: name a time after 2026-05-01T03:10:00Z"},
		{many, 15, "1 2"},
		{none, 50, "it is too large, or a machine registered it"},
	} {
		d := debugger{cfg: Config{Objects: objects}}
		then, err := d.versionAt(tc.past, objects[0].Key, at(tc.minute))
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = "- "
			if then.Version != nil {
				got = string(then.Version.Object) + " "
			}
			switch {
			case then.Next == nil:
				got += "-"
			case then.Next.Revision == "":
				got += then.Next.Change
			default:
				got += then.Next.Revision
			}
		}
		if got != tc.want && (err == nil || !strings.Contains(got, tc.want)) {
			t.Errorf("at minute %d: got %q, want %q", tc.minute, got, tc.want)
		}
	}
	if then, err := (debugger{}).versionAt(none, model.Key{Kind: model.Sidecar, Name: "other"}, at(50)); err != nil || then.Version != nil || then.Next != nil {
		t.Errorf("an object that never existed: got %+v, %v", then, err)
	}
}

// TestPastSettings checks which mesh config and networks of the past are known, and when they cannot be used.
func TestPastSettings(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 1, 3, 0, 0, 0, time.UTC)
	changed := func(name, before string) report.Changed {
		c := report.Changed{Ref: report.Ref{Kind: "MeshConfig", Name: name}, After: &report.Version{At: at, Object: []byte("{}")}}
		if before != "" {
			c.Before = &report.Version{Object: []byte(before)}
		}
		return c
	}
	object := report.Changed{Ref: report.Ref{Kind: "Sidecar", Name: "a"}}
	known, unknown := changed(report.MeshName, `{"ingressClass":"nginx"}`), changed(report.MeshName, "")
	for name, tc := range map[string]struct {
		changes  []report.Changed
		class    string // of Ingresses, in the mesh config of then
		networks string // of then
		since    time.Time
		fails    bool
	}{
		"nothing":                 {changes: nil, networks: "now"},
		"the mesh config":         {changes: []report.Changed{known, object}, class: "nginx", networks: "now"},
		"no networks before":      {changes: []report.Changed{changed(report.NetworksName, "")}, networks: ""},
		"other networks":          {changes: []report.Changed{object, changed(report.NetworksName, `{"networks":{"far":{}}}`)}, networks: "far"},
		"both":                    {changes: []report.Changed{known, changed(report.NetworksName, "")}, class: "nginx", networks: ""},
		"nothing is known":        {changes: []report.Changed{unknown}, networks: "now", since: at},
		"nothing, with networks":  {changes: []report.Changed{changed(report.NetworksName, ""), unknown}, networks: "now", since: at},
		"a field that is unknown": {changes: []report.Changed{changed(report.MeshName, `{"later":1}`)}, networks: "now"},
		"damaged":                 {changes: []report.Changed{changed(report.MeshName, `{"ingressClass":1}`)}, fails: true},
	} {
		var p Proposal
		others, since, err := p.settings(tc.changes)
		if tc.fails {
			if err == nil || !strings.Contains(err.Error(), "of the mesh config: ") {
				t.Errorf("%s: got error %v, want one about the mesh config", name, err)
			}
			continue
		}
		networks := "now"
		if p.Networks != nil {
			networks = strings.Join(slices.Collect(maps.Keys(p.Networks.GetNetworks())), " ")
		}
		if err != nil || p.Mesh.GetIngressClass() != tc.class || networks != tc.networks || !since.Equal(tc.since) ||
			len(others) > 0 != slices.ContainsFunc(tc.changes, func(c report.Changed) bool { return c.Kind == object.Kind }) {
			t.Errorf("%s: got %v, networks %q, since %s, others %v, %v", name, p.Mesh, networks, since, others, err)
		}
	}
}
