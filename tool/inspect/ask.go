// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	maxAnswer  = 64 << 20 // bytes
	atOnce     = 16       // maximum number of concurrent requests
	maxErrText = 500      // bytes of an error response
)

// answer is the response of one control plane.
type answer[T any] struct {
	address string
	value   T
	err     error
}

// ask queries control planes concurrently. The answers are in the order of the addresses.
func ask[T any](ctx context.Context, addresses []string, path string, query url.Values, timeout time.Duration) []answer[T] {
	// Use no proxy: the request is meant for this particular control plane.
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	out := make([]answer[T], len(addresses))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, address := range addresses {
		g.Go(func() error {
			out[i].address = address
			out[i].err = get(ctx, client, address, path, query, &out[i].value)
			return nil
		})
	}
	_ = g.Wait() // each answer has its own error
	return out
}

func get(ctx context.Context, client *http.Client, address, path string, query url.Values, into any) error {
	base := address
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return fmt.Errorf("%q is no address: write host:port", address)
	}
	u = u.JoinPath("debug", path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("%q is no address: %w", address, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer: %w", err)
	case resp.StatusCode != http.StatusOK:
		text := strings.TrimSpace(string(body[:min(len(body), maxErrText)]))
		if resp.StatusCode == http.StatusNotFound && strings.HasPrefix(text, "404 page") {
			text = "nothing at " + u.Path + ": it is no control plane of outrigger, or ENABLE_DEBUG_ON_HTTP is false there"
		}
		return fmt.Errorf("it answers %d: %s", resp.StatusCode, text)
	case len(body) > maxAnswer:
		return fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("read the answer of %s: %w", u.Host, err)
	}
	return nil
}
