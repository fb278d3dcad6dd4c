// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lograte

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// output is an in-memory log.
type output struct {
	mu sync.Mutex // guards the fields below
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// logger returns a logger with limits and its output.
func logger(cfg Config) (*slog.Logger, *output) {
	out := &output{}
	cfg.Next = slog.NewTextHandler(out, nil)
	return slog.New(NewHandler(cfg)), out
}

func lines(out *output, with string) (n int) {
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, with) {
			n++
		}
	}
	return n
}

// TestFlood writes many records with the same message and peer. A few must be written and the
// others counted. Other peers and messages must not be affected.
func TestFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var suppressed atomic.Int64
		log, out := logger(Config{Suppressed: func() { suppressed.Add(1) }})
		log = log.With("component", "discovery")
		const many = 20_000
		for i := range many {
			log.Warn("stream refused", "address", fmt.Sprintf("10.0.0.1:%d", 1+i%60000), "err", "no token")
		}
		log.Warn("stream refused", "address", "10.0.0.2:1", "err", "no token")
		log.Warn("request refused", "address", "10.0.0.1:1")
		if n := lines(out, "stream refused"); n != 20+1 {
			t.Errorf("%d lines of the flood, want 21", n)
		}
		if lines(out, "request refused") != 1 {
			t.Error("another message of the same peer is missing")
		}
		if suppressed.Load() != many-20 {
			t.Errorf("%d lines were counted as suppressed, want %d", suppressed.Load(), many-20)
		}
		time.Sleep(defaultEvery + time.Second)
		synctest.Wait()
		if want := fmt.Sprintf(`msg="log lines were suppressed" reason="stream refused" count=%d source=10.0.0.1`, many-20); lines(out, want) != 1 {
			t.Errorf("the report %s is missing:\n%s", want, out)
		}
		log.Warn("stream refused", "address", "10.0.0.1:9")
		if n := lines(out, "address=10.0.0.1:9\n"); n != 1 {
			t.Errorf("%d lines after the flood, want 1", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := lines(out, "suppressed"); n != 1 {
			t.Errorf("%d reports, want 1", n)
		}
	})
}

// TestManyPeers simulates a flood from many addresses with a few records each.
func TestManyPeers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, out := logger(Config{})
		for i := range 20_000 {
			log.Info("stream refused", "address", fmt.Sprintf("10.%d.%d.1:80", i/250, i%250))
		}
		log.Info("snapshot built", "version", "1")
		if n := lines(out, "stream refused"); n != 1000 {
			t.Errorf("%d lines, want 1000", n)
		}
		if lines(out, "snapshot built") != 1 {
			t.Error("another message is missing")
		}
		time.Sleep(defaultEvery)
		synctest.Wait()
	})
}

// TestMessages checks that some messages have a stricter limit.
func TestMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, out := logger(Config{Messages: map[string]ratelimit.Limit{"rare": {PerSecond: 1, Burst: 3}}})
		for range 100 {
			log.Warn("rare")
			log.Warn("usual")
		}
		if rare, usual := lines(out, "msg=rare"), lines(out, "msg=usual"); rare != 3 || usual != 100 {
			t.Errorf("got %d and %d lines, want 3 and 100", rare, usual)
		}
		time.Sleep(defaultEvery)
		synctest.Wait()
	})
}

// TestPeer checks which bucket a record uses.
func TestPeer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := ratelimit.Limit{PerSecond: 0.001, Burst: 1}
		log, out := logger(Config{PerPeer: one})
		log.Info("m", "identity", "a", "address", "10.0.0.1:1")
		log.Info("m", "address", "10.0.0.2:1", "identity", "a") // the address is used, not the identity
		log.With("identity", "b").Info("m", "address", "10.0.0.1:2")
		log.With("address", "10.0.0.2:2").Info("m", "identity", "c")
		log.Info("m", "identity", "a")
		log.Info("m", "identity", "a", "proxy", "b")
		log.Info("m")
		log.Info("m") // without a peer
		log.WithGroup("g").Info("m", "identity", "a")
		log.Debug("m", "identity", "a")
		if n := lines(out, "msg=m"); n != 6 {
			t.Errorf("%d lines, want 6:\n%s", n, out)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
	})
}

func TestValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, out := logger(Config{MaxValue: 100})
		long := strings.Repeat("x", 30<<20)
		log.With("proxy", long).Info("m", "err", errors.New(long), "source", slog.GroupValue(slog.String("a", long)), "names", []string{long, long})
		if len(out.String()) > 1000 || strings.Count(out.String(), "bytes)") != 4 {
			t.Errorf("%d bytes, want at most 1000 with 4 values shortened: %.2000s", len(out.String()), out)
		}
		log, out = logger(Config{MaxValue: 100})
		log.Info("m", "err", errors.New("short"), "count", 7, "names", []string{"a", "b"}, "duration", time.Second)
		if !strings.Contains(out.String(), `err=short count=7 names="[a b]" duration=1s`) {
			t.Errorf("short values changed: %s", out)
		}
	})
}
