// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/tool/objects"
)

// TestMain runs the test binary as the program if requested, so that signals and exit codes are
// real.
func TestMain(m *testing.M) {
	if os.Getenv("OUTRIGGER_TEST_ROLE") == "outrigger" {
		os.Exit(run(os.Args[1:], readEnvironment()))
	}
	// Child processes must not ignore SIGHUP, even if this process inherited that, as under nohup.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	os.Exit(ownnet.Tests(m).Run())
}

// program returns a command that runs the program with its standard output in a file.
func program(t *testing.T, stdout *os.File, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "OUTRIGGER_TEST_ROLE=outrigger")
	cmd.Stdout, cmd.Stderr = stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // most processes have exited
	return cmd, &stderr
}

// TestSignalBeforeStart checks that a signal during the check of Envoy's version is not reported
// as an error of Envoy.
func TestSignalBeforeStart(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			envoy := filepath.Join(t.TempDir(), "envoy")
			if err := os.WriteFile(envoy, []byte("#!/bin/sh\n: > \"$0.asked\"\nexec sleep 60\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			cmd, stderr := program(t, nil, "up", "-f", "/no/mesh.yaml", "--envoy", envoy)
			for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
				if _, err := os.Stat(envoy + ".asked"); err == nil {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("timeout waiting for the check of Envoy's version")
				}
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
				t.Errorf("got %v, errors %s; want neither", err, stderr)
			}
		})
	}
}

// TestClosedOutput checks that a closed output pipe stops the mesh like a signal, instead
// of killing the process.
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
	cmd, stderr := program(t, w, "version")
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("got %v, errors %s; want exit code 1", err, stderr)
	}
}

// TestWrongCommandLine checks the exit codes and errors of command lines that are wrong.
func TestWrongCommandLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, err string }{
		{"statu", `unknown command "statu" for "outrigger"`},
		{"proxy cluster5 frontend", `unknown command "cluster5" for "outrigger proxy": did you mean "clusters"?`},
		{"completion tcsh", `unknown command "tcsh" for "outrigger completion"`},
		{"completion bash extra", "unknown command"},
		{"status --wach", `unknown flag: --wach: did you mean "watch"?`},
		{"status --nothing-like-it", "unknown flag: --nothing-like-it: outrigger status --help lists the flags"},
		{"top -w", "outrigger top has no --watch: it goes on until Ctrl-C"},
		{"validate -w", "outrigger validate has no --watch: outrigger analyze, "},
		{"version extra", "unknown command"},
		{"validate -f /no/file", "stat /no/file: no such file"},
		{"apply -f /no/file --store fs:///no", "stat /no/file: no such file"},
		{"delete -f /no/file --store fs:///no", "stat /no/file: no such file"},
		{"validate -f /proc/self/mem", "read /proc/self/mem: "},
		{"analyze /no/file", "open /no/file: no such file"},
		{"what-if -f /no/file", "open /no/file: no such file"},
		{"inject -f /no/file", "open /no/file: no such file"},
		{"inject --values /no/file", "open /no/file: no such file"},
		{"proxy clusters -f /", "read /: is a directory"},
		{"proxy bootstrap -f /no/file", "open /no/file: no such file or directory; name one that exists"},
		{"up -f /no/file", "open /no/file: no such file or directory; name a mesh file with -f"},
		{"up -f /", "read /: is a directory; name a mesh file with -f"},
		{"inject -f /", "read /: is a directory; name a file in it"},
		{"install --values=/no/file --dry-run", "open /no/file: no such file or directory; name one that exists"},
		{"install -f / --dry-run", "read /: is a directory; name a file in it"},
		{"backup restore /no/file", "open /no/file: no such file or directory; name one that exists"},
		{"backup restore /", "read /: is a directory; name a file in it"},
		{"backup save a --settings /no/file", "/no/file: no such file or directory; name one that exists"},
		{"explain request --log /no/file", "open /no/file: no such file or directory; name one that exists"},
		{"policy replay --to web -f /no/file /no/log", "/no/file: no such file or directory; name one that exists"},
		{"install -f /proc/self/mem --dry-run", "read /proc/self/mem: "},
		{"get vs --store nope://x", "the scheme is unknown: nope; write etcd://"},
		{"diff -f /no/file --store fs:///no", "stat /no/file: no such file or directory; name one that exists"},
		{"replace -f /no/file --store fs:///no", "stat /no/file: no such file or directory; name one that exists"},
		{"create -f /no/file --store fs:///no", "stat /no/file: no such file or directory; name one that exists"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			cmd, stderr := program(t, nil, strings.Fields(c.args)...)
			if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(stderr.String(), c.err) {
				t.Errorf("got %v, errors %s; want exit code 2, %q", err, stderr, c.err)
			}
		})
	}
}

// TestExitCodes checks the exit codes and errors of commands that fail, though their command lines are fine: of
// malformed files, without a control plane or a cluster, and for objects that do not exist.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad, store := filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "store")
	if err := errors.Join(os.WriteFile(bad, []byte("a: ["), 0o600), os.Mkdir(store, 0o700)); err != nil {
		t.Fatal(err)
	}
	const silent = "Name others with --control"
	for _, c := range []struct {
		args string
		code int
		err  string
	}{
		{"up -f BAD", 1, "bad.yaml:1: not valid YAML"},
		{"inject -f BAD", 1, "the document at line 1"},
		{"validate -f BAD", 1, "bad.yaml:1: this is not YAML"},
		{"apply -f BAD --store fs://STORE", 1, "bad.yaml:1: this is not YAML"},
		{"delete -f BAD --store fs://STORE", 1, "bad.yaml:1: this is not YAML"},
		{"diff -f BAD --store fs://STORE", 2, "bad.yaml:1: this is not YAML"},
		{"install -f BAD", 1, "bad.yaml: error converting YAML"},
		{"backup restore BAD", 1, "this is no backup"},
		{"proxy clusters -f BAD", 1, "it is not a config_dump in JSON"},
		{"status", 1, silent},
		{"explain vs/a", 1, silent},
		{"explain web.shop", 1, silent},
		{"explain request --from a --to b", 1, silent},
		{"top", 1, silent},
		{"tap web", 1, silent},
		{"history", 1, "is it running? " + silent},
		{"analyze", 1, "is it running? " + silent},
		{"proxy clusters web", 1, silent},
		{"proxy log web", 1, silent},
		{"bug-report --file " + filepath.Join(dir, "report.tar.gz"), 1, "no control plane was reached: name others with --control"},
		{"status --agent 127.0.0.1:1", 1, "others with --agent HOST:15020"},
		{"get virtualservice a --store fs://STORE", 1, "a"},
		{"describe virtualservice a --store fs://STORE", 1, "a"},
		{"delete virtualservice a --store fs://STORE", 1, "a"},
		{"install", 1, "name one in KUBECONFIG"},
		{"uninstall", 1, "name one in KUBECONFIG"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(strings.NewReplacer("BAD", bad, "STORE", store).Replace(c.args))
			cmd := exec.Command(os.Args[0], args...)
			cmd.Env = append(os.Environ(), "OUTRIGGER_TEST_ROLE=outrigger", "OUTRIGGER_CONTROL=127.0.0.1:1", "KUBECONFIG=", "HOME="+dir)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != c.code || !strings.Contains(stderr.String(), c.err) {
				t.Errorf("got %v, errors %s; want exit code %d, %q", err, &stderr, c.code, c.err)
			}
		})
	}
}

// TestOutputFails checks that a command whose output nobody reads ends without a message, and one whose
// output cannot be written with the reason.
func TestOutputFails(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = full.Close() }() // nothing is written
	r, closed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()                         // that is the test
	defer func() { _ = closed.Close() }() // as above
	for _, args := range []string{"version", "--version", "help", "completion bash", "analyze -L", "validate -f ../../examples/shop/config"} {
		cmd, stderr := program(t, closed, strings.Fields(args)...)
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 || strings.Contains(stderr.String(), "outrigger:") {
			t.Errorf("%s, a closed pipe: got %v, errors %s; want exit code 1 only", args, err, stderr)
		}
		cmd, stderr = program(t, full, strings.Fields(args)...)
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%s, a full disk: got %v, errors %s; want exit code 1 and the reason", args, err, stderr)
		}
	}
}

// TestQuestionOnTerminal pipes a policy to apply on a terminal, which asks there.
func TestQuestionOnTerminal(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"n", "y"} {
		master, terminal := openTerminal(t)
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "apply", "-f", "-", "--store", "fs://"+dir)
		cmd.Env = append(os.Environ(), "OUTRIGGER_TEST_ROLE=outrigger")
		cmd.Stdin = strings.NewReader("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: stop}\nspec: {action: DENY, rules: [{}]}\n")
		cmd.Stdout = terminal
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1}
		if _, err := master.WriteString(answer + "\n"); err != nil {
			t.Fatal(err)
		}
		err := cmd.Run()
		_, _ = terminal.Close(), master.Close() // nothing is left to read
		files, dirErr := os.ReadDir(dir)
		if dirErr != nil || (err == nil) != (answer == "y") || (len(files) > 0) != (answer == "y") {
			t.Errorf("%s: got %v and the files %v, %v", answer, err, files, dirErr)
		}
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string // part of the output
		err  string // part of the error
	}{
		{args: []string{"version"}, want: version + "\n"},
		{args: []string{"--help"}, want: "outrigger up -f examples/shop/mesh.yaml"},
		{args: []string{"up", "--help"}, want: "--state-dir"},
		{args: []string{"inject", "-f", "../../controlplane/inject/testdata/plain.yaml"}, want: "name: istio-proxy\n"},
		{args: []string{"inject", "-f", "/no/file"}, err: "open /no/file"},
		{args: []string{"inject", "--values", "/no/values"}, err: "open /no/values"},
		{args: []string{"up", "-f", "/no/mesh.yaml", "--envoy", "/no/envoy"}, err: "open /no/mesh.yaml"},
		{args: []string{"up", "extra"}, err: "unknown command"},
		{args: []string{"upp"}, err: `unknown command "upp"`},
	} {
		root := newRootCommand(environment{}, nil, nil)
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(c.args)
		err := root.ExecuteContext(t.Context())
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%v: got error %v, want %q", c.args, err, c.err)
		}
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: output %q does not contain %q", c.args, out.String(), c.want)
		}
	}
}

// TestHelp checks that the help of every command fits terminals, and that the help of the program has
// every command in a group.
func TestHelp(t *testing.T) {
	t.Parallel()
	var walk func(cmd *cobra.Command, path []string)
	walk = func(cmd *cobra.Command, path []string) {
		var out bytes.Buffer
		for _, width := range []int{40, 60, 80, 0} { // without a terminal it has 80, too
			out.Reset()
			root := newRootCommand(environment{}, nil, nil)
			if err := objects.Execute(t.Context(), root, append(path, "--help"), &columns.Writer{Out: &out, Width: width}); err != nil {
				t.Errorf("%v: %v", path, err)
			}
			fits(t, strings.Join(path, " ")+" --help", out.String(), cmp.Or(width, 80))
		}
		if _, rest, _ := strings.Cut(out.String(), "Additional Commands:"); len(path) == 0 && strings.Count(rest[:strings.Index(rest, "\n\n")], "\n") != 3 {
			t.Errorf("the help has commands without a group:\n%s", out.String())
		}
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				walk(c, append(slices.Clone(path), c.Name()))
			}
		}
	}
	root := newRootCommand(environment{}, nil, nil)
	root.InitDefaultCompletionCmd()
	walk(root, nil)
}
