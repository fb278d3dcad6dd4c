// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"cmp"
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

	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
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
		master, terminal := goldentest.Terminal(t, goldentest.Columns)
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
