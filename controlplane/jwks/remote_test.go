// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

// issuer is an issuer with configurable responses. The test reads its metrics by name.
type issuer struct {
	mu     sync.Mutex
	set    *Set
	err    error
	delay  time.Duration
	maxAge time.Duration // set before the start
	asked  atomic.Int64
}

func (i *issuer) answer(text string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.set, i.err = &Set{Sum: sha256.Sum256([]byte(text))}, err
}

func (i *issuer) fetch(ctx context.Context) (*fetched, error) {
	i.asked.Add(1)
	i.mu.Lock()
	set, err, delay := i.set, i.err, i.delay
	i.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &fetched{set: set, maxAge: i.maxAge}, err
}

// follow runs a Remote for an issuer until the test ends.
func follow(t *testing.T, i *issuer) *Remote {
	t.Helper()
	r, err := NewRemote(RemoteConfig{Source: Source{Issuer: "https://issuer.test"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r.fetch = i.fetch
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }() // always returns nil
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func TestFirstKeysDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{delay: 3 * time.Second}
		i.answer("1", nil)
		r := follow(t, i)
		start := time.Now()
		set, err := r.Current(t.Context())
		if err != nil || set.Sum != sha256.Sum256([]byte("1")) || time.Since(start) != 3*time.Second {
			t.Fatalf("got %v, error %v after %s; want the first keys after 3 s", set, err, time.Since(start))
		}
	})
}

func TestFirstKeysTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		i.answer("", errors.New("no route"))
		r := follow(t, i)
		start := time.Now()
		_, err := r.Current(t.Context())
		if err == nil || time.Since(start) != defaultWait {
			t.Fatalf("got error %v after %s, want one after the default wait", err, time.Since(start))
		}
		if strings.Contains(err.Error(), "no route") {
			t.Error("the error contains details of the network")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if _, err := r.Current(ctx); err == nil || time.Since(start) != time.Second {
			t.Fatalf("got error %v after %s, want one after 1 s", err, time.Since(start))
		}
		// The delay grows to a minute, so there are about 60 attempts per hour.
		time.Sleep(time.Hour)
		if n := i.asked.Load(); n < 40 || n > 130 {
			t.Errorf("%d requests in an hour, want 40 to 130", n)
		}
		i.answer("1", nil)
		time.Sleep(2 * time.Minute)
		if _, err := r.Current(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		i.answer("1", nil)
		r := follow(t, i)
		synctest.Wait()
		first, err := r.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaultRefresh + time.Second)
		synctest.Wait()
		if same, _ := r.Current(t.Context()); same != first || i.asked.Load() != 2 {
			t.Errorf("%d requests, want 2; equal keys are a different set: %v", i.asked.Load(), same != first)
		}
		i.answer("2", nil)
		time.Sleep(defaultRefresh + time.Second)
		synctest.Wait()
		if second, _ := r.Current(t.Context()); second.Sum != sha256.Sum256([]byte("2")) {
			t.Errorf("sum of the keys: got %x, want that of the second set", second.Sum)
		}
	})
}

func TestStaleKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		i.answer("1", nil)
		r := follow(t, i)
		synctest.Wait()
		i.answer("", errors.New("down"))
		time.Sleep(defaultMaxStale - time.Minute)
		if set, err := r.Current(t.Context()); err != nil || set.Sum != sha256.Sum256([]byte("1")) {
			t.Fatalf("within the maximum age: got error %v, want the last keys", err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := r.Current(t.Context()); err == nil || !strings.Contains(err.Error(), "since") {
			t.Fatalf("after the maximum age: got error %v, want one with \"since\"", err)
		}
		i.answer("1", nil)
		time.Sleep(2 * time.Minute)
		if _, err := r.Current(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestUnknownKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		i.answer("1", nil)
		r := follow(t, i)
		synctest.Wait()
		first, err := r.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.Newer(t.Context(), first) != nil || i.asked.Load() != 1 {
			t.Errorf("an unknown key right after a fetch caused another fetch")
		}
		time.Sleep(defaultMinRefresh)
		i.answer("2", nil)
		i.mu.Lock()
		i.delay = time.Second
		i.mu.Unlock()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if set := r.Newer(t.Context(), first); set == nil || set.Sum != sha256.Sum256([]byte("2")) {
					t.Errorf("Newer() = %v, want the second set", set)
				}
			})
		}
		wg.Wait()
		if n := i.asked.Load(); n != 2 {
			t.Errorf("100 tokens with an unknown key caused %d fetches, want 1", n-1)
		}
		// A flood of tokens with unknown keys must not cause a flood of fetches.
		before := i.asked.Load()
		for range 6000 {
			set, err := r.Current(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			r.Newer(ctx, set)
			cancel()
			time.Sleep(10 * time.Millisecond)
		}
		if n := i.asked.Load() - before; n > 8 {
			t.Errorf("a minute of unknown keys caused %d fetches, want at most 8", n)
		}
	})
}

// TestMaxAge checks that keys are fetched again after the max-age of the response, within limits.
func TestMaxAge(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration][2]int64{
		0:                {3, 4},
		time.Second:      {60, 75},
		10 * time.Minute: {6, 8},
		24 * time.Hour:   {3, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			i := &issuer{maxAge: age}
			i.answer("1", nil)
			follow(t, i)
			time.Sleep(time.Hour)
			if n := i.asked.Load(); n < want[0] || n > want[1] {
				t.Errorf("max-age %s: %d requests in an hour, want %v", age, n, want)
			}
		})
	}
}
