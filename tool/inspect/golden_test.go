// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

var now = time.Date(2026, 5, 1, 3, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

// types returns the states of a proxy: all types are synced, except for the given ones.
func types(other ...report.Type) (list []report.Type) {
	for _, name := range []string{"cds", "eds", "lds", "rds", "vhds", "sds", "nds", "pcds"} {
		t := report.Type{Name: name, State: report.Synced, Since: ago(12 * time.Minute), Resources: 3, Acked: "1", Reason: report.Acknowledged}
		if name == "vhds" || name == "sds" || name == "pcds" {
			t = report.Type{Name: name, State: report.NotSent, Since: ago(26 * time.Hour), Reason: report.Unrequested}
		}
		for _, o := range other {
			if o.Name == name {
				t = o
			}
		}
		list = append(list, t)
	}
	return list
}

const envoysWords = "Error adding/updating listener(s) 10.0.0.7_8080: error adding listener:\n\tcannot bind"

func testMesh() []answer[report.Replica] {
	held := report.Held{Type: "rds", Name: "http_proxy", By: "cart-1.shop", Reason: "Error adding/updating route(s) http_proxy: regex '(' is bad", Since: ago(90 * time.Second), LastGood: true, Objects: []report.Cause{
		{Ref: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "catalog"}, Source: "config/shop/catalog.yaml:3"},
	}}
	proxy := func(name, replica string, list ...report.Type) report.Proxy {
		return report.Proxy{
			Name: name + ".shop", Namespace: "shop", Cluster: "east", Role: "sidecar", Addresses: []string{"10.0.0.7", "fd00::7"}, Identity: "spiffe://cluster.local/ns/shop/sa/" + name,
			Envoy: "1.39.3", Agent: "1.18.0", Connected: ago(26 * time.Hour), Delta: true, Replica: replica, Snapshot: 7, Types: types(list...),
		}
	}
	cart := proxy("cart-1", "istiod-0", report.Type{Name: "rds", State: report.Rejected, Since: ago(90 * time.Second), Resources: 1, Reason: held.Reason})
	web := proxy("web-1", "istiod-1", report.Type{Name: "rds", State: report.HeldBack, Since: ago(90 * time.Second), Resources: 1, Reason: held.Reason})
	cart.Held, web.Held = []report.Held{held}, []report.Held{held}
	own := proxy("api-1", "istiod-1", report.Type{Name: "lds", State: report.Rejected, Since: ago(3 * time.Minute), Reason: envoysWords, Acked: "1", LastGood: true}, report.Type{Name: "vhds", State: report.Stale, Since: ago(40 * time.Second), Resources: 9, Reason: report.Unanswered})
	own.Agent, own.Cluster = "", ""
	return []answer[report.Replica]{
		{address: "10.0.0.1:15014", value: report.Replica{Name: "istiod-0", Version: "v1", Snapshot: 7, Pushed: ago(12 * time.Minute), Problems: 1, Proxies: []report.Proxy{cart}}},
		{address: "10.0.0.2:15014", value: report.Replica{Name: "istiod-1", Version: "v1", Snapshot: 9, Pushed: ago(12 * time.Minute), Proxies: []report.Proxy{web, own}}},
		{address: "10.0.0.3:15014", err: errors.New("connection refused")},
	}
}

func virtualService() report.Object {
	o := report.Object{
		Ref: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "web"}, Replica: "istiod-0, istiod-1", Found: true, InForce: true, Source: "config/web.yaml:3", Changed: ago(5 * time.Minute),
		Problems:  []report.Problem{{Object: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "web"}, Source: "config/web.yaml:9", Reason: `spec.http[0]: no service has the host "wob"`, Warning: true, Since: ago(3 * time.Hour)}},
		Resources: []report.Resource{{Type: "rds", Name: "http_proxy", Proxies: 31, HeldBack: 2}, {Type: "vhds", Name: "http_proxy.vhds/web.shop.svc.cluster.local:80", Proxies: 1}},
		Others:    4,
	}
	for i := range 27 {
		o.Proxies = append(o.Proxies, report.Standing{Proxy: fmt.Sprintf("p%02d.shop", i), State: report.Synced, Since: ago(5 * time.Minute)})
	}
	for i := range 22 {
		o.Proxies = append(o.Proxies, report.Standing{Proxy: fmt.Sprintf("slow%02d.shop", i), State: report.Stale, What: "no answer yet to rds", Since: ago(50 * time.Second)})
	}
	back := report.Standing{Proxy: "cart-1.shop", State: report.Rejected, What: "rds http_proxy", Since: ago(90 * time.Second), By: "cart-1.shop", Reason: "regex '(' is bad", LastGood: true}
	other := back
	other.Proxy, other.State = "web-1.shop", report.HeldBack
	o.Proxies = append([]report.Standing{back, other}, o.Proxies...)
	return o
}

// deniedMesh returns control planes with deny lists and faults, and findings of analyze.
func deniedMesh() ([]answer[report.Replica], problems) {
	answers := []answer[report.Replica]{
		{address: "127.0.0.1:15014", value: report.Replica{Pushed: ago(time.Minute), DenyList: &report.DenyList{
			Version: "3f2a9c", Entries: 3, Serials: 1, Since: ago(time.Minute), Acknowledged: 2, Missing: []string{"a.shop", "b.shop"}, Ignoring: []string{"old.shop"},
		}}},
		{address: "127.0.0.1:15114", value: report.Replica{Pushed: ago(time.Minute), DenyList: &report.DenyList{Since: ago(time.Hour), Acknowledged: 1}, Faults: []string{"the history of objects: damaged lines of its files: 3; versions may be missing"}}},
		{address: "127.0.0.1:15214", value: report.Replica{Pushed: ago(time.Minute), DenyList: &report.DenyList{Problem: "line 1: no"}, Faults: []string{"the newest text of the deny list is not in force: line 1: no"}}},
	}
	web := analyze.Object{Kind: "VirtualService", Namespace: "shop", Name: "web"}
	found := problems{found: analyze.Result{Findings: []analyze.Finding{
		{Code: "IST0101", Severity: analyze.Error, Object: web, Source: "config/web.yaml:3", Message: "No service has the host wob.", Cure: "Did you mean web?"},
		{Code: conditionCode, Severity: analyze.Error, Object: web, Message: "Repeated."},
		{Code: "OUT0011", Severity: analyze.Info, Object: web, Message: "A hint."},
		{Code: "IST0130", Severity: analyze.Warning, Object: web, Message: "spec.http[1] is never reached.", Cure: "Write it before the others, or remove it."},
	}}}
	return answers, found
}

// requests returns decisions about requests.
func requests() []report.Decision {
	rule := func(name string, index int) report.Rule {
		return report.Rule{Ref: report.Ref{Kind: "AuthorizationPolicy", Namespace: "shop", Name: name}, Index: index, Source: "config/shop/" + name + ".yaml:7"}
	}
	readers, admin, ask, tried := rule("readers", 1), rule("admin", 0), rule("ask", 0), rule("tried", 2)
	d := report.Decision{
		Replica: "istiod-0", Proxy: "catalog-1.shop", Others: 2, Identity: "spiffe://cluster.local/ns/shop/sa/frontend", Address: "10.0.0.7", Port: 8080,
		HTTP: true, Method: "GET", Host: "catalog.shop.svc.cluster.local", Path: "/items",
	}
	allowed, denied, none := d, d, d
	allowed.Allowed, allowed.By, allowed.Rule = true, "rule", &readers
	allowed.Matched = []report.Attribute{{Name: "principals", Value: d.Identity}, {Name: "request.headers[x-team]", Value: strings.Repeat("red ", 30)}}
	allowed.Asked, allowed.Trials, allowed.Skipped = []report.Asked{{Provider: "oauth", Rule: &ask}}, []report.Trial{{Rule: &tried}, {}}, []string{"shop.count"}
	allowed.Unrecorded = report.Unrecorded{ServicesSince: ago(time.Hour), MeshSince: ago(2 * time.Hour), Present: []string{"Secrets", "labels of namespaces"}, Current: []string{"the keys of token issuers", "the deny list", "the roots of the mesh"}}
	denied.By, denied.Status, denied.Rule, denied.Identity, denied.Address = "rule", 403, &admin, "", ""
	denied.Matched = []report.Attribute{{Name: "principals"}, {Name: "paths", Value: "/items"}}
	none.By, none.Status, none.Others = "no-rule", 403, 0
	none.Candidates = []report.Candidate{
		{Rule: readers, Attribute: report.Attribute{Name: "methods", Value: "PUT"}, Wanted: []string{"GET", "HEAD"}},
		{Rule: rule("many", 0), Attribute: report.Attribute{Name: "principals", Value: d.Identity}, Wanted: []string{"a", "b", "c", "d", "e", "f", "g"}},
		{Rule: rule("tokens", 0), Attribute: report.Attribute{Name: "request.auth.claims[iss]"}},
		{Rule: rule("addresses-of-offices-and-of-all-the-partners-that-call-the-catalog", 0), Attribute: report.Attribute{Name: "remoteIpBlocks"}, Wanted: []string{"10.0.0.0/8"}},
		{Rule: rule("others", 0), Attribute: report.Attribute{Name: "paths", Value: "/items"}, Excluded: true},
		{Rule: rule("nothing", -1), Reason: "it has no rules, so it allows nothing"},
	}
	closed := report.Decision{Proxy: "catalog-1.shop", Port: 8080, By: "connection", Reason: "the port requires mutual TLS, and the client has no certificate"}
	return []report.Decision{allowed, denied, none, closed}
}

// printRoots prints comparisons of roots: the same, some in common, and none.
func printRoots(v view) error {
	of := func(serial string, in ...string) root {
		return root{secret{Name: rootsName, Serial: serial, NotAfter: now.AddDate(9, 0, 0), Fingerprint: strings.Repeat(serial, 16)}, in}
	}
	names := []string{"web.shop", "cart.shop"}
	return errors.Join(
		v.roots(comparedRoots{Equal: true, Roots: []root{of("0abc", names...)}}, names, 1),
		v.roots(comparedRoots{Roots: []root{of("0abc", names...), of("0def", "cart.shop")}}, names, 1),
		v.roots(comparedRoots{Roots: []root{of("0abc", "web.shop"), of("0def", "cart.shop")}}, names, 0),
	)
}

func TestGolden(t *testing.T) {
	t.Parallel()
	decided := report.Decided{
		Proxy: testMesh()[0].value.Proxies[0],
		Objects: []report.Part{
			{Ref: report.Ref{Kind: "Sidecar", Namespace: "shop", Name: "cart"}, Resources: map[string]int{"lds": 1, "cds": 1}, Role: "it sees 3 of 40 services"},
			{Ref: report.Ref{Kind: "KubernetesGateway", Namespace: "shop", Name: "front"}, Resources: map[string]int{"lds": 1}},
			{Ref: report.Ref{Kind: "HTTPRoute", Namespace: "shop", Name: "web"}, Resources: map[string]int{"rds": 1}},
			{Ref: report.Ref{Kind: "WasmPlugin", Namespace: "shop", Name: "count"}, Resources: map[string]int{"ecds": 1, "lds": 2}},
			{Ref: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "web"}, Resources: map[string]int{"rds": 1}},
		},
		Problems: virtualService().Problems,
	}
	old, none, unborn, idle := virtualService(), virtualService(), virtualService(), virtualService()
	old.Started, old.Proxies, old.Problems = true, old.Proxies[2:29], nil
	none = report.Object{Ref: none.Ref, InForce: true}
	unborn = report.Object{Ref: unborn.Ref, InForce: true, Problems: unborn.Problems}
	idle.InForce, idle.Kind = false, "AuthorizationPolicy"
	lost := virtualService()
	lost.Resources, lost.Proxies = nil, nil
	front := report.Object{
		Ref: report.Ref{Kind: "KubernetesGateway", Namespace: "shop", Name: "front"}, Replica: "istiod-0", Found: true, InForce: true, Others: 4,
		Nobody:  "it is for gateways with the labels gateway.networking.k8s.io/gateway-name=front, and no gateway is connected",
		Lacking: []string{"spec.servers[0].tls: proxies of the namespace shop do not receive the credential \"web\": there is no Secret shop/web"},
	}
	for name, print := range map[string]func(view) error{
		"status-wide": func(v view) error { return v.table(testMesh()) },
		"status":      func(v view) error { return v.table(testMesh()) },
		"status-all-well": func(v view) error {
			return v.table([]answer[report.Replica]{{address: "127.0.0.1:15014", value: report.Replica{Pushed: ago(time.Minute), Proxies: []report.Proxy{{Name: "a.shop", Types: types()}}}}})
		},
		"status-first": func(v view) error {
			first := report.Proxy{Name: "a.shop", Types: types(report.Type{Name: "lds", State: report.Rejected, Since: ago(time.Minute), Reason: envoysWords})}
			waits := report.Proxy{Name: "b.shop", Types: types(report.Type{Name: "lds", State: report.NotSent, Since: ago(time.Minute), Reason: report.Incomplete})}
			return v.table([]answer[report.Replica]{{address: "127.0.0.1:15014", value: report.Replica{Pushed: ago(time.Minute), Proxies: []report.Proxy{first, waits}}}})
		},
		"status-denied": func(v view) error {
			answers, found := deniedMesh()
			v.wrong = known{found.list(answers), errors.New("the control plane is busy")}
			return v.table(answers)
		},
		"status-long": func(v view) error {
			long := testMesh()[1]
			for i := range long.value.Proxies {
				p := &long.value.Proxies[i]
				p.Name = "reservations-and-payments-v1-7c6bdf8d9b-x4kq" + fmt.Sprint(i) + ".international-bookings"
			}
			return v.table([]answer[report.Replica]{long})
		},
		"status-gone": func(v view) error {
			lost := report.Proxy{Name: "b.shop", Role: "sidecar", Addresses: []string{"10.0.0.8"}, Types: []report.Type{{Name: "-", State: report.Gone, Since: ago(time.Minute), Reason: report.Lost}}}
			back := report.Proxy{Name: "a.shop", Types: lost.Types}
			answers := withGone([]answer[report.Replica]{
				{address: "127.0.0.1:15014", value: report.Replica{Pushed: ago(time.Minute), Proxies: []report.Proxy{{Name: "a.shop", Types: types()}}, Gone: []report.Proxy{lost}}},
				{address: "127.0.0.1:15114", value: report.Replica{Pushed: ago(time.Minute), Gone: []report.Proxy{back}}},
				{address: "127.0.0.1:15214", err: errors.New("timeout")},
			})
			if err := v.table(answers); err != nil || allWell(answers) {
				return fmt.Errorf("well: %t, %w", allWell(answers), err)
			}
			return v.proxy(lost)
		},
		"status-nobody": func(v view) error { return v.table([]answer[report.Replica]{{address: "127.0.0.1:15014"}}) },
		"status-proxy": func(v view) error {
			v.agents = testOutages()[:1]
			return v.proxies(testMesh()[:1])
		},
		"status-outage":   func(v view) error { return v.outages(testOutages()) },
		"status-own":      func(v view) error { return v.proxy(testMesh()[1].value.Proxies[1]) },
		"what-if":         func(v view) error { return v.whatIf(change()) },
		"history":         func(v view) error { return v.history(past()) },
		"history-service": func(v view) error { return v.history(pastServices()) },
		"history-object":  func(v view) error { return v.versions(past()) },
		"history-mesh":    func(v view) error { return errors.Join(v.history(pastMesh()), v.versions(pastMesh())) },
		"explain":         func(v view) error { return v.object(virtualService()) },
		"explain-well":    func(v view) error { return v.object(old) },
		"explain-pending": func(v view) error { o := old; o.Pending = true; return v.object(o) },
		"explain-none":    func(v view) error { return v.object(none) },
		"explain-invalid": func(v view) error { return v.object(unborn) },
		"explain-inert":   func(v view) error { return v.object(idle) },
		"explain-nobody":  func(v view) error { return v.object(lost) },
		"explain-gateway": func(v view) error { return v.object(front) },
		"explain-proxy":   func(v view) error { return v.decided(decided) },
		"explain-then":    func(v view) error { return v.printThen(decided) },
		"request-allowed": func(v view) error { return v.decision(requests()[0]) },
		"request-route":   func(v view) error { return v.decision(routedRequests()[0]) },
		"request-answer":  func(v view) error { return v.decision(routedRequests()[1]) },
		"request-denied":  func(v view) error { return v.decision(requests()[1]) },
		"request-no-rule": func(v view) error { return v.decision(requests()[2]) },
		"request-closed":  func(v view) error { return v.decision(requests()[3]) },
		"request-tls":     func(v view) error { return v.decision(securedRequest()) },
		"request-worked":  func(v view) error { return v.printWorked() },
		"request-replay":  func(v view) error { return v.replay(replays()) },
	} {
		checkPrinted(t, name, print)
	}
}

// checkPrinted compares what is printed on a terminal with 80 columns with a file of testdata. It checks
// that other terminals have no longer lines, and that without a terminal nothing is missing.
func checkPrinted(t *testing.T, name string, print func(view) error) {
	t.Helper()
	printed := func(width int, form string) string {
		var out bytes.Buffer
		v := view{out: &columns.Writer{Out: &out, Width: width}, now: now, flags: &askFlags{cfg: Config{Width: width}, output: form}}
		if err := print(v); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if strings.HasSuffix(name, "-wide") {
		golden(t, name, printed(tableWidth, outWide))
		return
	}
	golden(t, name, printed(tableWidth, outTable))
	for _, width := range []int{40, 60, tableWidth} {
		fits(t, name, printed(width, outTable), width)
	}
	if text := printed(0, outTable); strings.Contains(text, "…") && !strings.Contains(text, "… and") || strings.Contains(text, "too narrow") {
		t.Errorf("%s: without a terminal something is shortened:\n%s", name, text)
	}
}

// fits checks that the lines of a text fit a terminal. A single word may be longer, so that it can be copied.
func fits(t *testing.T, name, text string, width int) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if n := utf8.RuneCountInString(line); n > width && strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("%s: on a terminal with %d columns a line has %d characters: %s", name, width, n, line)
		}
	}
}

// golden compares an output with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	goldentest.Check(t, filepath.Join("testdata", name+".txt"), got)
}

// TestSuggestedCommands checks that every suggested command is valid.
func TestSuggestedCommands(t *testing.T) {
	t.Parallel()
	kinds := []string{string(model.KubernetesService)}
	for _, s := range schema.All() {
		kinds = append(kinds, string(s.Kind))
	}
	command := regexp.MustCompile(`outrigger get (\S+)`)
	for _, kind := range kinds {
		var out bytes.Buffer
		if err := (view{out: &out, now: now, flags: &askFlags{}}).object(report.Object{Ref: report.Ref{Kind: kind, Namespace: "shop", Name: "web"}}); err != nil {
			t.Fatal(err)
		}
		suggested := command.FindAllStringSubmatch(out.String(), -1)
		if len(suggested) == 0 {
			t.Errorf("%s: no command was suggested: %s", kind, &out)
		}
		for _, s := range suggested {
			if _, ok := schema.Named(s[1]); !ok {
				t.Errorf("%s: unknown kind in outrigger get %s", kind, s[1])
			}
		}
	}
}

// TestStatusCoversEveryType checks that the exit code and the table include all types, not only
// those that every Envoy requests.
func TestStatusCoversEveryType(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"cds", "eds", "lds", "rds", "vhds", "ecds", "sds", "nds", "pcds"} {
		for state, well := range map[report.State]bool{report.Synced: true, report.Stale: false, report.HeldBack: false, report.Rejected: false} {
			list := []report.Type{{Name: "cds", State: report.Synced}, {Name: "lds", State: report.Synced}}
			list = append(slices.DeleteFunc(list, func(t report.Type) bool { return t.Name == name }), report.Type{Name: name, State: state, Since: ago(time.Minute)})
			answers := []answer[report.Replica]{{value: report.Replica{Proxies: []report.Proxy{{Name: "web.shop", Types: list}}}}}
			if got := allWell(answers); got != well {
				t.Errorf("%s %s: allWell() = %v", name, state, got)
			}
			var out bytes.Buffer
			if err := (view{out: &out, now: now, flags: &askFlags{}}).table(answers); err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(`(?m)^web\.shop +` + string(state) + ` .*\b` + strings.ToUpper(name) + `\b`).MatchString(out.String()) {
				t.Errorf("%s %s is missing from the table:\n%s", name, state, &out)
			}
		}
	}
}
