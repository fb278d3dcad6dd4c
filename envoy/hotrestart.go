// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	defaultTakeover = time.Minute
	// takeoverPoll is the interval at which a new Envoy is asked whether it has taken over.
	takeoverPoll = 20 * time.Millisecond
	// settleTime is how long a drain waits for a takeover in progress.
	settleTime = 2 * time.Second
	// retirement is the extra time that the old Envoy may take to exit.
	retirement = 10 * time.Second
	// firstRetry doubles up to lastRetry. It is the delay before replacing an Envoy that lost its
	// admin port to a failed successor. This replacement needs no request.
	firstRetry = time.Minute
	lastRetry  = 16 * time.Minute
)

// Values of the result label.
const (
	resultOK      = "ok"
	resultRefused = "refused"
	resultFailed  = "failed"
	resultUnready = "unready"
)

// HotRestart configures how an Envoy takes over from the previous one.
type HotRestart struct {
	// Sockets is the path prefix of the Unix sockets through which two Envoys communicate. Only the
	// agent may have access to its directory. If empty, hot restart is disabled.
	Sockets string
	// Drain is how long the old Envoy keeps serving its connections: whole seconds, at least one.
	Drain time.Duration
	// Timeout limits the duration of a takeover, from the start of the new Envoy. 0 means one
	// minute.
	Timeout time.Duration
	// Possible returns an error that names what a hot restart must wait for, such as an unreachable
	// control plane, or nil if it can proceed. Optional.
	Possible func() error
}

// hotRestarts is the state of hot restarts.
type hotRestarts struct {
	HotRestart
	// requests contains the reason of the pending request.
	requests chan string
	// handOver contains the pending request to leave Envoy to the next program.
	handOver chan struct{}
	// inherited is the Envoy of the program before this one until it is supervised, or nil.
	inherited *child
	// next is the Envoy that is starting to take over, or nil.
	next atomic.Pointer[successor]
}

// successor is an Envoy that has been started to take over.
type successor struct {
	*child
	refusal atomic.Pointer[string] // why the agent killed it
	over    chan struct{}          // closed when it serves or has failed to
}

func newHotRestarts(cfg *Config) (*hotRestarts, error) {
	h := &hotRestarts{HotRestart: cfg.HotRestart, requests: make(chan string, 1), handOver: make(chan struct{}, 1)}
	if h.Sockets == "" {
		return nil, nil
	}
	switch {
	case len(h.Sockets) > maxSockets:
		return nil, fmt.Errorf("hot restart: the path of envoy's sockets, %s, has %d characters; at most %d are allowed: use a shorter configPath", h.Sockets, len(h.Sockets), maxSockets)
	case strings.ContainsAny(h.Sockets, "{}"):
		return nil, fmt.Errorf("hot restart: the path of envoy's sockets, %s, contains a brace, which envoy does not support: use another configPath", h.Sockets)
	case cfg.Admin == nil:
		return nil, errors.New("hot restart needs envoy's admin port: without it the agent cannot detect when an envoy has taken over")
	case h.Drain < 0 || h.Timeout < 0:
		return nil, errors.New("hot restart: a duration is negative: use 0 or more")
	}
	h.Drain = max(h.Drain.Truncate(time.Second), time.Second)
	if h.Timeout == 0 {
		h.Timeout = defaultTakeover
	}
	if h.Possible == nil {
		h.Possible = func() error { return nil }
	}
	return h, nil
}

// prepare finds the Envoy of the program before this one, or removes the files of a killed agent. It
// checks Envoy's requirements.
func (h *hotRestarts) prepare(stdout, stderr io.Writer) error {
	if info, err := os.Stat("/dev/shm"); err != nil || !info.IsDir() {
		return errors.New("hot restart needs the directory /dev/shm, in which envoy keeps memory that its processes share: mount one, or remove --hot-restart")
	}
	if h.inherited = h.inherit(stdout, stderr); h.inherited == nil {
		h.clean()
	}
	return nil
}

func (h *hotRestarts) clean() { cleanSockets(h.Sockets) }

func (h *hotRestarts) newLine() (*line, error) { return newLine(h.Sockets, h.Drain) }

// HotRestart requests a new Envoy that takes over from the running one. One request can be pending
// while a hot restart is in progress. HotRestart returns false if a request is already pending or
// hot restart is not configured.
func (p *Process) HotRestart(reason string) bool {
	if p.hot == nil {
		return false
	}
	select {
	case p.hot.requests <- reason:
		return true
	default:
		return false
	}
}

// Rejected reports that the Envoy with this process id rejected configuration that other proxies
// accept. If this Envoy has not taken over yet, it is killed and the old one keeps serving.
func (p *Process) Rejected(pid int, typeURL, reason string) {
	if p.hot == nil {
		return
	}
	next := p.hot.next.Load()
	if next == nil || next.process.Pid != pid {
		return
	}
	// After the takeover, it is the only Envoy.
	if starting, known := next.line.initializing(); known && !starting {
		return
	}
	text := fmt.Sprintf("it rejected %s, which the old one had accepted: %s", typeURL, reason)
	next.refusal.CompareAndSwap(nil, &text)
	p.signal(next.child, syscall.SIGKILL)
}

// settle waits up to settleTime for a takeover in progress.
func (p *Process) settle() {
	if p.hot == nil {
		return
	}
	if next := p.hot.next.Load(); next != nil {
		wait(settleTime, next.over, p.cfg.Drain.Now)
	}
}

// attempt is a hot restart in progress.
type attempt struct {
	cancel context.CancelFunc
	result chan outcome
}

// serve supervises an Envoy and its successors until the last one has exited.
func (p *Process) serve(ctx, beside context.Context, c *child) error {
	var (
		under   *attempt // nil if none is in progress
		retired = make(chan struct{})
		retry   <-chan time.Time // set while the admin port is lost
		delays  = backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstRetry), backoff.WithMaxInterval(lastRetry), backoff.WithMaxElapsedTime(0))
	)
	close(retired) // initially there is no old Envoy
	for {
		var requests <-chan string
		var handOver <-chan struct{}
		var result <-chan outcome
		var gone <-chan struct{}
		switch {
		case under != nil:
			result = under.result
		case closed(retired):
			requests, handOver = p.hot.requests, p.hot.handOver
		default:
			gone = retired
		}
		// Events: the serving Envoy exited; the agent shuts down, gracefully or at once; a hot
		// restart was requested, or is possible now that the old Envoy has exited; so is a handover;
		// a hot restart completed; it is time to retry after losing the admin port.
		select {
		case <-c.ended:
			// A successor may have taken over a moment ago without its result having arrived yet.
			next, done := p.settled(beside, c, under)
			if next == c {
				return p.ended(c)
			}
			c, under, retired = next, nil, done
			delays.Reset()
		case <-ctx.Done():
			c, _ = p.settled(beside, c, under)
			return p.stop(ctx, c)
		case <-p.cfg.Drain.Now:
			p.abandon(under)
			return p.stop(ctx, c)
		case reason := <-requests:
			under, retry = p.attempt(beside, c, reason), nil
		case <-handOver:
			return ErrHandedOver
		case <-gone:
		case out := <-result:
			under = nil
			next, done := p.switchTo(beside, c, out)
			if next != c {
				c, retired = next, done
				delays.Reset()
			} else if c.held.Load() {
				retry = time.After(delays.NextBackOff())
			}
		case <-retry:
			retry = nil
			p.HotRestart("envoy's admin port was lost to a new envoy that failed to take over")
		}
	}
}

// attempt begins a hot restart.
func (p *Process) attempt(beside context.Context, c *child, reason string) *attempt {
	p.cfg.Logger.Info("hot restart of envoy requested", "reason", reason, "pid", c.process.Pid)
	ctx, cancel := context.WithCancel(beside)
	a := &attempt{cancel: cancel, result: make(chan outcome, 1)}
	p.beside.Go(func() {
		defer cancel()
		a.result <- p.takeOver(ctx, c)
	})
	return a
}

// abandon cancels the hot restart in progress, if there is one.
func (p *Process) abandon(a *attempt) {
	if a == nil {
		return
	}
	a.cancel()
	out := <-a.result
	p.over()
	if out.next != nil && !closed(out.next.ended) {
		p.signal(out.next, syscall.SIGKILL)
		<-out.next.ended
	}
}

// settled waits briefly for the hot restart in progress, because the agent or the serving Envoy is
// terminating. It returns the Envoy that serves, like switchTo.
func (p *Process) settled(beside context.Context, c *child, a *attempt) (*child, chan struct{}) {
	if a == nil {
		return c, nil
	}
	if p.hot.next.Load() == nil {
		a.cancel()
	}
	timer := time.AfterFunc(settleTime, a.cancel)
	defer timer.Stop()
	return p.switchTo(beside, c, <-a.result)
}

// over records that no Envoy is starting to take over any more.
func (p *Process) over() {
	if next := p.hot.next.Swap(nil); next != nil {
		close(next.over)
	}
}

// switchTo handles the outcome of a hot restart. It returns the Envoy that serves now and, if that
// is a new one, a channel that is closed when the old one has exited.
func (p *Process) switchTo(beside context.Context, c *child, out outcome) (*child, chan struct{}) {
	defer p.over()
	log := p.cfg.Logger
	switch {
	case out.next == nil && closed(c.ended):
		log.Error("the hot restart failed, and the old envoy has exited", "err", out.err, "pid", c.process.Pid)
	case out.next == nil && c.held.Load():
		log.Error("the hot restart failed: the old envoy keeps serving, but without its admin port, so without metrics and drain notice; retrying", "err", out.err, "pid", c.process.Pid)
	case out.next == nil:
		log.Error("the hot restart failed: the old envoy keeps serving", "err", out.err, "pid", c.process.Pid)
	case out.result == resultFailed:
		log.Error("the new envoy took over, but has exited", "err", out.err, "pid", out.next.process.Pid)
	case out.result == resultUnready:
		log.Error("the new envoy has taken over, but is not ready", "err", out.err, "pid", out.next.process.Pid)
	default:
		log.Info("the new envoy has taken over; the old one is draining", "pid", out.next.process.Pid, "duration", out.took)
	}
	p.hotRestarts.WithLabelValues(out.result).Inc()
	if out.next == nil {
		return c, nil
	}
	p.current.Store(out.next)
	if p.Draining() {
		p.beside.Go(func() { p.drainAgain(beside, out.next) })
	}
	gone := make(chan struct{})
	p.beside.Go(func() {
		defer close(gone)
		p.retire(beside, c, out)
	})
	return out.next, gone
}
