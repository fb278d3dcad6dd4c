// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sdnotify

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// manager is a service manager that receives messages.
type manager struct {
	t    *testing.T
	path string
	conn *net.UnixConn
}

func listen(t *testing.T) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &manager{t: t, path: path, conn: conn}
}

// next returns the lines of the next message, or nil if none arrives in time.
func (m *manager) next(within time.Duration) []string {
	m.t.Helper()
	buffer := make([]byte, 4096)
	if err := m.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		m.t.Fatal(err)
	}
	n, err := m.conn.Read(buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.Split(string(buffer[:n]), "\n")
}

// await reads messages until one contains a line, and returns the lines of all of them.
func (m *manager) await(line string) []string {
	m.t.Helper()
	var all []string
	for !slices.Contains(all, line) {
		lines := m.next(2 * time.Minute)
		if lines == nil {
			m.t.Fatalf("timeout waiting for %s; received %q", line, all)
		}
		all = append(all, lines...)
	}
	return all
}

func start(t *testing.T, m Manager, log *slog.Logger, check Check) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stopping, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		m.Run(ctx, stopping, log, check)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return func() { close(stopping) }
}

func TestStates(t *testing.T) {
	t.Parallel()
	m := listen(t)
	checks := 0
	stop := start(t, Manager{Socket: m.path, Watchdog: time.Millisecond}, slog.New(slog.DiscardHandler), func(context.Context) (string, bool) {
		checks++
		if checks < 3 {
			return "waits\nMAINPID=1", false
		}
		return "serves", true
	})
	before := m.await("READY=1")
	if want := []string{"STATUS=waits MAINPID=1", "WATCHDOG=1", "WATCHDOG=1", "READY=1", "STATUS=serves", "WATCHDOG=1"}; !slices.Equal(before, want) {
		t.Errorf("messages at the start: got %q, want %q", before, want)
	}
	stop()
	for _, line := range m.await("STOPPING=1") {
		if line != "WATCHDOG=1" && line != "STOPPING=1" {
			t.Errorf("unexpected message after the start: %q", line)
		}
	}
	// A drain may take long, so the watchdog must be notified during it.
	m.await("WATCHDOG=1")
}

// TestHungCheck checks that a program whose check does not return sends nothing, which triggers the
// watchdog.
func TestHungCheck(t *testing.T) {
	t.Parallel()
	m := listen(t)
	begun, release := make(chan struct{}), make(chan struct{})
	checks := 0
	start(t, Manager{Socket: m.path, Watchdog: time.Millisecond}, slog.New(slog.DiscardHandler), func(context.Context) (string, bool) {
		if checks++; checks == 2 {
			close(begun)
			<-release
		}
		return "", true
	})
	m.await("WATCHDOG=1")
	<-begun
	if lines := m.next(50 * time.Millisecond); lines != nil {
		t.Errorf("a hanging program sent %q, want nothing", lines)
	}
	close(release)
	m.await("WATCHDOG=1")
}

func TestNoManager(t *testing.T) {
	t.Parallel()
	called := false
	Manager{}.Run(t.Context(), nil, slog.New(slog.DiscardHandler), func(context.Context) (string, bool) { called = true; return "", true })
	if called {
		t.Error("the check was called without a socket")
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	path := filepath.Join(t.TempDir(), "missing")
	Manager{Socket: path}.Run(ctx, nil, slog.New(slog.NewTextHandler(&log, nil)), func(context.Context) (string, bool) { cancel(); return "", true })
	if !strings.Contains(log.String(), "cannot be notified") || !strings.Contains(log.String(), path) {
		t.Errorf("log: got %q", log.String())
	}
}

// TestRestartedManager checks that a manager that was away is notified of what it missed, and of the
// end of a program whose context ends with it.
func TestRestartedManager(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	stopping, ended := make(chan struct{}), make(chan struct{})
	path, checked, back := filepath.Join(t.TempDir(), "notify"), make(chan struct{}), make(chan struct{})
	checks := 0
	go func() {
		defer close(ended)
		Manager{Socket: path, Watchdog: time.Millisecond}.Run(ctx, stopping, slog.New(slog.DiscardHandler), func(context.Context) (string, bool) {
			if checks++; checks == 2 { // the message of the first one is lost
				close(checked)
				<-back
			}
			return "serves", true
		})
	}()
	<-checked
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	m := &manager{t: t, path: path, conn: conn}
	close(back)
	if got, want := m.await("READY=1"), []string{"READY=1", "STATUS=serves", "WATCHDOG=1"}; !slices.Equal(got, want) {
		t.Errorf("after the restart: got %q, want %q", got, want)
	}
	close(stopping)
	cancel()
	m.await("STOPPING=1")
	<-ended
}

func TestLongStatus(t *testing.T) {
	t.Parallel()
	if got := oneLine(strings.Repeat("x", 5000) + "\n"); len(got) > 2*maxStatus || strings.Contains(got, "\n") {
		t.Errorf("oneLine() has %d bytes: %q", len(got), got)
	}
}

func TestParseWatchdog(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"30000000": 30 * time.Second, "0": 0, "1": time.Microsecond} {
		if got, err := ParseWatchdog(text); got != want || err != nil {
			t.Errorf("ParseWatchdog(%q) = %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "30s", "99999999999999999999", "4503599627370496"} {
		if got, err := ParseWatchdog(text); err == nil {
			t.Errorf("ParseWatchdog(%q) = %s, want an error", text, got)
		}
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		watchdog time.Duration
		ready    bool
		want     time.Duration
	}{
		{0, false, startPause}, {0, true, longestPause}, {20 * time.Second, true, 5 * time.Second}, {time.Hour, true, longestPause}, {400 * time.Millisecond, false, 100 * time.Millisecond},
	} {
		if got := (Manager{Watchdog: c.watchdog}).pause(c.ready); got != c.want {
			t.Errorf("pause() with watchdog %s and ready %t = %s, want %s", c.watchdog, c.ready, got, c.want)
		}
	}
}
