// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// securedRequest returns a request with the certificates of both sides.
func securedRequest() report.Decision {
	d := requests()[2]
	d.Candidates = nil
	d.TLS = &report.Security{
		Mutual: true, Reason: "a DestinationRule sets TLS", Objects: []report.Origin{{Ref: report.Ref{Kind: "DestinationRule", Namespace: "shop", Name: "catalog"}, Source: "config/catalog.yaml:3"}},
		Mode: "STRICT", Modes: []report.Origin{{Ref: report.Ref{Kind: "PeerAuthentication", Namespace: "shop", Name: "strict"}, Source: "config/strict.yaml:1"}},
		Client: &report.Certificate{Identity: "spiffe://cluster.local/ns/shop/sa/frontend", Issuer: "O=cluster.local", NotAfter: now.Add(11 * time.Hour)},
		Server: &report.Certificate{Identity: "spiffe://cluster.local/ns/shop/sa/catalog", Error: "proxy catalog-1.shop at 10.0.0.7 is on another machine: no"},
	}
	return d
}

// worked returns what was different when a request was allowed last.
func worked() lastWorked {
	ref := report.Ref{Kind: "AuthorizationPolicy", Namespace: "shop", Name: "readers"}
	return lastWorked{
		Until: ago(7 * time.Minute), Tried: 3, Lines: []string{"-  action: ALLOW", "+  action: DENY"},
		Changes: []report.Version{{Ref: ref, At: ago(7 * time.Minute), Change: report.Updated, Revision: "1042d1a0", Source: "config/shop/readers.yaml:7"}},
	}
}

// printWorked prints what was different, and why that is not known.
func (v view) printWorked() error {
	v.lastWorked(worked())
	v.lastWorked(lastWorked{Reason: "no state of the history allows it", Tried: 3})
	return nil
}

// TestDecisionFirst checks that a decision is printed before earlier states are tried, which may take a while.
func TestDecisionFirst(t *testing.T) {
	t.Parallel()
	shown := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "history") {
			<-shown
			http.Error(w, "no history", http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(report.Decision{Proxy: "catalog-1.shop"}) // the test sees what is missing
	}))
	t.Cleanup(s.Close)
	var out printed
	root := &cobra.Command{Use: "outrigger", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands(Config{Exit: func(code int, _ error) error { return exit{code, errors.New("")} }})...)
	root.SetOut(&out)
	root.SetArgs([]string{"explain", "request", "--from", "frontend", "--to", "catalog", "--control", s.URL})
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(t.Context()) }()
	at := out.wait(t, 0, "Denied")
	close(shown)
	out.wait(t, at, "When it was allowed last is not known: no history")
	if err := <-done; err == nil {
		t.Error("a request that is denied: got no error")
	}
}

// TestLastWorked checks that the newest state that allows a request is found, although older ones do not,
// and how many states are tried.
func TestLastWorked(t *testing.T) {
	t.Parallel()
	begin := time.Now().Add(-24 * time.Hour).Truncate(time.Second)
	at := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Minute) }
	// The versions 0 to 40: the request is allowed between some of them.
	allowed := func(when time.Time, spans [][2]int) bool {
		for _, s := range spans {
			if !when.Before(at(s[0])) && when.Before(at(s[1])) {
				return true
			}
		}
		return false
	}
	for name, tc := range map[string]struct {
		spans   [][2]int
		from    string // --at
		missing int    // the workload does not exist before this version
		want    string
		tried   int
		decides int // the version of an object that decides about the request
		failing float64
		mesh    bool // all versions are of the mesh config
	}{
		"the last change":              {[][2]int{{5, 40}}, "", 0, "v40.shop", 1, 0, 0, false},
		"the mesh config":              {[][2]int{{5, 40}}, "", 0, "  updated  mesh\n    -", 1, 0, 0, true},
		"the mesh config, again":       {[][2]int{{5, 38}}, "", 0, "; then, and later, this changed:\n  updated  mesh\n  updated  mesh, at ", 3, 0, 0, true},
		"allowed, denied, allowed":     {[][2]int{{3, 8}, {20, 25}, {30, 38}}, "", 0, "v38.shop", 3, 0, 0, false},
		"at an earlier time":           {[][2]int{{3, 8}, {30, 38}}, at(29).Format(time.RFC3339), 0, "v8.shop", 22, 0, 0, false},
		"too long ago":                 {[][2]int{{3, 8}}, "", 0, "none of the 30 states before allows it; there are older ones", 30, 0, 0, false},
		"never":                        {nil, at(20).Format(time.RFC3339), 0, "no state of the history allows it", 20, 0, 0, false},
		"before the workload was gone": {[][2]int{{18, 19}}, at(30).Format(time.RFC3339), 18, "v19.shop", 12, 0, 0, false},
		"changed again":                {[][2]int{{5, 38}}, "", 0, "; then, and later, this changed:\n  updated  ap/v39.shop, at ", 3, 39, 0, false},
		"some fail":                    {[][2]int{{5, 40}}, "", 0, "Allowed, but 12.5 % of such requests fail at the proxy of the client\n", 1, 0, 12.5, false},
		"the workload did not exist":   {nil, at(20).Format(time.RFC3339), 18, "no state of the history allows it", 20, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_ = r.ParseForm() // the test sees what is missing
				var doc any
				switch {
				case strings.HasSuffix(r.URL.Path, "history") && r.Form.Get("kind") == "Service":
					http.Error(w, "no clusters", http.StatusBadRequest)
					return
				case strings.HasSuffix(r.URL.Path, "history"):
					h := report.History{Begins: begin}
					for n := range 41 {
						v := report.Version{Ref: report.Ref{Kind: "AuthorizationPolicy", Namespace: "shop", Name: fmt.Sprintf("v%d", n)}, At: at(n), Change: report.Updated, Revision: fmt.Sprint(n)}
						if tc.mesh {
							v.Ref = report.Ref{Kind: "MeshConfig", Name: report.MeshName}
						}
						if v.Object = fmt.Appendf(nil, `{"spec":{"action":"DENY%d"}}`, n); n == 0 {
							v.Change = report.Found
						}
						if name := r.Form.Get("name"); (name == "" || name == v.Name) && strings.HasPrefix(v.Revision, r.Form.Get("revision")) {
							h.Versions = append(h.Versions, v)
						}
					}
					doc = h
				default:
					when := time.Now()
					if text := r.Form.Get("at"); text != "" {
						when, _ = time.Parse(time.RFC3339Nano, text) // see above
					}
					if when.Before(at(tc.missing)) {
						http.Error(w, "it is unknown", http.StatusNotFound)
						return
					}
					d := report.Decision{Proxy: "catalog-1.shop", Host: "catalog.shop.svc.cluster.local", Allowed: allowed(when, tc.spans)}
					if d.Client = (&report.Hop{}); !d.Allowed {
						d.Allowed, d.Client.Failing = tc.failing > 0, tc.failing
					}
					if tc.decides > 0 {
						d.Objects = []report.Origin{{Ref: report.Ref{Kind: "AuthorizationPolicy", Namespace: "shop", Name: fmt.Sprintf("v%d", tc.decides)}}}
					}
					doc = d
				}
				_ = json.NewEncoder(w).Encode(doc) // see above
			}))
			t.Cleanup(s.Close)
			args := []string{"explain", "request", "--from", "frontend", "--to", "catalog", "--control", s.URL}
			if tc.from != "" {
				args = append(args, "--at", tc.from)
			}
			out, errs, code := run(t, args...)
			if code != 1 || errs != "" || !strings.Contains(out, tc.want) {
				t.Errorf("got exit code %d %s, want %q:\n%s", code, errs, tc.want, out)
			}
			out, errs, _ = run(t, append(args, "-o", "json")...)
			var got explainedRequest
			if err := json.Unmarshal([]byte(out), &got); err != nil || got.LastAllowed == nil || got.LastAllowed.Tried != tc.tried {
				t.Fatalf("%v %s, want %d states to be tried:\n%s", err, errs, tc.tried, out)
			}
			if found := len(got.LastAllowed.Changes) == 1; found && len(got.LastAllowed.Lines) != 2 {
				t.Errorf("the lines that differ: got %q", got.LastAllowed.Lines)
			}
		})
	}
}
