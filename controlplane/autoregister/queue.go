// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// item returns the item of an entry. It creates the item if it does not exist. The caller holds
// mu.
func (c *Controller) item(key model.Key) *item {
	it := c.work[key]
	if it == nil {
		it = &item{}
		c.work[key] = it
	}
	return it
}

// enqueue schedules the reconciliation of an entry. An entry that a worker is processing is
// processed again afterwards, so that no two workers write it at the same time. The caller holds
// mu.
func (c *Controller) enqueue(key model.Key) {
	it := c.work[key]
	switch {
	case it == nil || it.queued || c.ended:
		return
	case it.running:
		it.again = true
		return
	}
	if it.timer != nil {
		it.timer.Stop()
		it.timer = nil
	}
	it.queued = true
	c.ready = append(c.ready, key)
	c.notify()
}

// notify wakes a worker. It never blocks.
func (c *Controller) notify() {
	select {
	case c.wake <- struct{}{}:
	default: // a token is already there
	}
}

// next waits for an entry to reconcile. It returns false when ctx is done.
func (c *Controller) next(ctx context.Context) (model.Key, bool) {
	for {
		select {
		case <-ctx.Done():
			return model.Key{}, false
		case <-c.wake:
		}
		c.mu.Lock()
		if len(c.ready) == 0 {
			c.mu.Unlock()
			continue
		}
		key := c.ready[0]
		c.ready = c.ready[1:]
		it := c.work[key]
		it.queued, it.running = false, true
		if len(c.ready) > 0 {
			c.notify() // wakes another worker
		}
		c.mu.Unlock()
		return key, true
	}
}

// attend reconciles an entry and schedules the next reconciliation.
func (c *Controller) attend(ctx context.Context, key model.Key) {
	again, err := c.reconcile(ctx, key)
	gone := !isRegistered(c.store.Get(key))
	c.mu.Lock()
	defer c.mu.Unlock()
	it := c.work[key]
	it.running = false
	if err != nil && ctx.Err() == nil {
		raced := errors.Is(err, config.ErrConflict) || errors.Is(err, config.ErrExists) || errors.Is(err, config.ErrNotFound)
		if !raced {
			c.metrics.errors.Inc()
			if it.told != err.Error() {
				c.log.Warn("the entry of a workload cannot be written; it is tried again", "namespace", key.Namespace, "name", key.Name, "err", err)
			}
			it.told = err.Error()
		}
		if it.failures++; raced {
			it.failures = min(it.failures, 4) // the store responds, but has a newer version
		}
		again = pause(it.failures)
	} else {
		it.failures = 0
	}
	switch {
	case it.again:
		it.again = false
		c.enqueue(key)
	case again > 0 && !c.ended:
		it.timer = time.AfterFunc(again, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.enqueue(key)
		})
	case len(it.conns) == 0 && gone && it.claim == "":
		c.unname(it)
		delete(c.work, key)
	}
}

// pause returns the delay before the next attempt, with jitter.
func pause(failures int) time.Duration {
	d := min(firstPause<<min(failures-1, 16), longPause)
	return d/2 + rand.N(d)
}
