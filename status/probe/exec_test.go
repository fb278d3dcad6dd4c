// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

func TestExec(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"exit 0":                           "",
		"printf 'a\\nb\\377'; exit 4":      "sh: exit status 4: a b?",
		"head -c 100000 /dev/zero; exit 1": "sh: exit status 1",
		"sleep 60 & exit 0":                "", // the background process keeps the output open
	} {
		begin := time.Now()
		err := Exec(t.Context(), []string{"sh", "-c", script})
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("Exec(%s) = %v, want %q", script, err, want)
		}
		if err != nil && (len(err.Error()) > 2*maxOutput || !utf8.ValidString(err.Error())) {
			t.Errorf("%s: %d bytes in an error, %.100q", script, len(err.Error()), err)
		}
		if took := time.Since(begin); took > 2*time.Minute {
			t.Errorf("%s took %s", script, took)
		}
	}
	if err := Exec(t.Context(), nil); err == nil {
		t.Error("Exec without a command returned no error")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	file := filepath.Join(t.TempDir(), "file")
	if err := Exec(ended, []string{"touch", file}); !errors.Is(err, context.Canceled) {
		t.Errorf("Exec() with a context that has ended = %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the command ran although the context had ended")
	}
}

// TestExecKillsTheGroup checks that no process of a timed-out command remains.
func TestExecKillsTheGroup(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Exec(ctx, []string{"sh", "-c", "trap '' TERM; sleep 600 & echo $! >" + file + ".new; mv " + file + ".new " + file + "; wait; sleep 600"})
	}()
	pid := 0
	for end := time.Now().Add(2 * time.Minute); pid == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(file)
		if err == nil {
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		}
	}
	if pid == 0 {
		t.Fatal("the command did not begin")
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Exec() = %v", err)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		// The process is dead if it does not exist or is a zombie.
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || err == nil && strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d, which the command started, is still running", pid)
		}
	}
}
