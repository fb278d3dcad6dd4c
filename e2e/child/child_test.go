// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestProcess checks that a program writes its output to its log, is measured while it runs, and
// exits together with its children.
func TestProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := Start(Spec{Path: "/bin/sh", Dir: filepath.Join(dir, "work"), Log: filepath.Join(dir, "log"), Args: []string{"-c", "echo $VALUE; read line; echo $line; sleep 3600"}, Env: []string{"VALUE=one"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	if _, err := p.Stdin.Write([]byte("two\n")); err != nil {
		t.Fatal(err)
	}
	sleeper, found := p.Child("sleep")
	for !found {
		select {
		case <-p.Ended:
			t.Fatalf("it has ended: %v: %s", p.Err, p.LastWords())
		default:
			sleeper, found = p.Child("sleep")
		}
	}
	if got := p.Output(); got != "one\ntwo\n" {
		t.Errorf("it wrote %q", got)
	}
	if lines, size, err := p.Logged(); lines != 2 || size != 8 || err != nil {
		t.Errorf("it logged %d lines of %d bytes: %v", lines, size, err)
	}
	for _, pid := range []int{p.PID, sleeper} {
		if u, err := UsageOf(pid); err != nil || u.RSS <= 0 || u.Anonymous <= 0 || u.Peak < u.Anonymous {
			t.Errorf("process %d uses %+v: %v", pid, u, err)
		}
	}
	p.Stop()
	if p.Err == nil {
		t.Error("it exited unexpectedly")
	}
	if _, err := p.Usage(); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("measured after its end: %v", err)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal after its end: %v", err)
	}
	for { // its child has been killed and exits
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", sleeper))
		if err != nil || strings.Contains(string(state), "(zombie)") || !strings.Contains(string(state), "\tsleep\n") {
			return
		}
	}
}

// TestUsageCPU checks that the CPU time of a process increases while it works.
func TestUsageCPU(t *testing.T) {
	t.Parallel()
	for {
		if u, err := UsageOf(os.Getpid()); err != nil {
			t.Fatal(err)
		} else if u.CPU > 0 {
			return
		}
	}
}

// TestStartFails checks that the error for a program that cannot be started contains its name.
func TestStartFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := Start(Spec{Path: filepath.Join(dir, "none"), Dir: dir, Log: filepath.Join(dir, "log")})
	if err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("got %v", err)
	}
}
