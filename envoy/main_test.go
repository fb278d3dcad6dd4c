// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// roleVariable makes the test binary act as an agent; see runAsAgent.
const roleVariable = "OUTRIGGER_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "agent" {
		runAsAgent()
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		os.Exit(printVersion())
	}
	goleak.VerifyTestMain(m)
}

// printVersion acts as an Envoy that prints its version; see fakeVersion.
func printVersion() int {
	text, err := os.ReadFile(os.Args[0] + ".says")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(string(text))
	if _, err := os.Stat(os.Args[0] + ".fails"); err == nil {
		return 3
	}
	return 0
}

// runAsAgent runs a child that never exits, or the command in its arguments, prints its process id
// and waits to be killed.
func runAsAgent() {
	child := []string{"/bin/sleep", "1000"}
	if len(os.Args) > 1 {
		child = os.Args[1:]
	}
	p, err := New(Config{
		Binary: child[0], Args: child[1:],
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		<-p.Started()
		fmt.Println(p.PID())
	}()
	fmt.Println(p.Run(context.Background()))
}

// findEnvoy returns a real Envoy or skips the test.
func findEnvoy(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("ENVOY"); path != "" {
		return path
	}
	if path, err := filepath.Abs("../bin/envoy"); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return path
	}
	t.Skip("no Envoy: set ENVOY, or run `make envoy`, which puts one at bin/envoy")
	return ""
}

// patience is the timeout of tests for events that must happen.
const patience = 2 * time.Minute

// kill signals an Envoy and reports whether it was still running. It never signals another process
// with a reused id.
func kill(t *testing.T, c *child, sig syscall.Signal) bool {
	t.Helper()
	if c == nil {
		t.Fatal("envoy has not been started")
	}
	err := c.process.Signal(sig)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	return err == nil
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// output is a writer that is safe for concurrent use.
type output struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func testLogger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// bothLoggers returns a logger that writes to the test's log and to a buffer.
func bothLoggers(t *testing.T, to *output) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), to), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
