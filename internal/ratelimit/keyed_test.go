// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ratelimit

import (
	"testing"
	"time"
)

func TestTake(t *testing.T) {
	t.Parallel()
	k, now := NewKeyed[string](10), time.Unix(1000, 0)
	limit := Limit{PerSecond: 2, Burst: 3}
	for range 3 {
		if wait, refused := k.Take("a", limit, now); wait != 0 || refused != 0 {
			t.Fatalf("within the burst: got wait %s, refused %d", wait, refused)
		}
	}
	for want := 1; want <= 2; want++ {
		if wait, refused := k.Take("a", limit, now); wait != time.Second/2 || refused != want {
			t.Errorf("after the burst: got wait %s, refused %d, want 500ms, %d", wait, refused, want)
		}
	}
	if wait, _ := k.Take("b", limit, now); wait != 0 {
		t.Errorf("another key: got wait %s, want 0", wait)
	}
	if wait, refused := k.Take("a", limit, now.Add(time.Second/2)); wait != 0 || refused != 2 {
		t.Errorf("with a new token: got wait %s, refused %d, want 0s, 2", wait, refused)
	}
	if wait, refused := k.Take("a", limit, now.Add(time.Second/2)); wait == 0 || refused != 1 {
		t.Errorf("after that: got wait %s, refused %d, want more than 0s, 1", wait, refused)
	}
	for range 100 {
		if wait, _ := k.Take("c", Limit{PerSecond: -1}, now); wait != 0 {
			t.Fatalf("without a limit: got wait %s", wait)
		}
	}
}

// TestBounded checks that keys chosen by callers do not accumulate, and that keys in use are kept.
func TestBounded(t *testing.T) {
	t.Parallel()
	const most = 16
	k, now := NewKeyed[int](most), time.Unix(1000, 0)
	limit := Limit{PerSecond: 1, Burst: 1}
	k.Take(-1, limit, now)
	for i := range 100 * most {
		k.Take(i, limit, now)
		if wait, _ := k.Take(-1, limit, now); wait == 0 {
			t.Fatalf("the key in use was forgotten after %d others", i)
		}
	}
	if k.Len() != most || len(k.buckets) != most {
		t.Errorf("%d and %d keys are remembered, want %d", k.Len(), len(k.buckets), most)
	}
	if wait, _ := k.Take(0, limit, now); wait != 0 {
		t.Error("a forgotten key does not start with a full bucket")
	}
}
