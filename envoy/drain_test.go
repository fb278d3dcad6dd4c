// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// obedient returns a child that exits on SIGTERM.
const obedient = `trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done`

func TestDrainWithHangingAdmin(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	admin := fakeAdmin(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	p, out := shell(t, obedient, func(c *Config) { c.Admin = admin })
	cancel, result := begin(t, p)
	eventually(t, "the start", isUp(out))
	cancel()
	select {
	case err := <-result:
		if err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("an admin port that hangs holds up the end")
	}
}

func TestDrainServesForItsDuration(t *testing.T) {
	t.Parallel()
	var drained atomic.Bool
	admin := fakeAdmin(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "inboundonly&graceful&skip_exit" {
			drained.Store(true)
		}
	})
	const duration = 300 * time.Millisecond
	p, out := shell(t, obedient, func(c *Config) {
		c.Admin, c.Drain = admin, DrainConfig{InboundOnly: true, Duration: duration}
	})
	cancel, result := begin(t, p)
	eventually(t, "the start", isUp(out))
	began := time.Now() // the drain begins later, and Envoy is notified even later
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if !drained.Load() {
		t.Fatal("the inbound listeners were not drained")
	}
	if lasted := time.Since(began); lasted < duration {
		t.Errorf("the drain lasted %s, want at least %s", lasted, duration)
	}
}

func TestDrainUntilNoConnection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open func(asked int64) string // returns the response to the n-th count
		max  time.Duration
		asks int64
	}{
		"none open":      {func(int64) string { return "" }, time.Hour, 1},
		"one closes":     {func(n int64) string { return fmt.Sprint("listener.a_1.downstream_cx_active: ", 2-n, "\n") }, time.Hour, 2},
		"never":          {func(int64) string { return "listener.a_1.downstream_cx_active: 1\n" }, 500 * time.Millisecond, 2},
		"only the probe": {func(int64) string { return "listener.a_15021.downstream_cx_active: 1\n" }, time.Hour, 1},
		"no answer":      {func(int64) string { return "!" }, time.Hour, pollFailures},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			admin := fakeAdmin(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/drain_listeners") {
					return
				}
				answer := c.open(asked.Add(1))
				if answer == "!" {
					w.WriteHeader(http.StatusInternalServerError)
				}
				_, _ = w.Write([]byte(answer))
			})
			p, out := shell(t, obedient, func(cfg *Config) {
				cfg.Admin = admin
				cfg.Drain = DrainConfig{ExitOnZero: true, MaxDuration: c.max, Duration: time.Hour, IgnorePorts: []int{15021}}
			})
			cancel, result := begin(t, p)
			eventually(t, "the start", isUp(out))
			cancel()
			if err := <-result; err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
			if asked.Load() != c.asks {
				t.Errorf("connections were counted %d times, want %d", asked.Load(), c.asks)
			}
		})
	}
}
