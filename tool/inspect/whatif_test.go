// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// change returns the effect of a change on three proxies, two of which are alike.
func change() report.WhatIf {
	listeners := report.TypeDiff{Type: "lds", Bytes: 48123, Changed: 2, Names: []string{"~virtualInbound", "~10.0.0.7_80"}}
	return report.WhatIf{
		Objects: []report.Proposed{
			{Ref: report.Ref{Kind: "DestinationRule", Namespace: "shop", Name: "web"}, Action: "created"},
			{Ref: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "web"}, Action: "updated"},
		},
		Skipped:  2,
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
			{Clients: []string{"none"}, Host: "cart.shop.svc.cluster.local", Port: 8080, Method: "POST", Path: "/items", Before: "denied", After: "allowed", By: "no-rule", Proxies: 1, Proxy: "cart-1.shop"},
			{Routed: "80", Host: "web.shop.svc.cluster.local", Method: "GET", Path: "/v2", Before: "outbound|80||web.shop.svc.cluster.local", After: "outbound|80|v2|web.shop.svc.cluster.local", Proxies: 1, Proxy: "cart-1.shop"},
		},
		Requests:    40,
		Untried:     []string{"7 identities were not tried"},
		Verdicts:    []report.Verdict{{Proxy: "cart-1.shop", Alike: 2}, {Proxy: "reservations", Alike: 1, Error: "Proto constraint validation failed"}},
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
		"80 requests tried, 5 results would change":              append(at, "-f", "-", "--timeout", "1m"),
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

// TestWhatIfExit checks that requests that would fail decide the exit code, and other changes do not.
func TestWhatIfExit(t *testing.T) {
	t.Parallel()
	for want, flips := range map[int][]report.Flipped{0: change().Flips[3:], 1: change().Flips[2:]} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(report.WhatIf{All: 1, Proxies: change().Proxies[:1], Flips: flips}) // as above
		}))
		t.Cleanup(s.Close)
		if out, errs, code := runWith(t, "an object", "what-if", "--control", strings.TrimPrefix(s.URL, "http://"), "-f", "-"); code != want {
			t.Errorf("got exit code %d, want %d:\n%s%s", code, want, out, errs)
		}
	}
}
