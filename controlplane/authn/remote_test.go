// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

// issuer is an issuer whose answers a test sets. Its metrics are read by name.
type issuer struct {
	mu    sync.Mutex
	set   *keySet
	err   error
	delay time.Duration
	asked atomic.Int64
}

func (i *issuer) answer(text string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.set, i.err = &keySet{text: []byte(text)}, err
}

func (i *issuer) fetch(ctx context.Context) (*keySet, error) {
	i.asked.Add(1)
	i.mu.Lock()
	set, err, delay := i.set, i.err, i.delay
	i.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return set, err
}

// follow runs remoteKeys with an issuer until the end of the test.
func follow(t *testing.T, i *issuer, reg prometheus.Registerer) *remoteKeys {
	t.Helper()
	m, err := NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRemoteKeys(JWTConfig{Issuer: "https://issuer.test", Logger: slog.New(slog.DiscardHandler), Metrics: m})
	if err != nil {
		t.Fatal(err)
	}
	r.fetch = i.fetch
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.run(ctx) }() // always returns nil
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func TestFirstKeysAreWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{delay: 3 * time.Second}
		i.answer("1", nil)
		r := follow(t, i, nil)
		start := time.Now()
		set, err := r.current(t.Context())
		if err != nil || string(set.text) != "1" || time.Since(start) != 3*time.Second {
			t.Fatalf("got %v, error %v after %s", set, err, time.Since(start))
		}
	})
}

func TestFirstKeysDoNotCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		i.answer("", errors.New("no route"))
		reg := prometheus.NewRegistry()
		r := follow(t, i, reg)
		start := time.Now()
		_, err := r.current(t.Context())
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, ErrUnauthenticated) || time.Since(start) != defaultWait {
			t.Fatalf("got error %v after %s", err, time.Since(start))
		}
		if strings.Contains(err.Error(), "no route") {
			t.Error("the error tells a stranger about the network")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if _, err := r.current(ctx); !errors.Is(err, ErrUnavailable) || time.Since(start) != time.Second {
			t.Fatalf("got error %v after %s", err, time.Since(start))
		}
		// The delay grows to a minute, so there are about 60 attempts per hour.
		time.Sleep(time.Hour)
		if n := i.asked.Load(); n < 40 || n > 130 {
			t.Errorf("the issuer was asked %d times in an hour", n)
		}
		i.answer("1", nil)
		time.Sleep(2 * time.Minute)
		if _, err := r.current(t.Context()); err != nil {
			t.Error(err)
		}
		families, err := reg.Gather()
		if err != nil || len(families) != 2 {
			t.Errorf("there are %d metrics, error %v; want those of fetches and of their time", len(families), err)
		}
	})
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		i.answer("1", nil)
		r := follow(t, i, nil)
		synctest.Wait()
		first, err := r.current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaultRefresh + time.Second)
		synctest.Wait()
		if same, _ := r.current(t.Context()); same != first || i.asked.Load() != 2 {
			t.Errorf("asked %d times; equal keys are another set: %v", i.asked.Load(), same != first)
		}
		i.answer("2", nil)
		time.Sleep(defaultRefresh + time.Second)
		synctest.Wait()
		if second, _ := r.current(t.Context()); string(second.text) != "2" {
			t.Errorf("got %s", second.text)
		}
	})
}

func TestStaleKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		i.answer("1", nil)
		r := follow(t, i, nil)
		synctest.Wait()
		i.answer("", errors.New("down"))
		time.Sleep(defaultMaxStale - time.Minute)
		if set, err := r.current(t.Context()); err != nil || string(set.text) != "1" {
			t.Fatalf("got error %v", err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := r.current(t.Context()); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "since") {
			t.Fatalf("got error %v", err)
		}
		i.answer("1", nil)
		time.Sleep(2 * time.Minute)
		if _, err := r.current(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestUnknownKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		i.answer("1", nil)
		r := follow(t, i, nil)
		synctest.Wait()
		first, err := r.current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.newer(t.Context(), first) != nil || i.asked.Load() != 1 {
			t.Errorf("an unknown key right after a fetch made another one")
		}
		time.Sleep(defaultMinRefresh)
		i.answer("2", nil)
		i.mu.Lock()
		i.delay = time.Second
		i.mu.Unlock()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if set := r.newer(t.Context(), first); set == nil || string(set.text) != "2" {
					t.Errorf("got %v", set)
				}
			})
		}
		wg.Wait()
		if n := i.asked.Load(); n != 2 {
			t.Errorf("100 tokens with an unknown key made %d fetches", n-1)
		}
		// A flood of tokens with unknown keys.
		before := i.asked.Load()
		for range 6000 {
			set, err := r.current(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			r.newer(ctx, set)
			cancel()
			time.Sleep(10 * time.Millisecond)
		}
		if n := i.asked.Load() - before; n > 8 {
			t.Errorf("a minute of unknown keys made %d fetches", n)
		}
	})
}
