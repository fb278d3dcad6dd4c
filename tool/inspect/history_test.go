// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// past returns a history with more versions than a table shows.
func past() report.History {
	h := report.History{Begins: ago(50 * time.Hour), Omitted: 3}
	version := func(before time.Duration, change, revision string) {
		v := report.Version{
			Ref: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "catalog"}, At: ago(before), Change: change, Revision: revision,
			Source: "/etc/outrigger/a-directory-with-a-long-name/shop/catalog.yaml:12",
		}
		if revision == "" {
			v.Source = ""
		} else {
			v.Object = json.RawMessage(`{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"catalog"},"spec":{"hosts":["catalog"]}}`)
		}
		h.Versions = append(h.Versions, v)
	}
	version(49*time.Hour, report.Found, "6042d1a0c6f1e8b2")
	for range 19 {
		version(26*time.Hour, report.Updated, "a1685cf6c6f1e8b2")
	}
	version(time.Hour, report.Deleted, "")
	version(time.Minute, report.Created, "a1685cf6c6f1e8b2")
	h.Versions[21].Unseen = true
	return h
}

// pastServices returns a history of services, of a control plane whose disk had faults and is full.
func pastServices() report.History {
	h := report.History{
		Begins: ago(time.Hour), Damaged: 2, Stopped: ago(30 * time.Second), Reason: "write the versions of objects: no space left on device",
	}
	for i, n := range []int{2, 0, 1} {
		h.Versions = append(h.Versions, report.Version{
			Ref: report.Ref{Kind: "Service", Namespace: "shop", Name: "catalog"}, At: ago(time.Duration(59-i) * time.Minute), Change: report.Updated,
			Revision: fmt.Sprint(n, "042d1a0c6f1e8b2"), Endpoints: &n,
		})
	}
	h.Versions = append(h.Versions, report.Version{Ref: h.Versions[0].Ref, At: ago(time.Minute), Change: report.Deleted})
	return h
}

// TestMoment checks the ways to write a time.
func TestMoment(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("east", 3600)
	now := time.Date(2026, 5, 1, 3, 0, 30, 0, zone)
	for text, want := range map[string]time.Time{
		"now":                  now,
		"90s":                  now.Add(-90 * time.Second),
		"2h":                   now.Add(-2 * time.Hour),
		"02:59":                time.Date(2026, 5, 1, 2, 59, 0, 0, zone),
		"03:00:30":             now,
		"14:02":                time.Date(2026, 4, 30, 14, 2, 0, 0, zone), // a later time of day means yesterday
		"2026-04-29T14:02":     time.Date(2026, 4, 29, 14, 2, 0, 0, zone),
		"2026-04-29 14:02:07":  time.Date(2026, 4, 29, 14, 2, 7, 0, zone),
		"2026-04-29T14:02:07Z": time.Date(2026, 4, 29, 14, 2, 7, 0, time.UTC),
	} {
		if got, err := moment(text, now); err != nil || !got.Equal(want) {
			t.Errorf("moment(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "yesterday", "-1h", "25:00", "2026-02-30"} {
		if got, err := moment(text, now); err == nil {
			t.Errorf("moment(%q) = %v, want an error", text, got)
		}
	}
}
