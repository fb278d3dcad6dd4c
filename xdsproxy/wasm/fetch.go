// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// fetchError is a failed download with the value of the metric's result label.
type fetchError struct {
	result string
	err    error
}

func (e *fetchError) Error() string { return e.err.Error() }
func (e *fetchError) Unwrap() error { return e.err }

const maxReason = 1 << 10

var errStopped = errors.New("the agent ends")

// get returns the requested module from the cache or from its origin.
func (c *Cache) get(ctx context.Context, r request) (moduleKey, error) {
	k, hit := c.store.lookup(r)
	if hit {
		c.metrics.lookups.WithLabelValues("true").Inc()
		c.store.serve(r, k)
		return k, nil
	}
	c.metrics.lookups.WithLabelValues("false").Inc()
	if r.noSecret {
		return k, errors.New("the plugin's pull secret does not exist; create it in the plugin's namespace")
	}
	if err := c.failedLately(r); err != nil {
		return k, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	answer := c.flights.DoChan(r.flight(), func() (any, error) { return c.fly(ctx, r) })
	select {
	case a := <-answer:
		if a.Err != nil {
			return k, a.Err
		}
		k, _ = a.Val.(moduleKey)
		c.store.serve(r, k)
		return k, nil
	case <-ctx.Done():
		// Requests may have different timeouts: the download continues.
		return k, fmt.Errorf("fetch %s: no answer within %s: %w", r.shown(), r.timeout, ctx.Err())
	}
}

// fly downloads a module for all requests that wait for it. The download continues if the stream
// ends, because Envoy reconnects and requests it again.
func (c *Cache) fly(ctx context.Context, r request) (moduleKey, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
	defer cancel()
	if !c.enter(r.flight(), cancel) {
		return moduleKey{}, errStopped
	}
	defer c.leave(r.flight())
	if k, ok := c.store.lookup(r); ok {
		return k, nil // another download has just completed
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return moduleKey{}, fmt.Errorf("fetch %s: other downloads took all of its %s: %w", r.shown(), r.timeout, ctx.Err())
	}
	start := time.Now()
	k, err := c.download(ctx, r)
	result := fetched
	if err != nil {
		result = fetchFailure
		var f *fetchError
		if errors.As(err, &f) {
			result = f.result
		}
		err = brief(fmt.Errorf("fetch %s: %w", r.shown(), err))
		c.failed(r, err)
	} else {
		c.store.serve(r, k)
		c.log.Info("a Wasm module was fetched", "address", r.shown(), "path", c.store.path(k), "duration", time.Since(start))
	}
	c.metrics.fetches.WithLabelValues(result).Inc()
	return k, err
}

func (c *Cache) download(ctx context.Context, r request) (moduleKey, error) {
	switch r.url.Scheme {
	case "oci":
		return c.fetchImage(ctx, r)
	case "file":
		return c.fetchFile(r)
	default:
		return c.fetchHTTP(ctx, r)
	}
}

// keep adds a module to the cache under the checksum of its file.
func (c *Cache) keep(r request, d *download) (moduleKey, error) {
	k := moduleKey{Module: digest(r.module), Checksum: d.sha256}
	if r.checksum != "" && r.checksum != d.sha256 {
		d.discard()
		return k, &fetchError{checksumMismatch, fmt.Errorf("the module's sha256 is %s, want %s", d.sha256, r.checksum)}
	}
	return k, c.add(d, k)
}

func (c *Cache) add(d *download, k moduleKey) error {
	if err := c.store.add(d, k); err != nil {
		d.discard()
		return fmt.Errorf("keep the module: %w", err)
	}
	return nil
}

// brief shortens an error: it may contain a server's response, and is logged and sent to the
// control plane.
func brief(err error) error {
	s := strings.ToValidUTF8(err.Error(), "?")
	if len(s) <= maxReason {
		return err
	}
	return errors.New(clip.Start(s, maxReason) + " [...]")
}

// enter registers a download. It returns false on shutdown.
func (c *Cache) enter(key string, cancel context.CancelFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.running[key] = cancel
	c.downs.Add(1)
	return true
}

func (c *Cache) leave(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, key)
	c.downs.Done()
}

// failed records a failed download.
func (c *Cache) failed(r request, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for key, f := range c.failures {
		if now.After(f.until) || len(c.failures) >= maxFailures {
			delete(c.failures, key)
		}
	}
	c.failures[r.flight()+r.version] = failure{err: err, until: now.Add(failureTTL)}
}

// failedLately returns the error of a recent failed download. It returns nil if the plugin has been
// modified since, so that it is retried immediately.
func (c *Cache) failedLately(r request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.failures[r.flight()+r.version]
	if !ok || time.Now().After(f.until) {
		return nil
	}
	return fmt.Errorf("%w (retry in %s)", f.err, time.Until(f.until).Round(time.Second))
}
