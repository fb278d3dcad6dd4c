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

// How often Limit collects garbage while more than the floor is allowed: the first
// pause doubles up to the last one while that brings nothing.
const (
	firstCollection = time.Second
	lastCollection  = 2 * time.Minute
)

// Limit keeps the memory limit of the process at floor, in bytes, while what is
// in use allows that, and at twice what is in use otherwise. With a fixed limit,
// Go would collect garbage without end once more than the limit is in use; with
// none, it would keep what a large message needed for minutes. Limit returns when
// ctx is done, and leaves the limit as it is.
func Limit(ctx context.Context, floor int64) {
	l := &limiter{floor: floor, raised: make(chan struct{}, 1)}
	debug.SetMemoryLimit(floor)
	l.watch()
	defer l.over.Store(true)
	for {
		// Cases: the end; the limit is above the floor.
		select {
		case <-ctx.Done():
			return
		case <-l.raised:
		}
		l.lower(ctx)
	}
}

// limiter sets the memory limit at the end of each garbage collection.
type limiter struct {
	floor  int64
	limit  atomic.Int64
	raised chan struct{} // bound 1: the limit is above the floor
	over   atomic.Bool
}

// watch has adjust called at the end of each garbage collection, by an object that
// nothing refers to.
func (l *limiter) watch() {
	// It has a pointer, so that it does not share its memory with others.
	type sentinel struct{ self *limiter }
	runtime.AddCleanup(&sentinel{l}, func(l *limiter) {
		if !l.over.Load() {
			l.adjust()
			l.watch()
		}
	}, l)
}

// adjust sets the limit that fits what is in use.
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
		default: // it is known
		}
	}
}

// lower collects garbage until the floor is enough, less and less often.
func (l *limiter) lower(ctx context.Context) {
	for pause := firstCollection; ; pause = min(2*pause, lastCollection) {
		timer := time.NewTimer(pause)
		// Cases: the end; the pause is over.
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

// live returns how many bytes the last garbage collection found in use.
func live() int64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(sample[0].Value.Uint64())
}
