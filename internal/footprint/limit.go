// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package footprint

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// Intervals at which Limit collects garbage while the memory limit is above the floor. The first
// interval doubles up to the last one while collecting has no effect.
const (
	firstCollection = time.Second
	lastCollection  = 2 * time.Minute
)

// Limit keeps the memory limit of the process at floor, in bytes, while memory in use permits, and
// otherwise at about twice the memory in use. With a fixed limit, Go would collect garbage
// continuously once more than the limit is in use; without a limit, it would keep the memory of a
// large message for minutes. Limit returns when ctx is done and leaves the limit unchanged.
func Limit(ctx context.Context, floor int64) {
	l := &limiter{floor: floor, raised: make(chan struct{}, 1)}
	debug.SetMemoryLimit(floor)
	l.watch()
	defer l.over.Store(true)
	for {
		// Events: shutdown; the limit is above the floor.
		select {
		case <-ctx.Done():
			return
		case <-l.raised:
		}
		l.lower(ctx)
	}
}

// limiter adjusts the memory limit at the end of each garbage collection.
type limiter struct {
	floor  int64
	limit  atomic.Int64
	raised chan struct{} // capacity 1: the limit is above the floor
	over   atomic.Bool
}

// watch calls adjust at the end of each garbage collection, by means of a cleanup of an unreachable
// object.
func (l *limiter) watch() {
	// The type contains a pointer, so that it is not allocated in a block shared with other
	// objects.
	type sentinel struct{ self *limiter }
	runtime.AddCleanup(&sentinel{l}, func(l *limiter) {
		if !l.over.Load() {
			l.adjust()
			l.watch()
		}
	}, l)
}

// adjust sets the memory limit according to the memory in use.
func (l *limiter) adjust() {
	limit := max(l.floor, 2*live()+l.floor/2)
	if limit < l.floor*5/4 {
		limit = l.floor
	}
	if l.limit.Swap(limit) != limit {
		debug.SetMemoryLimit(limit)
	}
	if limit > l.floor {
		select {
		case l.raised <- struct{}{}:
		default: // already signalled
		}
	}
}

// lower collects garbage, at increasing intervals, until the floor is sufficient.
func (l *limiter) lower(ctx context.Context) {
	for pause := firstCollection; ; pause = min(2*pause, lastCollection) {
		timer := time.NewTimer(pause)
		// Events: shutdown; the pause is over.
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		before := l.limit.Load()
		debug.FreeOSMemory()
		l.adjust()
		after := l.limit.Load()
		if after <= l.floor {
			return
		}
		if after < before/2 {
			pause = firstCollection / 2
		}
	}
}

// live returns the number of live heap bytes found by the last garbage collection.
func live() int64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(sample[0].Value.Uint64())
}
