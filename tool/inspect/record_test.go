// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

func TestRecord(t *testing.T) {
	t.Parallel()
	agentOf := func(dropped string) string {
		agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/debug/requests" || r.URL.Query().Get("for") != "5s" {
				http.Error(w, "requests are already being recorded", http.StatusConflict)
				return
			}
			w.Header().Set("Trailer", trailerDropped)
			_, _ = io.WriteString(w, "{\"method\":\"GET\",\"path\":\"/\u009b2J\"}\n{\"method\":\"PUT\"}\n")
			if dropped != "" {
				w.Header().Set(trailerDropped, dropped)
			}
		}))
		t.Cleanup(agent.Close)
		return strings.TrimPrefix(agent.URL, "http://")
	}
	good, dir := agentOf("0"), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	out, errs, code := run(t, "policy", "record", "--agent", good, "--agent", good, "--for", "5s", "--file", at("requests.log"))
	text, err := os.ReadFile(at("requests.log"))
	if code != 0 || out != "" || err != nil || strings.Count(string(text), "PUT") != 2 || !strings.HasSuffix(errs, "4 requests\n") {
		t.Errorf("got exit code %d, error %v:\n%s%s\n%s", code, err, out, errs, text)
	}
	if out, _, code := run(t, "policy", "record", "--agent", good, "--for", "5s"); code != 0 || strings.Count(out, "\n") != 2 || !strings.Contains(out, `"/\u009b2J"`) {
		t.Errorf("to standard output: got exit code %d:\n%s", code, out)
	}
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(report.Replica{Proxies: []report.Proxy{{Name: "catalog-1.shop", Addresses: []string{"127.77.0.1"}}, {Name: "catalog-2.shop", Addresses: []string{"127.77.0.2"}}}})
	}))
	defer control.Close()
	for want, args := range map[string][]string{
		"write --to PROXY":                      {"--for", "5s"},
		"at most 10m0s":                         {"--agent", good, "--for", "11m"},
		"file exists":                           {"--agent", good, "--for", "5s", "--file", at("requests.log")},
		"it returned 409":                       {"--agent", good, "--for", "6s"},
		"3 more requests are missing":           {"--agent", agentOf("3"), "--for", "5s"},
		"it ended the recording early":          {"--agent", agentOf(""), "--for", "5s"},
		`no proxy "orders" is connected`:        {"--control", control.URL, "--to", "orders", "--for", "5s"},
		"agent 127.77.0.":                       {"--control", control.URL, "--to", "catalog", "--for", "5s"},
		"write --to PROXY, as in --to catalog,": {"--agent", good, "--to", "catalog", "--for", "5s"},
	} {
		if out, errs, code := run(t, append([]string{"policy", "record"}, args...)...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%q: got exit code %d, want an error with %q:\n%s%s", args, code, want, out, errs)
		}
	}
}
