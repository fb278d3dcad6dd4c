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

// enqueue schedules the reconciliation of an entry. Before Run there is no queue: Run schedules all
// entries. The caller holds mu.
func (c *Controller) enqueue(key model.Key) {
	if c.queue != nil && c.work[key] != nil {
		c.queue.Add(key)
	}
}

// serve reconciles entries until the queue is shut down.
func (c *Controller) serve(ctx context.Context) error {
	for {
		key, down := c.queue.Get()
		if down || ctx.Err() != nil {
			return nil
		}
		c.attend(ctx, key)
		c.queue.Done(key)
	}
}

// attend reconciles an entry and schedules the next reconciliation.
func (c *Controller) attend(ctx context.Context, key model.Key) {
	again, err := c.reconcile(ctx, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	it := c.work[key]
	if err != nil && ctx.Err() == nil {
		raced := errors.Is(err, config.ErrConflict) || errors.Is(err, config.ErrExists) || errors.Is(err, config.ErrNotFound)
		if !raced {
			c.metrics.errors.Inc()
			if it.refusal != err.Error() {
				c.log.Warn("the entry of a workload cannot be written; retrying", "namespace", key.Namespace, "name", key.Name, "err", err)
			}
			it.refusal = err.Error()
		}
		if it.failures++; raced {
			it.failures = min(it.failures, 4) // the store responds, but has a newer version
		}
		again = pause(it.failures)
	} else {
		it.failures = 0
	}
	switch {
	case again > 0:
		c.queue.AddAfter(key, again)
	case len(it.conns) == 0 && !it.named && it.claim == "":
		delete(c.work, key)
	}
}

// pause returns the delay before the next attempt, with jitter.
func pause(failures int) time.Duration {
	d := min(firstPause<<min(failures-1, 16), longPause)
	return d/2 + rand.N(d)
}
