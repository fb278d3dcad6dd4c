// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	firstBackoff  = 500 * time.Millisecond
	backoffGrowth = 1.5
	backoffJitter = 0.5
)

// fetchHTTP downloads a module over http or https and retries if that may help.
func (c *Cache) fetchHTTP(ctx context.Context, r request) (moduleKey, error) {
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(c.pause),
		backoff.WithMultiplier(backoffGrowth), backoff.WithRandomizationFactor(backoffJitter), backoff.WithMaxElapsedTime(0))
	tries := backoff.WithContext(backoff.WithMaxRetries(pause, uint64(c.cfg.HTTPMaxAttempts-1)), ctx)
	attempt := 0
	d, err := backoff.RetryNotifyWithData(func() (*download, error) {
		attempt++
		return c.attempt(ctx, r)
	}, tries, func(err error, wait time.Duration) {
		c.log.Debug("retrying the download of a Wasm module", "address", r.shown(), "attempt", attempt, "duration", wait, "err", err)
	})
	if err != nil {
		return moduleKey{}, &fetchError{downloadFailure, fmt.Errorf("attempt %d of %d: %w", attempt, c.cfg.HTTPMaxAttempts, err)}
	}
	return c.keep(r, d)
}

// attempt sends one request for a module and reads the body.
func (c *Cache) attempt(ctx context.Context, r request) (*download, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.HTTPTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url.String(), http.NoBody)
	if err != nil {
		return nil, backoff.Permanent(errors.New("the module's URL is invalid"))
	}
	req.Header.Set("User-Agent", userAgent)
	resp, err := c.net.client().Do(req)
	if err != nil {
		if errors.Is(err, errRefused) {
			return nil, backoff.Permanent(withoutURL(err))
		}
		return nil, withoutURL(err)
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	if resp.StatusCode != http.StatusOK {
		err := fmt.Errorf("the server returned %s", resp.Status)
		if !worthRetry(resp.StatusCode) {
			return nil, backoff.Permanent(err)
		}
		return nil, err
	}
	body := &tracked{r: resp.Body}
	inner, err := c.unwrap(body)
	if err != nil {
		return nil, body.verdict(err)
	}
	d, err := c.receive(inner)
	if err != nil {
		return nil, body.verdict(err)
	}
	return d, nil
}

// worthRetry reports whether a retry after this status may succeed.
func worthRetry(code int) bool {
	switch code {
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported, http.StatusNetworkAuthenticationRequired:
		return false
	case http.StatusTooManyRequests:
		return true
	}
	return code >= http.StatusInternalServerError
}

// withoutURL removes the URL, which may contain a token, from an error of net/http.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// tracked records whether reading failed. In that case a retry may help, but not if the complete
// data is not a module.
type tracked struct {
	r   io.Reader
	err error
}

func (t *tracked) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		t.err = err
	}
	return n, err
}

func (t *tracked) verdict(err error) error {
	if t.err != nil {
		return fmt.Errorf("read the module: %w", t.err)
	}
	return backoff.Permanent(err)
}
