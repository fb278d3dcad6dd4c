// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// parsedLogFlags returns the flags of a command line.
func parsedLogFlags(t *testing.T, args ...string) *Flags {
	t.Helper()
	var f Flags
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Add(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &f
}

// testLog returns a logger that is configured by flags, and its output.
func testLog(t *testing.T, args ...string) (*slog.Logger, *bytes.Buffer) {
	t.Helper()
	f := parsedLogFlags(t, args...)
	rules, _, err := f.rules()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	return slog.New(newHandler(&out, rules, f.JSON)), &out
}

// textLines checks the times and returns the rest of each line.
func textLines(t *testing.T, text string) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(text) {
		at, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if _, err := time.Parse("2006-01-02T15:04:05.000000Z", at); err != nil {
			t.Error(err)
		}
		lines = append(lines, rest)
	}
	return lines
}

// jsonLines decodes each line, checks its time and removes it.
func jsonLines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var docs []map[string]any
	for line := range strings.Lines(text) {
		var doc map[string]any
		if err := json.Unmarshal([]byte(line), &doc); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		at, _ := doc["time"].(string)
		if _, err := time.Parse("2006-01-02T15:04:05.000000Z", at); err != nil {
			t.Error(err)
		}
		delete(doc, "time")
		docs = append(docs, doc)
	}
	return docs
}

func TestLogLines(t *testing.T) {
	t.Parallel()
	write := func(log *slog.Logger) {
		log.Info("not shown")
		log.Warn("shown", "path", "a\nb", "count", 3)
		log.With("component", "xdsproxy", "stream", "s").Debug("of a part", "duration", 1500*time.Millisecond, "err", errors.New("no\r2026-01-01T00:00:00.000000Z\terror\tforged\x1b[31m \u2028\x9b"))
		log.With("component", "sds").Info("not shown")
		log.With("component", "ca").Error("a line", "reason", "ends\n")
	}
	log, out := testLog(t, "--log_output_level", "default:warn, xdsproxy:debug")
	write(log)
	want := []string{
		"warn\tshown\tpath=a\\nb\tcount=3",
		"debug\txdsproxy\tof a part\tstream=s\tduration=1.5s\terr=no\\r2026-01-01T00:00:00.000000Z error forged\\u001b[31m \\u2028\\x9b",
		"error\tca\ta line\treason=ends\\n",
	}
	if diff := cmp.Diff(want, textLines(t, out.String())); diff != "" {
		t.Error(diff)
	}
	log, out = testLog(t, "--log_output_level", "default:warn, xdsproxy:debug", "--log_as_json")
	write(log)
	wantJSON := []map[string]any{
		{"level": "warn", "msg": "shown", "path": "a\nb", "count": 3.0},
		{
			"level": "debug", "scope": "xdsproxy", "msg": "of a part", "stream": "s", "duration": "1.5s",
			"err": "no\r2026-01-01T00:00:00.000000Z\terror\tforged\x1b[31m \u2028\ufffd",
		},
		{"level": "error", "scope": "ca", "msg": "a line", "reason": "ends\n"},
	}
	if diff := cmp.Diff(wantJSON, jsonLines(t, out.String())); diff != "" {
		t.Error(diff)
	}
}

func FuzzOneLine(f *testing.F) {
	f.Add("a\nb\r\tc\x00\u0085\u2028\xff")
	f.Fuzz(func(t *testing.T, s string) {
		if got := OneLine(s); strings.ContainsFunc(got, breaks) || len(got) < len([]rune(s)) {
			t.Errorf("%q became %q", s, got)
		}
	})
}

// TestLogComponents checks that every component name of Istio's agent is accepted.
func TestLogComponents(t *testing.T) {
	t.Parallel()
	for name, component := range map[string]string{
		"default": "default", "xdsproxy": "xdsproxy", "sds": "sds", "cache": "sds", "citadelclient": "ca", "security": "sds", "ca": "ca", "ads": "sds",
		"dns": "dns", "wasm": "wasm", "healthcheck": "healthcheck", "iptables": "iptables", "stsserver": "stsserver", "stsclient": "stsclient",
		"googleca": "googleca", "googlecas": "googlecas", "gcecred": "gcecred", "spiffe": "spiffe", "klog": "klog", "model": "model", "validation": "validation",
		"envoy": "envoy", "status": "status", "all": "all", "Ca": "", "": "",
	} {
		if got, ok := componentOf(name); got != component || ok != (component != "") {
			t.Errorf("%q means %q, %v", name, got, ok)
		}
	}
	for list, want := range map[string]map[string]slog.Level{
		"default:info":                           {"default": slog.LevelInfo},
		"warn":                                   {"default": slog.LevelWarn},
		"":                                       {"default": slog.LevelInfo},
		" error , ca:debug,":                     {"default": slog.LevelError, "ca": slog.LevelDebug},
		"ca:fatal,sds:none":                      {"default": slog.LevelInfo, "ca": levelNone, "sds": levelNone},
		"citadelclient:debug":                    {"default": slog.LevelInfo, "ca": slog.LevelDebug},
		"citadelclient:debug,ca:error":           {"default": slog.LevelInfo, "ca": slog.LevelError},
		"cache:error,security:debug,ads:warn":    {"default": slog.LevelInfo, "sds": slog.LevelDebug},
		"sds:debug,all:error,default:info":       {"default": slog.LevelError},
		"default:none,ca:info,nobody:debug,all2": nil,
	} {
		got, _, err := parseLevels("--flag", list, slog.LevelInfo)
		if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (want != nil) {
			t.Errorf("%q: %v %s", list, err, diff)
		}
	}
	for _, list := range []string{"default:loud", "ca:info:debug", "all:debug,x:y", "ca:"} {
		if _, _, err := parseLevels("--flag", list, slog.LevelInfo); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("--flag is %q: the level", list)) {
			t.Errorf("%s: error %v", list, err)
		}
	}
}

// TestLogUnknownComponents checks that component names of other versions cause one warning and no
// error.
func TestLogUnknownComponents(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	f := parsedLogFlags(t, "--log_output_level=ztunnel:debug,ca:info,authn:warn", "--log_stacktrace_level=authn:error", "--log_caller=ca,ambient", "--log_target", path)
	if _, err := f.Logger(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"warn\tunknown components in log flags are ignored\tname=ambient,authn,ztunnel"}
	if diff := cmp.Diff(want, textLines(t, string(text))); diff != "" {
		t.Error(diff)
	}
}

func TestLogCallerAndStack(t *testing.T) {
	t.Parallel()
	const place = `logging/logging_test\.go:\d+`
	for name, tc := range map[string]struct {
		args         []string
		caller, fail bool
		stack        bool
	}{
		"neither":              {},
		"caller":               {args: []string{"--log_caller=sds,citadelclient"}, caller: true},
		"caller of all":        {args: []string{"--log_caller=all"}, caller: true},
		"caller of default":    {args: []string{"--log_caller=default"}, caller: true},
		"caller of another":    {args: []string{"--log_caller=xdsproxy"}},
		"stack":                {args: []string{"--log_stacktrace_level=ca:warn"}, stack: true},
		"stack of all":         {args: []string{"--log_stacktrace_level=debug"}, stack: true},
		"stack of errors only": {args: []string{"--log_stacktrace_level=ca:error"}},
		"stack of another":     {args: []string{"--log_stacktrace_level=sds:debug"}},
		"both":                 {args: []string{"--log_stacktrace_level=warn", "--log_caller=ca"}, stack: true, caller: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, out := testLog(t, tc.args...)
			log.With("component", "ca").Warn("the message", "count", 1)
			want := `^warn\tca\t`
			if tc.caller {
				want += place + `\t`
			}
			want += `the message\tcount=1`
			if tc.stack {
				want += `\tstack=\S+\.TestLogCallerAndStack\.func1 ` + place + ` < testing\.tRunner testing/testing\.go:\d+`
			}
			if lines := textLines(t, out.String()); len(lines) != 1 || !regexp.MustCompile(want+"$").MatchString(lines[0]) {
				t.Errorf("%q does not match %s", lines, want)
			}

			log, out = testLog(t, append(tc.args, "--log_as_json")...)
			log.With("component", "ca").Warn("the message", "count", 1)
			doc := jsonLines(t, out.String())[0]
			caller, hasCaller := doc["caller"].(string)
			if hasCaller != tc.caller || tc.caller && !regexp.MustCompile("^"+place+"$").MatchString(caller) {
				t.Errorf("caller %q", caller)
			}
			stack, hasStack := doc["stack"].(string)
			if hasStack != tc.stack || tc.stack && !regexp.MustCompile(`^\S+\.TestLogCallerAndStack\.func1\n\t`+place+`\ntesting\.tRunner\n\t\S+$`).MatchString(stack) {
				t.Errorf("stack %q", stack)
			}
			delete(doc, "caller")
			delete(doc, "stack")
			if diff := cmp.Diff(map[string]any{"level": "warn", "scope": "ca", "msg": "the message", "count": 1.0}, doc); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestReport checks that the error that ends the agent is written where users look for it, and that
// a JSON log contains only JSON.
func TestReport(t *testing.T) {
	t.Parallel()
	cause := errors.New("first\nsecond")
	for name, c := range map[string]struct {
		flags         Flags
		logged, plain bool
	}{
		"text":         {Flags{targets: []string{"stdout"}}, false, true},
		"text, a file": {Flags{targets: []string{"stdout", "/f"}}, true, true},
		"JSON":         {Flags{targets: []string{"stdout"}, JSON: true}, true, false},
	} {
		var out bytes.Buffer
		err := c.flags.Report(slog.New(slog.NewTextHandler(&out, nil)), cause)
		var logged Logged
		if !errors.Is(err, cause) || errors.As(err, &logged) == c.plain || strings.Contains(out.String(), `err="first; second"`) != c.logged {
			t.Errorf("%s: %v, %s", name, err, out.String())
		}
	}
	if err := (&Flags{JSON: true}).Report(nil, nil); err != nil {
		t.Error(err)
	}
}

// TestLogIsLimited checks that a peer cannot fill the log with repeated or long messages.
func TestLogIsLimited(t *testing.T) {
	t.Parallel()
	rules, _, err := (&Flags{levels: "default:info"}).rules()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log := slog.New(limitLog(newHandler(&out, rules, false))).With("component", "xdsproxy")
	long := strings.Repeat("long\n", 100_000)
	for range 10_000 {
		log.Warn("envoy rejected configuration and keeps its previous version", "reason", long)
	}
	log.Error("another line")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	// Time passes during the test, so a few more lines than the initial burst may be written.
	if n := len(lines); n < linesAtOnce || n > 20*linesAtOnce || !strings.HasSuffix(lines[n-1], "another line") {
		t.Errorf("%d lines, the last one %q", n, lines[n-1])
	}
	for _, line := range lines {
		if len(line) > 2*maxLogValue {
			t.Fatalf("a line of %d bytes: %.200q", len(line), line)
		}
	}
}

func TestSentence(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a": "a", "a\nb": "a; b", "a:\n  b\r\n c\n": "a: b; c", "\n": "",
	} {
		if got := Sentence(errors.New(in)); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}
