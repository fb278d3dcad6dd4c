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
	// atOnce is how many probes may be on their way.
	atOnce = 64
	// probeTime bounds one probe.
	probeTime = 10 * time.Second
)

// Load asks a URL again and again, as kubelets do: over HTTP/1.1, with a
// connection for each probe.
type Load struct {
	// URL is an http URL, with an address and a port.
	URL string
	// Rate is how many probes to begin in a second. 0: one after the other.
	Rate int
	// Duration is for how long.
	Duration time.Duration
}

// Outcome is what came of a Load.
type Outcome struct {
	// Sent counts the probes; fewer than asked for when the machine is too slow.
	Sent int
	// Failed counts those without the status 200; Failure is one of them.
	Failed  int
	Failure error
	// P50 and P99 are times of one probe.
	P50, P99 time.Duration
}

// Run sends the load. An error says that it could not be sent at all.
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
		mu    sync.Mutex // guards what follows
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

// one sends a probe. It does so by hand: a client of net/http would cost more
// than what is measured.
func one(ctx context.Context, address string, request []byte) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // what counts was read
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

// OpenFiles counts what a process has open: files, sockets, pipes. It is
// for Linux.
func OpenFiles(pid int) (int, error) {
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		return 0, fmt.Errorf("count the open files of the process %d: %w", pid, err)
	}
	return len(entries), nil
}
