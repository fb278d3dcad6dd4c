// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// get prints the response to one request. It fails unless the status is 200.
func get(ctx context.Context, url string) error {
	body, err := request(ctx, http.DefaultClient, url)
	if err == nil {
		_, err = os.Stdout.Write(body)
	}
	return err
}

// request returns the body of a response. The connection is closed after a request for /once.
func request(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Close = strings.HasSuffix(url, "/once")
	response, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", response.Status, body)
	}
	return body, err
}

// ask requests the parameter url for its callers, from this Pod. The status is 502 if the request
// fails.
func ask(address string) error {
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := request(r.Context(), http.DefaultClient, r.URL.Query().Get("url"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		_, _ = w.Write(body) // the test retries
	}))
}

// result is the current result of a load.
type result struct {
	Sent, Done, Failed int
	Errors             []string // the first ones, with their times
}

const (
	maxErrors = 20
	maxOpen   = 500 // requests at once
)

// load waits until a request succeeds, then sends requests at a rate until it exits, and serves the
// result as JSON on an address.
func load(ctx context.Context, url, rate, address string) error {
	perSecond, err := strconv.Atoi(rate)
	if err != nil || perSecond <= 0 {
		return fmt.Errorf("the rate is %q, want a positive number", rate)
	}
	var mu sync.Mutex
	var so result
	go func() {
		fail(http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			_ = json.NewEncoder(w).Encode(so)
		})))
	}()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: maxOpen}, Timeout: 5 * time.Minute}
	for ctx.Err() == nil { // the first requests may precede their route
		if _, err := request(ctx, client, url); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	open := make(chan struct{}, maxOpen)
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		open <- struct{}{}
		mu.Lock()
		so.Sent++
		mu.Unlock()
		go func() {
			defer func() { <-open }()
			began := time.Now()
			_, err := request(context.WithoutCancel(ctx), client, url)
			mu.Lock()
			defer mu.Unlock()
			so.Done++
			if err == nil {
				return
			}
			so.Failed++
			if len(so.Errors) < maxErrors {
				so.Errors = append(so.Errors, fmt.Sprintf("%s after %s: %v", began.Format("15:04:05.000"), time.Since(began), err))
			}
		}()
	}
	return nil
}
