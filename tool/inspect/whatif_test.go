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
