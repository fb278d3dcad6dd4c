// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// change returns the effect of a change on three proxies, two of which are alike.
func change() report.WhatIf {
	listeners := report.TypeDiff{Type: "lds", Bytes: 48123, Changed: 2, Names: []string{"~virtualInbound", "~10.0.0.7_80"}}
	return report.WhatIf{
		Objects: []report.Proposed{
			{Ref: report.Ref{Kind: "DestinationRule", Namespace: "shop", Name: "web"}, Action: "created"},
			{Ref: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "web"}, Action: "updated"},
		},
		Skipped: 2,
		Statuses: []report.Status{
			{Ref: report.Ref{Kind: "HTTPRoute", Namespace: "shop", Name: "web"}, Conditions: []report.Condition{
				{At: "Gateway infra/edge", Type: "Accepted", Status: "True", Reason: "Accepted"},
				{At: "Gateway infra/edge", Type: "ResolvedRefs", Status: "False", Reason: "RefNotPermitted", Message: "no ReferenceGrant of namespace stock allows an HTTPRoute of namespace shop the Service items", Bad: true},
				{At: "Service web", Type: "Accepted", Status: "True", Reason: "Accepted"},
				{At: "Service web", Type: "ResolvedRefs", Status: "True", Reason: "ResolvedRefs"},
			}},
			{Ref: report.Ref{Kind: "TCPRoute", Namespace: "shop", Name: "db"}, Conditions: []report.Condition{}},
		},
		StatusesAll: 3, Unread: []string{"shop/roots"},
		Problems: []report.Problem{{Object: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "web"}, Reason: "spec.http[0]: no service has the host \"wob\""}},
		Solved:   []report.Problem{{Object: report.Ref{Kind: "DestinationRule", Namespace: "shop", Name: "old"}, Reason: "no service has the host"}},
		All:      12,
		Proxies: []report.Affected{
			{Proxy: "cart-1.shop", Digest: "a", Types: []report.TypeDiff{{Type: "cds", Bytes: 1200, Added: 1}, {Type: "eds", Bytes: 300, Added: 1, Repeated: 2}, listeners}, Drained: []string{"virtualInbound"}, ChainsDrained: []string{"10.0.0.7_80"}},
			{Proxy: "cart-2.shop", Digest: "a", Types: []report.TypeDiff{{Type: "rds", Bytes: 1, Removed: 1}}},
			{Proxy: "reservations-and-payments-v1-7c6bdf8d9b-x4kq.international-bookings", Digest: "b", Types: []report.TypeDiff{{Type: "rds", Bytes: 1, Removed: 1}}},
		},
		Flips: []report.Flipped{
			{Clients: []string{"none", "spiffe://cluster.local/ns/shop/sa/orders"}, Host: "cart.shop.svc.cluster.local", Port: 8080, Method: "GET", Path: "/", Before: "allowed", After: "denied", Fails: true, By: "rule", Rule: &report.Rule{Ref: report.Ref{Kind: "AuthorizationPolicy", Namespace: "shop", Name: "deny"}, Source: "deny.yaml:1"}, Proxies: 2, Proxy: "cart-1.shop"},
			{Clients: []string{"none"}, Host: "cart.shop.svc.cluster.local", Port: 9090, Before: "allowed", After: "denied", Fails: true, By: "connection", Reason: "the port requires mutual TLS, and the client has no certificate", Proxies: 1, Proxy: "cart-1.shop"},
			{Routed: "80", Host: "web.shop.svc.cluster.local", Method: "GET", Path: "/", Before: "outbound|80||web.shop.svc.cluster.local", After: "outbound|80|v3|web.shop.svc.cluster.local (no workload belongs to it)", Fails: true, Proxies: 3, Proxy: "cart-1.shop"},
			{Routed: "240.0.9.1_3306", Host: "db.shop.svc.cluster.local", Port: 3306, SNI: "db.example.com", Before: "outbound|3306||db.shop.svc.cluster.local", After: "no filter chain of the listener accepts the connection", Fails: true, Proxies: 1, Proxy: "cart-1.shop"},
			{Clients: []string{"none"}, Host: "cart.shop.svc.cluster.local", Port: 8080, Method: "POST", Path: "/items", Headers: map[string]string{"x-team": "red"}, Claims: map[string]any{"iss": "https://issuer.example", "groups": []any{"admin"}}, Address: "10.1.0.1", Others: 3, Before: "denied", After: "allowed", By: "no-rule", Proxies: 1, Proxy: "cart-1.shop"},
			{Clients: []string{"none"}, Host: "cart.shop.svc.cluster.local", Port: 8080, Method: "GET", Path: "/admin", Before: "allowed", After: "allowed if guard allows it", Proxies: 1, Proxy: "cart-1.shop"},
			{Routed: "80", Host: "web.shop.svc.cluster.local", Method: "GET", Path: "/v2", Before: "outbound|80||web.shop.svc.cluster.local", After: "outbound|80|v2|web.shop.svc.cluster.local", Proxies: 1, Proxy: "cart-1.shop"},
		},
		Requests:    40,
		Untried:     []string{"7 identities were not tried"},
		Verdicts:    []report.Verdict{{Proxy: "cart-1.shop", Alike: 2}, {Proxy: "reservations", Alike: 2, Error: "Proto constraint validation failed"}, {Proxy: "a", Alike: 1, Error: "cannot bind 10.0.0.7:80"}, {Proxy: "b", Alike: 5, Error: "cannot bind 10.0.0.8:80"}, {Proxy: "c", Alike: 1, Error: "cannot bind 10.0.0.9:80"}, {Proxy: "d", Alike: 2, Error: "cannot bind 10.0.0.10:80"}},
		Unvalidated: 3,
	}
}

// TestWhatIf queries two replicas, with an Envoy that rejects one of the configurations.
func TestWhatIf(t *testing.T) {
	t.Parallel()
	replica := func(proxy string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ParseForm() != nil || r.URL.Path != "/debug/whatif" || r.PostForm.Get("objects") != "an object" || r.PostForm.Get("source") != "standard input" {
				http.Error(w, "the form is wrong", http.StatusBadRequest)
				return
			}
			answer := change()
			answer.Verdicts, answer.Unvalidated, answer.All = nil, 0, 1
			answer.Proxies = []report.Affected{{Proxy: proxy, Digest: proxy, Types: []report.TypeDiff{{Type: "cds", Added: 1}}}}
			if r.PostForm.Get("proxyID") == proxy {
				answer.Static = json.RawMessage(`{"node":"` + proxy + `"}`)
			}
			_ = json.NewEncoder(w).Encode(answer) // a client that disconnected needs no response
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	envoy := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(envoy, []byte("#!/bin/sh\n[ \"$1 $2\" = '--mode validate' ] && ! grep bad envoy.json\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	input := filepath.Join(t.TempDir(), "object.yaml")
	if err := os.WriteFile(input, []byte("an object"), 0o600); err != nil {
		t.Fatal(err)
	}
	if files, err := filesIn([]string{filepath.Dir(input), "-", "absent"}); err != nil || !slices.Equal(files, []string{input, "-", "absent"}) {
		t.Errorf("filesIn() = %q, %v", files, err)
	}
	at := []string{"what-if", "--control", replica("good"), "--control", replica("bad")}
	for want, args := range map[string][]string{
		"ENVOY REFUSES the configuration of 1 proxy such as bad": append(at, "-f", "-", "--envoy", envoy),
		"2 proxies of 2 would receive other":                     append(at, "-f", "-"),
		"80 requests tried, 7 results would change":              append(at, "-f", "-", "--timeout", "1m"),
		"4 proxies such as cart-1.shop":                          append(at, "-f", "-", "--timeout", "2m"),
		"the form is wrong":                                      append(at, "-f", input), // another source
		"name its program with --envoy":                          append(at, "-f", "-", "--envoy", input+".absent"),
		"write -f FILE":                                          at,
		"no such file":                                           append(at, "-f", input+".absent"),
	} {
		out, errs, code := runWith(t, "an object", args...)
		if code == 0 || !strings.Contains(out+errs, want) || strings.Count(out, "would appear") > 1 {
			t.Errorf("%q: got exit code %d, want an error with %q:\n%s%s", args, code, want, out, errs)
		}
	}
}

// TestWhatIfNarrow checks that a narrow terminal shows all numbers.
func TestWhatIfNarrow(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	v := view{out: &columns.Writer{Out: &out, Width: 48}, now: now, flags: &askFlags{cfg: Config{Width: 48}}}
	if err := v.whatIf(change()); err != nil {
		t.Fatal(err)
	}
	golden(t, "what-if-narrow", out.String())
}

// TestWhatIfExit checks what decides the exit code.
func TestWhatIfExit(t *testing.T) {
	t.Parallel()
	flips := change().Flips
	denied, broken, allowed := flips[:2], flips[2:4], flips[4:]
	for name, c := range map[string]struct {
		answer report.WhatIf
		args   []string
		code   int
		want   string
	}{
		"denied":                 {report.WhatIf{Flips: denied}, nil, 1, "The exit code is 1 (--fail-on): denied\n"},
		"broken":                 {report.WhatIf{Flips: broken}, nil, 1, "The exit code is 1 (--fail-on): broken\n"},
		"both":                   {report.WhatIf{Flips: flips}, nil, 1, "The exit code is 1 (--fail-on): denied, broken\n"},
		"a problem":              {report.WhatIf{Problems: change().Problems}, nil, 1, "The exit code is 1 (--fail-on): broken\n"},
		"allowed":                {report.WhatIf{Flips: allowed}, nil, 0, ""},
		"an intended denial":     {report.WhatIf{Flips: denied}, []string{"--fail-on", "broken"}, 0, "Now denied"},
		"broken by the way":      {report.WhatIf{Flips: flips}, []string{"--fail-on", "broken"}, 1, "(--fail-on): broken\n"},
		"none":                   {report.WhatIf{Flips: flips, Problems: change().Problems}, []string{"--fail-on", "none"}, 0, "Now denied"},
		"changes":                {report.WhatIf{Flips: allowed}, []string{"--fail-on=changes,denied"}, 1, "(--fail-on): changes\n"},
		"JSON":                   {report.WhatIf{Flips: denied}, []string{"-o", "json"}, 1, `"fails": true`},
		"an unknown value":       {report.WhatIf{}, []string{"--fail-on", "warnings"}, 2, "--fail-on warnings is unknown: write one or several of changes, denied, broken, none"},
		"none and another value": {report.WhatIf{}, []string{"--fail-on", "none,denied"}, 2, "write it alone"},
		"no control plane":       {report.WhatIf{}, []string{"--control", "127.0.0.1:1"}, 2, "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.answer.All, c.answer.Proxies = 1, change().Proxies[:1]
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(c.answer) })) // as above
			t.Cleanup(s.Close)
			args := append([]string{"what-if", "-f", "-", "--control", strings.TrimPrefix(s.URL, "http://")}, c.args...)
			out, errs, code := runWith(t, "an object", args...)
			if code != c.code || !strings.Contains(out+errs, c.want) || code == 0 && strings.Contains(out, "--fail-on") {
				t.Errorf("got exit code %d, want %d and %q:\n%s%s", code, c.code, c.want, out, errs)
			}
		})
	}
}
