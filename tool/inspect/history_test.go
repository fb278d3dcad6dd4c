// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/output"
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

// pastMesh returns a history of the mesh config and the networks.
func pastMesh() report.History {
	h := report.History{Begins: ago(time.Hour)}
	for i, revision := range []string{"1042d1a0c6f1e8b2", "2042d1a0c6f1e8b2"} {
		h.Versions = append(h.Versions, report.Version{
			Ref: report.Ref{Kind: "MeshConfig", Name: report.MeshName}, At: ago(time.Duration(40-i) * time.Minute), Change: []string{report.Found, report.Updated}[i],
			Revision: revision, Source: "ConfigMap mesh/istio", Object: json.RawMessage(`{"accessLogFile":"/dev/stdout","enableTracing":true}`),
		})
	}
	h.Versions = append(h.Versions, report.Version{Ref: report.Ref{Kind: "MeshConfig", Name: report.NetworksName}, At: ago(time.Minute), Change: report.Deleted})
	return h
}

// TestHistoryOf checks which versions the arguments of history select.
func TestHistoryOf(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"": "//", "mesh": "MeshConfig//", "svc": "Service//", "vs/catalog.shop": "VirtualService/shop/catalog", "vs catalog -n shop": "VirtualService/shop/catalog",
	} {
		asked := ""
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = r.FormValue("kind") + "/" + r.FormValue("namespace") + "/" + r.FormValue("name")
			_ = json.NewEncoder(w).Encode(pastMesh()) // the test sees what is missing
		}))
		out, errs, code := run(t, append([]string{"history", "--control", s.URL}, strings.Fields(args)...)...)
		s.Close()
		if asked != want || code != 0 || !strings.Contains(out, "meshNetworks   deleted") {
			t.Errorf("history %s asked for %s, want %s; exit code %d %s\n%s", args, asked, want, code, errs, out)
		}
	}
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
	for _, text := range []string{"", "yesterday", "-1h", "25:00", "2026-02-30", "2026-05-01T03:01", "2030-01-01T00:00:00Z"} {
		if got, err := moment(text, now); err == nil {
			t.Errorf("moment(%q) = %v, want an error", text, got)
		}
	}
}

// TestLocalTimes checks that times in errors of a control plane in another zone are like those of tables.
func TestLocalTimes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 3, 0, 30, 0, time.FixedZone("east", 3600))
	for text, want := range map[string]string{
		"it begins at 2026-05-01T01:02:03Z":                        "it begins at 02:02:03",
		"since 2026-04-29T23:30:00.123-02:00: no space":            "since Apr 30 02:30:00: no space",
		"from=2026-05-01T01:02:03Z is after 2026-04-30T01:02:03Z.": "from=02:02:03 is after Apr 30 02:02:03.",
		"no time: 2026-99-01T01:02:03Z, 12026-05-01T01:02:03Z, 1.": "no time: 2026-99-01T01:02:03Z, 12026-05-01T01:02:03Z, 1.",
	} {
		if got := localTimes(text, now); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the history does not reach back so far: it begins at 2026-05-01T01:02:03Z", http.StatusBadRequest)
	}))
	defer s.Close()
	want := "it begins at " + output.Clock(time.Date(2026, 5, 1, 1, 2, 3, 0, time.UTC), time.Now())
	for _, args := range []string{"history", "explain vs/a --at 1h", "explain request --from a --to b --at 1h", "explain mesh --at 1h"} {
		out, errs, code := run(t, append(strings.Fields(args), "--control", s.URL)...)
		if code == 0 || !strings.Contains(errs, want) || strings.Contains(out+errs, "T01:02:03Z") {
			t.Errorf("%s: %d %s%s, want %q", args, code, out, errs, want)
		}
	}
}

// TestRefusedQuestion checks that a control plane that answers with an error counts as reached.
func TestRefusedQuestion(t *testing.T) {
	t.Parallel()
	code, text := http.StatusBadRequest, "the history does not reach back so far: it begins at noon"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) }))
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")
	for _, want := range []string{text, "it returned 503: " + text} {
		_, errs, got := run(t, "explain", "vs/catalog", "--at", "1h", "--control", address)
		if got != 1 || errs != "error: control plane "+address+": "+want+"\n" {
			t.Errorf("%d %s", got, errs)
		}
		code = http.StatusServiceUnavailable
	}
}
