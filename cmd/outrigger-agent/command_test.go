// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/agent/logging"
)

func TestTolerate(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]struct{ kept, dropped string }{
		"proxy sidecar":                              {"proxy sidecar", ""},
		"proxy --foo router":                         {"proxy router", "--foo"},
		"proxy --foo value router":                   {"proxy router", "--foo"},
		"proxy --foo=value router":                   {"proxy router", "--foo=value"},
		"proxy --foo --domain x router":              {"proxy --domain x router", "--foo"},
		"proxy router -x":                            {"proxy router", "-x"},
		"proxy --domain --foo":                       {"proxy --domain --foo", ""},
		"proxy --profiling --new sidecar":            {"proxy --profiling sidecar", "--new"},
		"proxy sidecar --log_as_json --vklog 3":      {"proxy sidecar --log_as_json --vklog 3", ""},
		"--foo proxy router":                         {"proxy router", "--foo"},
		"--foo x proxy":                              {"proxy", "--foo"},
		"--log_output_level default:debug proxy -h":  {"--log_output_level default:debug proxy -h", ""},
		"wait --foo":                                 {"wait", "--foo"},
		"wait --foo 1 --url x":                       {"wait --url x", "--foo"},
		"version --foo=1 -s":                         {"version -s", "--foo=1"},
		"version --foo bar":                          {"version", "--foo"},
		"request --foo GET stats":                    {"request GET stats", "--foo"},
		"request GET --foo stats":                    {"request GET stats", "--foo"},
		"request --foo 1 GET stats --debug-port 1":   {"request GET stats --debug-port 1", "--foo"},
		"request GET stats --foo 1":                  {"request GET stats", "--foo"},
		"completion bash --foo":                      {"completion bash --foo", ""},
		"__complete wait --foo":                      {"__complete wait --foo", ""},
		"version -s":                                 {"version -s", ""},
		"--version":                                  {"--version", ""},
		"-v":                                         {"", "-v"},
		"proxy --version":                            {"proxy", "--version"},
		"help proxy --foo":                           {"help proxy --foo", ""},
		"proxy -- --foo":                             {"proxy -- --foo", ""},
		"--help":                                     {"--help", ""},
		"proxy --proxyLogLevel debug --foo -x --bar": {"proxy --proxyLogLevel debug", "--foo -x --bar"},
	} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			kept, dropped := tolerate(newRootCommand(process{}), strings.Fields(in))
			if got := strings.Join(kept, " "); got != want.kept {
				t.Errorf("kept %q, want %q", got, want.kept)
			}
			if got := strings.Join(dropped, " "); got != want.dropped {
				t.Errorf("dropped %q, want %q", got, want.dropped)
			}
		})
	}
}

func FuzzTolerate(f *testing.F) {
	f.Add("proxy --foo router")
	f.Add("--a --b=c - -- -d")
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Fields(line)
		kept, dropped := tolerate(newRootCommand(process{}), args)
		if len(kept)+len(dropped) > len(args) {
			t.Errorf("tolerate(%q) = %q and %q, want at most as many arguments", args, kept, dropped)
		}
	})
}

// TestInjectedArguments checks that the flags that Istio's injector sets in a container and those
// that the service of a machine may have are known. One of them is deprecated, which must be
// logged.
func TestInjectedArguments(t *testing.T) {
	t.Parallel()
	const injected = "--domain ns.svc.cluster.local --proxyLogLevel=warning --proxyComponentLogLevel=misc:error --log_output_level=default:info"
	for line, role := range map[string]string{
		"proxy sidecar " + injected + " --log_as_json": "sidecar",
		"proxy router " + injected:                     "router",
		"proxy sidecar --serviceCluster=shop.ns":       "sidecar",
		"proxy":                                        "sidecar",
	} {
		kept, dropped := tolerate(newRootCommand(process{}), strings.Fields(line))
		if len(dropped) != 0 || kept[0] != proxyName {
			t.Errorf("%s: unknown flags: %q", line, dropped)
			continue
		}
		var f proxyFlags
		var logs logging.Flags
		fs := pflag.NewFlagSet(proxyName, pflag.ContinueOnError)
		f.add(fs)
		logs.Add(fs)
		if err := fs.Parse(kept[1:]); err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		f.note(fs)
		if got, err := parseRole(fs.Args()); err != nil || got != role {
			t.Errorf("%s: parseRole() = %q, %v", line, got, err)
		}
		if strings.Contains(line, injected) && (!slices.Equal(f.deprecated, []string{"--proxyComponentLogLevel"}) || len(f.ineffects) != 0) {
			t.Errorf("%s: got deprecated %q, without effect %q", line, f.deprecated, f.ineffects)
		}
		if strings.Contains(line, injected) && (f.Domain != "ns.svc.cluster.local" || f.ProxyLogLevel != "warning" || f.ComponentLogLevel != "misc:error") {
			t.Errorf("%s: got flags %+v", line, f.Flags)
		}
	}
}

func TestParseRole(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "sidecar", "sidecar": "sidecar", "router": "router", "router extra": "router", "waypoint": "waypoint"} {
		if got, err := parseRole(strings.Fields(in)); err != nil || got != want {
			t.Errorf("parseRole(%q) = %q, %v", in, got, err)
		}
	}
	for in, want := range map[string]string{"ztunnel": "a separate program without Envoy", "ingress": `role "ingress" is unknown: use sidecar, router or waypoint`} {
		if _, err := parseRole([]string{in}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseRole(%q) = %v, want an error with %q", in, err, want)
		}
	}
}

// TestRun runs commands that exit early, and checks their exit codes.
func TestRun(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{
		"version": exitOK, "version -s": exitOK, "--version": exitOK, "version -o yaml": exitOK, "version -o xml": exitError, "--help": exitOK, "proxy --help": exitOK,
		"proxy ztunnel": exitError, "nonsense": exitError, "version --foo": exitOK, "proxy --stsPort 1": exitError, "proxy --templateFile x": exitError,
		"proxy --log_output_level loud": exitError, "wait --periodMillis 0": exitError, "wait --timeoutSeconds 1 --url http://127.0.0.1:1/": exitError,
	} {
		if got := run(append([]string{ownName}, strings.Fields(in)...), nil); got != want {
			t.Errorf("run(%q) = %d, want %d", in, got, want)
		}
	}
}

// TestOnlyUnknownFlags checks that a command line of nothing but unknown flags prints the help.
func TestOnlyUnknownFlags(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-v")
	cmd.Env = []string{"OUTRIGGER_TEST_ROLE=agent"}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Available Commands") {
		t.Errorf("got %v, want the help:\n%s", err, out)
	}
}

// TestClosedOutput checks that closing the reader of the log does not kill the agent.
func TestClosedOutput(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	cmd := exec.Command(os.Args[0], "version")
	cmd.Env, cmd.Stdout = []string{"OUTRIGGER_TEST_ROLE=agent"}, w
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != exitError {
		t.Errorf("the agent exited with %v, want its own error", err)
	}
}

func TestWaitFor(t *testing.T) {
	t.Parallel()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	if err := waitFor(t.Context(), server.URL, time.Second, time.Millisecond); err != nil || asked != 3 {
		t.Errorf("waitFor() = %v after %d requests, want nil after 3", err, asked)
	}
	never := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "envoy is not live\nforged line", http.StatusServiceUnavailable)
	}))
	t.Cleanup(never.Close)
	// The second server stops responding; its earlier response must be reported as the reason.
	var told atomic.Bool
	silent := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !told.Swap(true) {
			http.Error(w, "envoy is not live", http.StatusServiceUnavailable)
			return
		}
		<-silent
	}))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(silent) })
	for _, server := range []*httptest.Server{never, hangs} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		err := waitFor(ctx, server.URL, time.Minute, time.Millisecond)
		cancel()
		if want := server.URL + " did not become ready in time: it returned 503 Service Unavailable: envoy is not live"; err == nil || err.Error() != want {
			t.Errorf("waitFor() = %v, want %s", err, want)
		}
	}
}

func TestCollateral(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, errs, code := program(t, peerName, nil, "collateral", "--all", "-o", dir)
	if out != "" || errs != "" || code != exitOK {
		t.Errorf("got exit code %d, output %q, errors %q", code, out, errs)
	}
	doc, err := os.ReadFile(filepath.Join(dir, "pilot-agent_proxy.md"))
	if err != nil || !strings.Contains(string(doc), "--meshConfig string") {
		t.Errorf("the document of the command proxy: got %q, error %v", doc, err)
	}
}
