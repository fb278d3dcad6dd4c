// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// atOnce is the maximum number of concurrent probes.
	atOnce = 64
	// probeTime is the timeout of one probe.
	probeTime = 10 * time.Second
)

// Load sends requests to a URL repeatedly, like kubelets: over HTTP/1.1, with a new connection for
// each probe.
type Load struct {
	// URL is an http URL, with an address and a port.
	URL string
	// Rate is the number of probes started per second. 0 means sequential probes.
	Rate int
	// Duration is the duration of the load.
	Duration time.Duration
}

// Outcome is the result of a Load.
type Outcome struct {
	// Sent counts the probes. It is lower than requested if the machine is too slow.
	Sent int
	// Failed counts the probes without status 200; Failure is one of their errors.
	Failed  int
	Failure error
	// P50 and P99 are percentiles of the duration of a probe.
	P50, P99 time.Duration
}

// Run generates the load. It returns an error if the load could not be generated.
func (l Load) Run(ctx context.Context) (Outcome, error) {
	u, err := url.Parse(l.URL)
	if err != nil {
		return Outcome{}, fmt.Errorf("read the URL of the load: %w", err)
	}
	if u.Scheme != "http" || u.Port() == "" {
		return Outcome{}, fmt.Errorf("the URL of the load is %q: use one of http with a port", l.URL)
	}
	request := []byte("GET " + u.RequestURI() + " HTTP/1.1\r\nHost: " + u.Host + "\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n\r\n")
	workers := atOnce
	if l.Rate == 0 {
		workers = 1
	}
	var (
		wait  sync.WaitGroup
		next  atomic.Int64
		mu    sync.Mutex // guards the variables below
		out   Outcome
		times []time.Duration
	)
	begin := time.Now()
	for range workers {
		wait.Go(func() {
			var own []time.Duration
			var failed []error
			for {
				due := begin
				if l.Rate > 0 {
					due = begin.Add(time.Duration(next.Add(1)-1) * time.Second / time.Duration(l.Rate))
				}
				if due.Sub(begin) >= l.Duration || time.Since(begin) >= l.Duration || !sleepUntil(ctx, due) {
					break
				}
				at := time.Now()
				if err := one(ctx, u.Host, request); err != nil {
					failed = append(failed, err)
				}
				own = append(own, time.Since(at))
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, own...)
			out.Failed += len(failed)
			out.Failure = errors.Join(append(failed[:min(len(failed), 1)], out.Failure)...)
		})
	}
	wait.Wait()
	slices.Sort(times)
	if out.Sent = len(times); out.Sent > 0 {
		out.P50, out.P99 = times[len(times)/2], times[len(times)*99/100]
	}
	return out, ctx.Err()
}

func sleepUntil(ctx context.Context, at time.Time) bool {
	left := time.Until(at)
	if left <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// one sends a probe. It does not use net/http, whose client would cost more than what is measured.
func one(ctx context.Context, address string, request []byte) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // everything needed has been read
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write(request); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(answer, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("%s answered %.300q", address, answer)
	}
	return nil
}

// OpenFiles returns the number of open files, sockets and pipes of a process. It supports Linux
// only.
func OpenFiles(pid int) (int, error) {
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		return 0, fmt.Errorf("count the open files of the process %d: %w", pid, err)
	}
	return len(entries), nil
}
