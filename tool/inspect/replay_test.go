// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// replays returns the result of one batch of a replay.
func replays() report.Replay {
	return report.Replay{
		Proxy: "catalog-1.shop", Decided: 12345, Other: 7, Unread: 1, Unnamed: 12345, Skipped: []string{"plugin"},
		Flips: []report.Flip{
			{
				By: "rule", Rule: &report.Rule{Ref: report.Ref{Kind: "AuthorizationPolicy", Namespace: "shop", Name: "private"}, Source: "proposed.yaml:3"}, Count: 340,
				Example: report.Recorded{Identity: "spiffe://cluster.local/ns/shop/sa/web", Address: "10.0.0.7", Port: 8080, Method: "GET", Host: "catalog", Path: "/admin?" + strings.Repeat("x", 100)},
			},
			{By: "no-rule", Count: 1, Example: report.Recorded{Port: 8080, Method: "PUT", Path: "/\x1b[2J"}},
			{Allowed: true, By: "no-rule", Count: 2, Example: report.Recorded{Port: 8080, Method: "GET", Host: "catalog", Path: "/"}},
		},
	}
}

// TestReplay replays a log that requires several batches.
func TestReplay(t *testing.T) {
	t.Parallel()
	batches, records := 0, 0
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil || r.URL.Path != "/debug/replay" || r.PostForm.Get("to") != "catalog.shop" || r.PostForm.Get("policies") != "a policy" {
			http.Error(w, r.PostForm.Get("to"), http.StatusBadRequest)
			return
		}
		n := strings.Count(r.PostForm.Get("records"), "\n")
		batches, records = batches+1, records+n
		rule := &report.Rule{Ref: report.Ref{Name: "private"}, Source: "proposed.yaml:1"}
		answer := report.Replay{Proxy: "catalog-1.shop", Decided: n}
		if n > 0 {
			answer.Connections, answer.Unclaimed = 1, 2
			answer.Flips = []report.Flip{{By: "rule", Rule: rule, Count: n, Example: report.Recorded{Method: "GET"}}, {By: "no-rule", Count: 2 * n}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer control.Close()
	dir := t.TempDir()
	policies, log, empty := filepath.Join(dir, "policies.yaml"), filepath.Join(dir, "access.log"), filepath.Join(dir, "empty.log")
	for name, text := range map[string]string{policies: "a policy", log: strings.Repeat(strings.Repeat("x", 999)+"\n", 5000), empty: ""} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := []string{"policy", "replay", "--control", strings.TrimPrefix(control.URL, "http://"), "--to", "catalog", "-n", "shop", "-f", policies}
	out, errs, code := run(t, append(at, log, log)...)
	if want := "Now denied: 20000 connections\n  denied   as no rule"; batches != 5 || records != 10000 || code != 1 || !strings.Contains(out, want) || !strings.Contains(out, "9995 requests and 5 connections to catalog-1.shop, 30000 decisions change") || !strings.Contains(out, "10 records do not contain the claims") {
		t.Errorf("%d batches with %d records, exit code %d:\n%s%s", batches, records, code, out, errs)
	}
	if out, errs, code := run(t, append(at, empty)...); code != 0 || !strings.Contains(out, "0 requests") {
		t.Errorf("an empty log: got exit code %d:\n%s%s", code, out, errs)
	}
	for want, args := range map[string][]string{
		"write --to WORKLOAD": {"policy", "replay", "--to", "catalog", log},
		"no such file":        append(at, filepath.Join(dir, "absent.log")),
		"absent.":             {"policy", "replay", "--control", at[3], "--to", "absent.", "-f", policies, log},
	} {
		if out, errs, code := run(t, args...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%q: got exit code %d, want an error with %q:\n%s%s", args, code, want, out, errs)
		}
	}
}
