// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// profileTime is how long the control plane's CPU is profiled from the time at
// which the proxies connect.
const profileTime = 5 * time.Second

// profiles takes profiles of a control plane into a directory; the zero value
// takes none.
type profiles struct{ dir, name string }

// cpu profiles the CPU for profileTime from now; the result waits until it is
// over.
func (p profiles) cpu(ctx context.Context) (wait func() error) {
	if p.dir == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		done <- p.take(ctx, "cpu", fmt.Sprintf("profile?seconds=%d", profileTime/time.Second))
	}()
	return func() error { return <-done }
}

// memory takes what is on the heap, the stacks of all goroutines, the runtime's
// own figures and what the kernel says of the process's memory.
func (p profiles) memory(ctx context.Context, pid int) error {
	if p.dir == "" {
		return nil
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return fmt.Errorf("read the memory map of process %d: %w", pid, err)
	}
	return errors.Join(
		writeFile(filepath.Join(p.dir, p.name+".smaps"), string(data)),
		p.take(ctx, "heap", "heap"), p.take(ctx, "goroutines", "goroutine?debug=1"), p.take(ctx, "memstats", "heap?debug=1"))
}

// take saves one profile.
func (p profiles) take(ctx context.Context, kind, query string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+controlHost+":15014/debug/pprof/"+query, nil)
	if err != nil {
		return fmt.Errorf("profile of %s: %w", kind, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("profile of %s: %w", kind, err)
	}
	data, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return fmt.Errorf("profile of %s: %w", kind, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile of %s: the control plane answers %s: %s", kind, resp.Status, strings.TrimSpace(string(data)))
	}
	return writeFile(filepath.Join(p.dir, p.name+"."+kind), string(data))
}
