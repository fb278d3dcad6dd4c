// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestConcurrentProbesShareOneCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		reason := errors.New("not yet")
		r := &readiness{first: func() {}, ask: func(context.Context) error {
			asked++
			time.Sleep(500 * time.Millisecond)
			return reason
		}}
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				if err := r.check(t.Context()); !errors.Is(err, reason) {
					t.Errorf("check() = %v, want %v", err, reason)
				}
			})
		}
		group.Wait()
		if err := r.check(t.Context()); !errors.Is(err, reason) || asked != 1 {
			t.Errorf("20 concurrent probes and one after them caused %d checks, want 1; the last probe: %v", asked, err)
		}
		time.Sleep(500 * time.Millisecond) // as long as the check takes
		if err := r.check(t.Context()); !errors.Is(err, reason) || asked != 2 {
			t.Errorf("a later probe: got %v after %d checks, want its own check", err, asked)
		}
	})
}

func TestFirstProbeIsCanceled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &readiness{first: func() {}, ask: func(ctx context.Context) error {
			select {
			case <-time.After(500 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = r.check(ctx) }()
		synctest.Wait()
		cancel()
		if err := r.check(t.Context()); err != nil {
			t.Errorf("check() = %v, want nil although the first probe was canceled", err)
		}
	})
}

func TestWaitingProbeIsCanceled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &readiness{first: func() {}, ask: func(context.Context) error {
			time.Sleep(500 * time.Millisecond)
			return nil
		}}
		go func() { _ = r.check(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := r.check(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("check() = %v, want the end of its own context", err)
		}
		time.Sleep(time.Second)
	})
}

func TestBusyEnvoy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy := false
		r := &readiness{first: func() {}, ask: func(ctx context.Context) error {
			if busy {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		busy = true
		if err := r.check(t.Context()); err == nil || !strings.Contains(err.Error(), "did not answer within 800ms") {
			t.Errorf("without an earlier response: check() = %v, want a timeout", err)
		}
		busy = false
		if err := r.check(t.Context()); err != nil {
			t.Errorf("check() = %v, want nil", err)
		}
		busy = true
		begin := time.Now()
		if err := r.check(t.Context()); err != nil {
			t.Errorf("with a response one second old: check() = %v, want nil", err)
		}
		if took := time.Since(begin); took != readyTimeout {
			t.Errorf("the check took %s, want %s", took, readyTimeout)
		}
		for time.Since(begin) < readyPatience-readyTimeout {
			if err := r.check(t.Context()); err != nil {
				t.Errorf("busy for %s: check() = %v, want nil", time.Since(begin), err)
			}
		}
		time.Sleep(time.Second)
		if err := r.check(t.Context()); err == nil || !strings.Contains(err.Error(), "did not answer within 800ms") {
			t.Errorf("busy for %s: check() = %v, want a timeout", time.Since(begin), err)
		}
		busy = false
		if err := r.check(t.Context()); err != nil {
			t.Errorf("no longer busy: check() = %v, want nil", err)
		}
	})
}

// TestBusyEnvoyWithRareProbes checks readiness for probes that are 15 seconds apart. One check that
// times out has no effect, but a second one in a row does. A response that is an hour old is not
// used.
func TestBusyEnvoyWithRareProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy := false
		r := &readiness{first: func() {}, ask: func(ctx context.Context) error {
			if busy {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		for i, c := range []struct {
			pause time.Duration
			busy  bool
			ready bool
		}{
			{0, false, true},
			{15 * time.Second, true, true},
			{15 * time.Second, false, true},
			{15 * time.Second, true, true},
			{15 * time.Second, true, false},
			{15 * time.Second, false, true},
			{time.Hour, true, false},
		} {
			time.Sleep(c.pause)
			busy = c.busy
			if err := r.check(t.Context()); (err == nil) != c.ready {
				t.Errorf("check %d: got %v, want ready: %t", i, err, c.ready)
			}
		}
	})
}

// TestLateReasonIsUsed checks that a reason returned after the timeout, such as the exit of
// Envoy, takes precedence over the last good response.
func TestLateReasonIsUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("envoy is down")
		var reason error
		r := &readiness{first: func() {}, ask: func(ctx context.Context) error {
			if reason != nil {
				<-ctx.Done()
			}
			return reason
		}}
		if err := r.check(t.Context()); err != nil {
			t.Errorf("check() = %v, want nil", err)
		}
		reason = down
		if err := r.check(t.Context()); !errors.Is(err, down) {
			t.Errorf("check() = %v, want %v", err, down)
		}
	})
}

func TestReadinessSurvivesPanic(t *testing.T) {
	t.Parallel()
	broken := true
	r := &readiness{first: func() {}, ask: func(context.Context) error {
		if broken {
			panic("no")
		}
		return nil
	}}
	func() {
		defer func() { _ = recover() }()
		_ = r.check(t.Context())
	}()
	broken = false
	if err := r.check(t.Context()); err != nil {
		t.Errorf("after a panic: check() = %v, want nil", err)
	}
}
