// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// rehearsalTimeout limits the checks of a new binary before it is started.
	rehearsalTimeout = 30 * time.Second
	// askTimeout is the timeout of one request to the admin port during a takeover.
	askTimeout = time.Second
	// adminPatience is how long requests to a slow admin port are retried.
	adminPatience = time.Minute
)

// outcome is the result of a hot restart.
type outcome struct {
	next   *child // the Envoy that serves now, or nil if it is the old one
	result string // value of the metric's label
	err    error
	took   time.Duration
	// since is a time at which it had not taken over yet.
	since time.Time
}

// takeOver starts a new Envoy that takes over from c. It first checks everything that can be
// checked, because the new Envoy shuts down the admin port of the old one early: after reading its
// bootstrap, before it has any configuration. The old Envoy stops accepting connections much later,
// when the workers of the new one start to accept. That is the point of no return.
func (p *Process) takeOver(ctx context.Context, c *child) outcome {
	refused := func(err error) outcome { return outcome{result: resultRefused, err: err} }
	if err := p.possible(ctx, c); err != nil {
		return refused(err)
	}
	if err := p.rehearse(ctx, c); err != nil {
		return refused(err)
	}
	if p.Draining() {
		return refused(errDraining)
	}
	begin := time.Now()
	c.held.Store(true)
	child, err := p.start(c.line, c.epoch+1)
	if err != nil {
		c.held.Store(false)
		return outcome{result: resultFailed, err: err}
	}
	next := &successor{child: child, over: make(chan struct{})}
	p.hot.next.Store(next)
	p.cfg.Logger.Info("envoy started", "pid", child.process.Pid, "path", p.cfg.Binary)
	ready, since, err := p.awaitTakeover(ctx, c, next)
	if err != nil {
		out := p.fellThrough(ctx, c, next, err)
		out.since = begin
		return out
	}
	out := outcome{next: child, result: resultOK, err: ready.Err(), took: time.Since(begin), since: since}
	if out.err != nil {
		out.result = resultUnready
	} else {
		child.ready.Store(true)
	}
	return out
}

var errDraining = errors.New("envoy is draining: it is about to exit")

// possible waits until nothing prevents a hot restart.
func (p *Process) possible(ctx context.Context, c *child) error {
	logged := ""
	for {
		if p.Draining() {
			return errDraining
		}
		reason := p.hot.Possible()
		if reason == nil {
			reason = p.Ready(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case closed(c.ended):
			return errors.New("the old envoy has exited")
		}
		if reason == nil {
			return nil
		}
		if reason.Error() != logged {
			logged = reason.Error()
			p.cfg.Logger.Warn("the hot restart waits", "reason", logged)
		}
		wait(pollEvery, c.ended, ctx.Done())
	}
}

// rehearse performs all checks of the new binary that do not require starting it as a proxy.
func (p *Process) rehearse(ctx context.Context, c *child) error {
	version, err := CheckVersion(ctx, p.cfg.Binary, p.cfg.AllowUnsafe)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rehearsalTimeout)
	defer cancel()
	running, err := c.line.version()
	if err != nil {
		return err
	}
	out, err := p.ask(ctx, "--hot-restart-version")
	if err != nil {
		return err
	}
	if speaks := strings.TrimSpace(out); speaks != running {
		return fmt.Errorf("envoy %s at %s cannot take over: its hot restart version is %s, that of the running one is %s; restart the agent instead", version, p.cfg.Binary, speaks, running)
	}
	_, err = p.ask(ctx, slices.Concat(p.cfg.Args, []string{"--disable-hot-restart", "--mode", "validate"})...)
	return err
}

// ask runs the binary with arguments that make it print something and exit, and returns the output.
func (p *Process) ask(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, p.cfg.Binary, args...)
	cmd.Dir, cmd.Env = p.cfg.Dir, append(cmd.Environ(), p.cfg.Env...)
	out, err := answer(cmd)
	if err == nil {
		return string(out), nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	last := strings.TrimSpace(string(out))
	last = last[strings.LastIndexByte(last, '\n')+1:] // the reason follows its log lines
	return "", fmt.Errorf("run %s %s: %w%s", p.cfg.Binary, strings.Join(args[max(0, len(args)-2):], " "), err, said([]byte(last)))
}

// awaitTakeover waits until the workers of the new Envoy accept connections, which is when it tells
// the old one to stop. before is a time at which the takeover had not happened yet.
func (p *Process) awaitTakeover(ctx context.Context, c *child, next *successor) (r Readiness, before time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.hot.Timeout)
	defer cancel()
	before = time.Now()
	for {
		asked := time.Now()
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		r, err = p.cfg.Admin.Readiness(asking)
		cancel()
		switch {
		case closed(next.ended):
			return r, before, nextEnded(next)
		case err == nil && r.Epoch == next.epoch && r.WorkersStarted && r.State != "unknown":
			return r, before, nil
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return r, before, fmt.Errorf("the new envoy did not take over within %s: it waits for configuration or for a cluster to become ready", p.hot.Timeout)
		case ctx.Err() != nil:
			return r, before, fmt.Errorf("the hot restart was interrupted: %w", ctx.Err())
		case closed(c.ended):
			return r, before, errors.New("the old envoy exited before the new one had taken over")
		case err == nil:
			before = asked
		}
		wait(takeoverPoll, next.ended, ctx.Done())
	}
}

func nextEnded(next *successor) error {
	if refusal := next.refusal.Load(); refusal != nil {
		return errors.New("the new envoy was stopped before it had taken over: " + *refusal)
	}
	return fmt.Errorf("the new envoy exited before it had taken over: %w", next.end())
}

// fellThrough kills an Envoy that did not take over, and determines what the old Envoy has lost.
func (p *Process) fellThrough(ctx context.Context, c *child, next *successor, err error) outcome {
	ctx = context.WithoutCancel(ctx)
	blind := !p.hasAdmin(ctx, c)
	if next.hasTakenOver(blind) && !closed(next.ended) {
		// It took over just now: killing it would interrupt the service.
		return outcome{next: next.child, result: resultUnready, err: err}
	}
	cause := "unstopped"
	if closed(next.ended) && next.refusal.Load() == nil && next.crash != nil {
		cause = next.crash.cause()
	}
	if !closed(next.ended) {
		// Never send SIGTERM: it makes an Envoy tell its predecessor to exit.
		p.signal(next.child, syscall.SIGKILL)
		<-next.ended
		blind = !p.hasAdmin(ctx, c)
	}
	if next.hasTakenOver(blind) && !closed(c.ended) {
		// The old Envoy no longer accepts connections: handle this as a crash.
		return outcome{next: next.child, result: resultFailed, err: err}
	}
	p.count(cause)
	c.held.Store(blind)
	return outcome{result: resultFailed, err: errors.Join(err, next.line.initialized())}
}

// hasTakenOver reports whether the Envoy is past the point of no return: it has taken the admin
// port, and the flag that it sets before that is clear again.
func (n *successor) hasTakenOver(adminTaken bool) bool {
	starting, known := n.line.initializing()
	return known && !starting && adminTaken
}

// hasAdmin reports whether the admin port belongs to c. It retries until it gets a response, since
// a slow response does not identify the owner.
func (p *Process) hasAdmin(ctx context.Context, c *child) bool {
	ctx, cancel := context.WithTimeout(ctx, adminPatience)
	defer cancel()
	for {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		r, err := p.cfg.Admin.Readiness(asking)
		cancel()
		switch {
		case err == nil:
			return r.Epoch == c.epoch && r.State != "unknown"
		case !errors.Is(err, context.DeadlineExceeded) || closed(c.ended) || ctx.Err() != nil:
			return false
		}
	}
}

// retire waits for the old Envoy to exit. The new one terminates it when its time is over. If that
// fails, retire signals the old Envoy itself.
func (p *Process) retire(ctx context.Context, old *child, out outcome) {
	next := out.next
	wait(p.hot.Drain-time.Since(out.since), old.ended, ctx.Done())
	early := closed(old.ended)
	if !closed(next.ended) {
		wait(retirement, old.ended, ctx.Done())
	}
	if !closed(old.ended) {
		p.signal(old, syscall.SIGTERM)
		wait(p.cfg.Drain.KillAfter, old.ended, p.cfg.Drain.Now)
	}
	if !closed(old.ended) {
		p.cfg.Logger.Warn("envoy has not exited in time; killing it", "pid", old.process.Pid)
		p.signal(old, syscall.SIGKILL)
		<-old.ended
	}
	if obeyed(old.state) {
		p.count("stopped")
		p.cfg.Logger.Info("the old envoy has exited", "pid", old.process.Pid, "duration", time.Since(out.since))
	} else {
		early = true
		err := p.ended(old)
		p.cfg.Logger.Warn("the old envoy has exited before all of its connections had ended: the new one continues to serve", "err", err, "pid", old.process.Pid)
	}
	if early && ctx.Err() == nil && !closed(next.ended) {
		ctx, cancel := context.WithDeadline(ctx, out.since.Add(p.hot.Drain+retirement))
		defer cancel()
		p.standIn(ctx, old, next)
	}
}
