// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
	"github.com/outrigger-mesh/outrigger/tool/objects"
)

// commands returns the paths of the commands that can be run, without the program.
func commands(t *testing.T) (list [][]string) {
	t.Helper()
	root := newRootCommand(environment{}, nil, nil)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion")
	var add func(*cobra.Command)
	add = func(c *cobra.Command) {
		if c.Runnable() && !c.Hidden {
			list = append(list, strings.Fields(c.CommandPath())[1:])
		}
		for _, sub := range c.Commands() {
			add(sub)
		}
	}
	add(root)
	if len(list) < 40 {
		t.Fatalf("there are only %d commands", len(list))
	}
	return list
}

// TestOutputFormats checks that each command has its data as JSON and YAML, or says why not, and that one
// with a table has the wide one, too.
func TestOutputFormats(t *testing.T) {
	t.Parallel()
	for _, path := range commands(t) {
		name := strings.Join(path, " ")
		reason := objects.WithoutOutput("outrigger " + name)
		said := map[string]string{}
		for _, form := range []string{"json", "yaml", "table", "wide", "xml"} {
			root := newRootCommand(environment{}, nil, nil)
			err := objects.Execute(t.Context(), root, slices.Concat(path, []string{"-o", form, "--nothing-like-it"}), io.Discard)
			if coded := (*objects.ExitError)(nil); !errors.As(err, &coded) || coded.Code != 2 {
				t.Errorf("%s -o %s: got %v, want an error about the command line", name, form, err)
				continue
			}
			said[form] = err.Error()
			if reason != "" && !strings.HasSuffix(said[form], name+" has no -o: "+reason) {
				t.Errorf("%s -o %s: got %q, want the reason: %s", name, form, said[form], reason)
			}
		}
		accepted := func(form string) bool { return strings.HasPrefix(said[form], "unknown flag: --nothing-like-it") }
		if reason == "" && (!accepted("json") || !accepted("yaml") || accepted("table") != accepted("wide") || accepted("xml")) {
			t.Errorf("%s: add the flag -o with output.Add, or a reason to objects.WithoutOutput: %q", name, said)
		}
	}
}

// longName is the name of objects, proxies and files of tests.
const longName = "reservations-and-payments-of-bookings-v1-7c6bdf8d9b"

// controlPlane answers with long names, and with a long error where a test of package inspect has the answers.
func controlPlane(w http.ResponseWriter, r *http.Request) {
	ref := report.Ref{Kind: "VirtualService", Namespace: "shop", Name: longName}
	types := []report.Type{{Name: "lds", State: report.Rejected, Since: time.Now(), Reason: strings.Repeat("cannot bind ", 20)}, {Name: "cds", State: report.Synced, Since: time.Now(), Resources: 3}}
	proxy := report.Proxy{Name: longName + ".shop", Namespace: "shop", Identity: "spiffe://cluster.local/ns/shop/sa/" + longName, Agent: "1.18.0", Envoy: "1.39.3", Connected: time.Now(), Types: types}
	problem := report.Problem{Object: ref, Source: "config/" + longName + ".yaml:3", Reason: strings.Repeat("no service has the host wob, ", 5)}
	var doc any
	switch path.Base(r.URL.Path) {
	case "proxies":
		doc = report.Replica{Name: longName, Version: "v1", Pushed: time.Now(), Proxies: []report.Proxy{proxy}}
	case "explain":
		doc = report.Object{
			Ref: ref, Found: true, InForce: true, Source: problem.Source, Problems: []report.Problem{problem},
			Resources: []report.Resource{{Type: "rds", Name: longName, Proxies: 1}}, Proxies: []report.Standing{{Proxy: proxy.Name, State: report.Rejected, What: longName, Since: time.Now()}},
		}
	case "history":
		doc = report.History{Begins: time.Now(), Versions: []report.Version{{Ref: ref, At: time.Now(), Change: report.Updated, Revision: "1042d1a0c6f1e8b2", Source: problem.Source}}}
	case "analyze":
		doc = analyze.Result{Findings: []analyze.Finding{{Code: "IST0101", Severity: analyze.Error, Object: analyze.Object(ref), Source: problem.Source, Message: problem.Reason, Cure: problem.Reason}}}
	default:
		http.Error(w, problem.Reason, http.StatusServiceUnavailable)
		return
	}
	_ = json.NewEncoder(w).Encode(doc) // the client may be gone
}

// narrow are the arguments behind each command in TestTerminals. DIR is a directory with a file of an object,
// which is in the store, too.
func narrow() map[string]string {
	const file, nobody = " -f DIR/object.yaml", " --agent 127.0.0.1:1"
	return map[string]string{
		"analyze": "", "apply": file + " --yes", "backup restore": "DIR/none", "backup save": "DIR/none/a", "bug-report": "--file DIR/none/a", "create": file,
		"dashboard": "--address nowhere", "delete": "vs/nothing", "describe": "vs/" + longName + " -n shop", "explain": "vs/" + longName + ".shop",
		"explain request": "--from shop/web --to " + longName, "get": "vs -A", "help": "status", "history": "", "install": "", "join": "nothing", "join create": "--socket DIR/none",
		"leave": "", "migrate": "--from fs://DIR/none --to fs://DIR/store", "policy record": nobody + " --for 1s", "policy replay": "--to " + longName + file + " DIR/none",
		"replace": file, "rollback": "vs/" + longName + " -n shop", "status": "", "tap": nobody + " --for 1s", "top": "--once" + nobody, "uninstall": "", "up": "-f DIR/none --envoy DIR/none",
		"validate": file, "version": "", "what-if": file,
		"proxy all": longName, "proxy clusters": longName, "proxy ecds": longName, "proxy endpoints": longName, "proxy listeners": longName, "proxy log": longName, "proxy routes": longName,
		"proxy rootca-compare": longName + " " + longName, "proxy secrets": longName,
		// What programs read, or users copy, has the lines that it has: differences, objects, scripts.
		"diff": "", "inject": "", "proxy bootstrap": "", "completion bash": "", "completion fish": "", "completion powershell": "", "completion zsh": "",
	}
}

// TestTerminals runs each command on terminals, whose width no line exceeds, and without one, where
// nothing is shortened and no control sequence is printed.
func TestTerminals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	object := "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: " + longName + ", namespace: shop}\n" +
		"spec: {hosts: [" + longName + ".example.com], http: [{route: [{destination: {host: " + longName + "}}]}]}\n"
	for _, name := range []string{"object.yaml", "store/object.yaml"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "store"), 0o700), os.WriteFile(filepath.Join(dir, name), []byte(object), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	control := httptest.NewServer(http.HandlerFunc(controlPlane))
	t.Cleanup(control.Close)
	rows := narrow()
	for _, command := range commands(t) {
		name := strings.Join(command, " ")
		args, ok := rows[name]
		if !ok {
			t.Errorf("%s: add its arguments to narrow", name)
		}
		if args == "" && slices.Contains([]string{"diff", "inject", "proxy bootstrap"}, name) || command[0] == "completion" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, width := range []int{40, 60, 80, 0} {
				cmd := exec.Command(os.Args[0], append(command, strings.Fields(strings.ReplaceAll(args, "DIR", dir))...)...)
				cmd.Env = []string{"OUTRIGGER_TEST_ROLE=outrigger", "HOME=" + dir, "PATH=" + dir, "TMPDIR=" + dir, "OUTRIGGER_STORE=fs://" + dir + "/store", "OUTRIGGER_CONTROL=" + control.URL}
				text := printed(t, cmd, width)
				switch {
				case text == "":
					t.Error("nothing is printed")
				case width > 0:
					fits(t, name, text, width)
				case strings.ContainsAny(text, "\x1b…") || strings.Contains(text, "too narrow"):
					t.Errorf("without a terminal:\n%s", text)
				}
			}
		})
	}
}

// printed runs a command on a terminal with some columns, or without one if there are none, and returns its
// output.
func printed(t *testing.T, cmd *exec.Cmd, width int) string {
	t.Helper()
	if width == 0 {
		text, _ := cmd.CombinedOutput() // most commands fail, with a sentence
		return string(text)
	}
	master, terminal := goldentest.Terminal(t, width)
	defer func() { _ = master.Close() }() // nothing is left to read
	text := make(chan string, 1)
	go func() {
		raw, _ := io.ReadAll(master) // fails when the terminal is closed
		text <- string(raw)
	}()
	cmd.Stdout, cmd.Stderr = terminal, terminal
	_ = cmd.Run()        // as above
	_ = terminal.Close() // the end of the output
	return strings.ReplaceAll(<-text, "\r\n", "\n")
}

// fits checks that the lines of a text fit a terminal. A single word may be longer, so that it can be copied.
func fits(t *testing.T, name, text string, width int) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if n := utf8.RuneCountInString(line); n > width && strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("outrigger %s: on a terminal with %d columns a line has %d characters: %s", name, width, n, line)
		}
	}
}
