// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestObserve observes a control plane and an agent.
func TestObserve(t *testing.T) {
	t.Parallel()
	const host = "127.77.51.120"
	replica := report.Replica{Snapshot: 1, Proxies: []report.Proxy{{Name: "web.shop", Namespace: "shop", Addresses: []string{host}}}}
	var result analyze.Result
	expires, clock, well, badly, analyzed, broken := now.Add(time.Hour), now, 5, 0, 0, false
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case broken:
			http.Error(w, "broken", http.StatusServiceUnavailable)
		case r.URL.Path == "/debug/analyze":
			analyzed++
			_ = json.NewEncoder(w).Encode(result) // the test sees what is missing
		default:
			_ = json.NewEncoder(w).Encode(replica) // see above
		}
	}))
	t.Cleanup(control.Close)
	mux := http.NewServeMux()
	mux.HandleFunc("/stats/prometheus", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, requestsOf("destination", "web", "catalog-v1", well, badly)+requestsOf("destination", "web", "catalog-v2", well, 0)) // see above
	})
	mux.HandleFunc("/debug/outage", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(outage{Now: clock, Parts: []lasting{{What: identity, Until: expires, Then: "x"}}, Credentials: []lasting{{What: "certificate shop-tls", Until: expires, Then: "peers refuse it", By: "its owner"}}}) // see above
	})
	listener, err := net.Listen("tcp", host+":"+agentPort)
	if err != nil {
		t.Fatal(err)
	}
	agent := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}}
	agent.Start()
	t.Cleanup(agent.Close)

	o := Observer(Config{Exit: func(_ int, err error) error { return err }}, mesh.Watched{
		Control: strings.TrimPrefix(control.URL, "http://"),
		Service: func(workload, _ string) string { return strings.TrimSuffix(strings.TrimSuffix(workload, "-v1"), "-v2") },
	})
	check := func(name string, want mesh.Observation) {
		t.Helper()
		got := o.Observe(t.Context())
		for i := range got.Services {
			got.Services[i].Rate, got.Services[i].P99 = 0, math.Round(100*got.Services[i].P99)/100 // the time decides the rate
		}
		slices.SortFunc(got.Services, func(a, b mesh.Service) int { return strings.Compare(a.Name, b.Name) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	check("at first", mesh.Observation{})
	well, badly = 15, 2
	check("requests", mesh.Observation{Services: []mesh.Service{{Name: "catalog", Requests: 22, Failed: 2, P99: 23.35}}})
	finding := analyze.Finding{Code: "IST0101", Severity: analyze.Error, Object: analyze.Object{Kind: "VirtualService", Namespace: "shop", Name: "a"}, Source: "a.yaml:1", Message: "It is\nwrong.", Cure: "Correct it."}
	repeated, hint := finding, finding
	repeated.Code, hint.Severity = "IST0171", analyze.Info
	result.Findings = []analyze.Finding{hint, repeated, finding}
	check("findings of a snapshot that was analyzed", mesh.Observation{})
	replica.Snapshot++
	trouble := mesh.Trouble{Kind: "VirtualService", Namespace: "shop", Name: "a", Source: "a.yaml:1", Text: "It is wrong.", Cure: "Correct it. (IST0101)"}
	check("a finding", mesh.Observation{Troubles: []mesh.Trouble{trouble}})
	broken = true
	check("no answer", mesh.Observation{Troubles: []mesh.Trouble{trouble, {Text: "the control plane does not answer: it returned 503: broken"}}})
	broken, result.Findings = false, nil
	replica.Snapshot++
	replica.Proxies[0].Types = []report.Type{{Name: "cds", State: report.Synced}, {Name: "lds", State: report.Rejected, Reason: "no\x1b[1m"}}
	replica.Proxies[0].Held = []report.Held{
		{Type: "rds", Name: "80", By: "other", Reason: "bad"},
		{Type: "lds", Name: "l", By: replica.Proxies[0].Name, Reason: "no", Objects: []report.Cause{{Ref: report.Ref{Kind: "EnvoyFilter", Namespace: "shop", Name: "lua"}, Source: "lua.yaml:1"}}},
	}
	check("a rejection", mesh.Observation{Troubles: []mesh.Trouble{{Workload: "web", Kind: "EnvoyFilter", Namespace: "shop", Name: "lua", Source: "lua.yaml:1", Text: "Envoy refuses LDS: no [1m"}, {Warning: true, Workload: "web", Text: "RDS 80 is held back, because other refused it: bad"}}})
	replica.Proxies[0].Types, replica.Proxies[0].Held = nil, nil
	clock = now.Add(55 * time.Minute)
	until := expires.Local().Format(time.TimeOnly)
	check("it is not renewed", mesh.Observation{Troubles: []mesh.Trouble{{Warning: true, Workload: "web", Text: "the certificate of the workload has not been renewed and expires at " + until}}})
	clock = expires
	check("it has expired", mesh.Observation{Troubles: []mesh.Trouble{{Workload: "web", Text: "certificate shop-tls: expired at " + until + ": peers refuse it", Cure: "Renewed by its owner."}, {Workload: "web", Text: "the certificate of the workload expired at " + until}}})
	expires = expires.Add(time.Hour)
	check("renewed", mesh.Observation{})
	if analyzed != 3 {
		t.Errorf("it was analyzed %d times, want once for each snapshot", analyzed)
	}
	agent.Close()
	if got := fmt.Sprint(o.Observe(t.Context()).Troubles); !strings.Contains(got, "web") || !strings.Contains(got, "the agent does not answer: ") {
		t.Errorf("without an agent: %s", got)
	}
}
