// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// exitTable returns the rows of the table of exit codes in the documents.
func exitTable(t *testing.T) (commands []string) {
	t.Helper()
	raw, err := os.ReadFile("../../docs/reference/stores.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(raw), "## Exit codes of the tool\n")
	for _, row := range regexp.MustCompile("(?m)^\\| `?([a-z -]+?)`? +\\|").FindAllStringSubmatch(text, -1) {
		if row[1] != "command" {
			commands = append(commands, row[1])
		}
	}
	if !found || len(commands) < 5 {
		t.Fatalf("the table has the rows %q", commands)
	}
	return commands
}

// answered answers like a control plane: of a mesh in which all is well, or one of the others.
func answered(w http.ResponseWriter, r *http.Request) {
	state, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	proxy := report.Proxy{Name: "web.shop", Namespace: "shop", Types: []report.Type{{Name: "cds", State: report.Synced, Since: time.Now()}, {Name: "lds", State: report.Synced, Since: time.Now()}}}
	object := report.Object{Ref: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "web"}, Found: true, InForce: true}
	standing := report.Standing{Proxy: proxy.Name, State: report.Synced, Since: time.Now()}
	found := analyze.Result{Findings: []analyze.Finding{}}
	decision := report.Decision{Proxy: proxy.Name, Allowed: state == "well", By: "no-rule"}
	change, replica := report.WhatIf{}, report.Replica{}
	switch state {
	case "rejected":
		standing.State, proxy.Types[0].State = report.Rejected, report.Rejected
	case "held-back":
		standing.State, proxy.Types[0].State = report.HeldBack, report.HeldBack
	case "stale":
		proxy.Types[0].State = report.Stale
	case "invalid":
		object.Problems = []report.Problem{{Object: object.Ref, Reason: "spec.hosts is empty"}}
		found.Findings = append(found.Findings, analyze.Finding{Code: "IST0106", Severity: analyze.Error, Message: "no hosts."})
		change.Problems = object.Problems
	case "warned":
		object.Problems = []report.Problem{{Object: object.Ref, Reason: "no such host", Warning: true}}
		found.Findings = append(found.Findings, analyze.Finding{Code: "IST0133", Severity: analyze.Warning, Message: "no such host."})
	case "lacking":
		object.Lacking = []string{"credentialName shop/edge"}
	case "faulty":
		replica.Faults = []string{"the history of objects: damaged"}
	case "gone":
		object.Found = false
	}
	object.Proxies, replica.Proxies = []report.Standing{standing}, []report.Proxy{proxy}
	doc := map[string]any{"proxies": replica, "explain": object, "analyze": found, "request": decision, "whatif": change}[path.Base(r.URL.Path)]
	if r.URL.Query().Has("proxyID") {
		doc = report.Decided{Proxy: proxy, Problems: object.Problems}
	}
	if doc == nil {
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(doc) // the client may be gone
}

// TestExitTable checks the table of exit codes in the documents: it has each command with exit codes of its
// own, and each of its rows is so.
func TestExitTable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const route = "{route: [{destination: {host: web}}]}"
	object := "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\nspec: {hosts: [web], http: [" + route + "]}\n"
	warned := strings.Replace(object, route, route+", "+route, 1)
	for name, text := range map[string]string{"good.yaml": object, "bad.yaml": strings.Replace(object, "hosts:", "hostz:", 1), "warned.yaml": warned, "store/good.yaml": object, "empty/a.yaml": ""} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	control := httptest.NewServer(http.HandlerFunc(answered))
	t.Cleanup(control.Close)
	examples := map[string]map[int][]string{
		"diff":            {0: {"-f DIR/good.yaml --store fs://DIR/store"}, 1: {"-f DIR/good.yaml --store fs://DIR/empty"}, 2: {"-f DIR/none --store fs://DIR/store", "-f DIR/bad.yaml --store fs://DIR/store"}},
		"validate":        {0: {"-f DIR/good.yaml", "-f DIR/warned.yaml"}, 1: {"-f DIR/bad.yaml", "--strict -f DIR/warned.yaml"}, 2: {"-f DIR/none"}},
		"analyze":         {0: {"--control AT/well", "--control AT/warned"}, 1: {"--control AT/invalid", "--control AT/warned --failure-threshold warning", "--control 127.0.0.1:1"}, 2: {"--failure-threshold no"}},
		"status":          {0: {"--control AT/well", "--control AT/warned", "web --control AT/well"}, 1: {"--control AT/stale", "--control AT/invalid", "--control AT/invalid -o json", "--control AT/faulty", "--control AT/rejected", "--control AT/held-back", "web --control AT/rejected", "--control 127.0.0.1:1"}, 2: {"a b"}},
		"explain":         {0: {"IST0101", "vs/web.shop --control AT/well", "vs/web.shop --control AT/warned", "web.shop --control AT/well"}, 1: {"vs/web.shop --control AT/gone", "vs/web.shop --control AT/invalid", "vs/web.shop --control AT/rejected", "vs/web.shop --control AT/held-back", "vs/web.shop --control AT/lacking", "web.shop --control AT/rejected", "web.shop --control AT/invalid", "vs/web.shop --control 127.0.0.1:1"}, 2: {"nothing/web"}},
		"explain request": {0: {"--from a --to b --control AT/well"}, 1: {"--from a --to b --control AT/rejected", "--from a --to b --control 127.0.0.1:1"}, 2: {"--from a"}},
		"what-if":         {0: {"-f DIR/good.yaml --control AT/well", "-f DIR/good.yaml --fail-on none --control AT/invalid"}, 1: {"-f DIR/good.yaml --control AT/invalid"}, 2: {"-f DIR/none", "-f DIR/good.yaml --control 127.0.0.1:1"}},
		"policy replay":   {2: {"--to web"}},
		"proxy":           {1: {"clusters web --control 127.0.0.1:1"}, 2: {"clusters"}},
	}
	rows := exitTable(t)
	for _, row := range rows {
		if examples[row] == nil && row != "all others" {
			t.Errorf("the row of %s has no examples", row)
		}
	}
	for row, of := range examples {
		if !slices.Contains(rows, row) {
			t.Errorf("the table has no row for %s", row)
		}
		for code, lines := range of {
			for _, line := range lines {
				t.Run(row+" "+line, func(t *testing.T) {
					t.Parallel()
					args := strings.Fields(row + " " + strings.NewReplacer("DIR", dir, "AT", control.URL).Replace(line))
					cmd := exec.Command(os.Args[0], args...)
					cmd.Env = []string{"OUTRIGGER_TEST_ROLE=outrigger", "HOME=" + dir, "PATH=" + dir, "TMPDIR=" + dir}
					text, _ := cmd.CombinedOutput() // the exit code is tested
					if got := cmd.ProcessState.ExitCode(); got != code {
						t.Errorf("got exit code %d, want %d:\n%s", got, code, text)
					}
				})
			}
		}
	}
	for _, command := range commands(t) {
		root := newRootCommand(environment{}, nil, nil)
		root.InitDefaultHelpCmd()
		root.InitDefaultCompletionCmd("completion")
		cmd, _, err := root.Find(command)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.Join(command, " ")
		if strings.Contains(cmd.Long, "The exit code is") && !strings.Contains(cmd.Long, "1 if something failed") && !slices.Contains(rows, name) && !slices.Contains(rows, command[0]) {
			t.Errorf("the help of %s has exit codes of its own: add it to the table", name)
		}
	}
}
