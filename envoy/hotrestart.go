// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	defaultTakeover = time.Minute
	// takeoverPoll is how often a new Envoy is asked whether it has taken over.
	takeoverPoll = 20 * time.Millisecond
	// settleTime is how long a drain waits for a takeover that is on its way.
	settleTime = 2 * time.Second
	// retirement is how much longer than it should the old Envoy may take to end.
	retirement = 10 * time.Second
	// firstRetry grows up to lastRetry: an Envoy that has lost its admin port
	// to one that failed is replaced without being asked.
	firstRetry = time.Minute
	lastRetry  = 16 * time.Minute
)

// The values of the label result.
const (
	resultOK      = "ok"
	resultRefused = "refused"
	resultFailed  = "failed"
	resultUnready = "unready"
)

// HotRestart says how an Envoy takes over from the one before it.
type HotRestart struct {
	// Sockets is the path with which the names of the Unix sockets begin by which
	// two Envoys speak. Its directory belongs to the agent alone. Empty: no hot restarts.
	Sockets string
	// Drain is how long the old Envoy goes on with its connections; whole seconds, at least one.
	Drain time.Duration
	// Timeout bounds a takeover, from the start of the new Envoy. 0: one minute.
	Timeout time.Duration
	// Possible names what a hot restart has to wait for, such as a control plane
	// that is away; nil when there is nothing. Optional.
	Possible func() error
}

// hotRestarts is the state of the hot restarts.
type hotRestarts struct {
	HotRestart
	// requests holds the reason of the one that waits for its turn.
	requests chan string
	// next is the Envoy that is about to take over, nil if there is none.
	next atomic.Pointer[successor]
}

// successor is an Envoy that starts to take over.
type successor struct {
	*child
	refusal atomic.Pointer[string] // why the agent has ended it
	over    chan struct{}          // closed when it serves, or never will
}

func newHotRestarts(cfg *Config) (*hotRestarts, error) {
	h := &hotRestarts{HotRestart: cfg.HotRestart, requests: make(chan string, 1)}
	if h.Sockets == "" {
		return nil, nil
	}
	switch {
	case len(h.Sockets) > maxSockets:
		return nil, fmt.Errorf("hot restart: the path of envoy's sockets, %s, has %d characters, but %d is the most: use a shorter configPath", h.Sockets, len(h.Sockets), maxSockets)
	case strings.ContainsAny(h.Sockets, "{}"):
		return nil, fmt.Errorf("hot restart: the path of envoy's sockets, %s, holds a brace, which envoy does not understand: use another configPath", h.Sockets)
	case cfg.Admin == nil:
		return nil, errors.New("hot restart needs envoy's admin port: without it nobody can tell when an envoy has taken over")
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

// prepare removes what an agent left that was killed, and checks what Envoy needs.
func (h *hotRestarts) prepare() error {
	if info, err := os.Stat("/dev/shm"); err != nil || !info.IsDir() {
		return errors.New("hot restart needs the directory /dev/shm, in which envoy keeps memory that its processes share: mount one, or leave out --hot-restart")
	}
	h.clean()
	return nil
}

func (h *hotRestarts) clean() { cleanSockets(h.Sockets) }

func (h *hotRestarts) newLine() (*line, error) { return newLine(h.Sockets, h.Drain) }

// HotRestart asks for a new Envoy that takes over from the one that runs. One
// can wait while another is under way. It tells whether that is so: not, when
// one waits already, nor when the configuration has no HotRestart.
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

// Rejected says that the Envoy with a process id rejects what others accept. One
// that is about to take over is ended, for then the old one goes on.
func (p *Process) Rejected(pid int, typeURL, reason string) {
	if p.hot == nil {
		return
	}
	next := p.hot.next.Load()
	if next == nil || next.process.Pid != pid {
		return
	}
	// Once it has taken over it is all there is.
	if starting, known := next.line.initializing(); known && !starting {
		return
	}
	text := fmt.Sprintf("it rejected %s, which the old one has accepted: %s", typeURL, reason)
	next.refusal.CompareAndSwap(nil, &text)
	p.signal(next.child, syscall.SIGKILL)
}

// settle waits for a takeover that is on its way, for a while.
func (p *Process) settle() {
	if p.hot == nil {
		return
	}
	if next := p.hot.next.Load(); next != nil {
		wait(settleTime, next.over, p.cfg.Drain.Now)
	}
}

// attempt is a hot restart under way.
type attempt struct {
	cancel context.CancelFunc
	result chan outcome
}

// serve watches over an Envoy and those that take over from it, until the last
// one has ended.
func (p *Process) serve(ctx, beside context.Context, c *child) error {
	var (
		under   *attempt // nil: none
		retired = make(chan struct{})
		retry   <-chan time.Time // set while the admin port is lost
		delays  = backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstRetry), backoff.WithMaxInterval(lastRetry), backoff.WithMaxElapsedTime(0))
	)
	close(retired) // there is no old one
	for {
		var requests <-chan string
		var result <-chan outcome
		var gone <-chan struct{}
		switch {
		case under != nil:
			result = under.result
		case closed(retired):
			requests = p.hot.requests
		default:
			gone = retired
		}
		// The one that serves ended; the agent ends, or at once; a hot restart is
		// asked for, or the old one has gone so that one may be; one is over; the
		// admin port should come back.
		select {
		case <-c.ended:
			// Another one may have taken over a moment ago, although this is not
			// known yet.
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
			p.HotRestart("envoy's admin port was lost to one that failed to take over")
		}
	}
}

// attempt begins a hot restart.
func (p *Process) attempt(beside context.Context, c *child, reason string) *attempt {
	p.cfg.Logger.Info("a hot restart of envoy is asked for", "reason", reason, "pid", c.process.Pid)
	ctx, cancel := context.WithCancel(beside)
	a := &attempt{cancel: cancel, result: make(chan outcome, 1)}
	p.beside.Go(func() {
		defer cancel()
		a.result <- p.takeOver(ctx, c)
	})
	return a
}

// abandon ends a hot restart that is under way, if there is one.
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

// settled waits a moment for a hot restart that is under way, because the agent or
// the Envoy that serves ends. It returns the Envoy that serves, as switchTo does.
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

// over notes that nobody is about to take over any more.
func (p *Process) over() {
	if next := p.hot.next.Swap(nil); next != nil {
		close(next.over)
	}
}

// switchTo draws the conclusion of a hot restart: which Envoy serves now, and, if
// it is another one, a channel that is closed when the old one has gone.
func (p *Process) switchTo(beside context.Context, c *child, out outcome) (*child, chan struct{}) {
	defer p.over()
	log := p.cfg.Logger
	switch {
	case out.next == nil && closed(c.ended):
		log.Error("the hot restart failed, and the old envoy has ended", "err", out.err, "pid", c.process.Pid)
	case out.next == nil && c.held.Load():
		log.Error("the hot restart failed: the old envoy goes on, but without its admin port, so without metrics and without notice when it drains; another one is tried", "err", out.err, "pid", c.process.Pid)
	case out.next == nil:
		log.Error("the hot restart failed: the old envoy goes on as before", "err", out.err, "pid", c.process.Pid)
	case out.result == resultFailed:
		log.Error("the new envoy had taken over, but has ended", "err", out.err, "pid", out.next.process.Pid)
	case out.result == resultUnready:
		log.Error("the new envoy has taken over, but is not ready", "err", out.err, "pid", out.next.process.Pid)
	default:
		log.Info("the new envoy has taken over, the old one drains", "pid", out.next.process.Pid, "duration", out.took)
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
