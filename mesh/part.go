// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// role is the function of a process in the mesh.
type role string

const (
	roleControl role = "control plane"
	roleApp     role = "application"
	roleAgent   role = "agent"
)

// restartPolicy determines when an exited process is restarted.
type restartPolicy struct {
	first, most time.Duration // back-off, doubled after each exit
	stable      time.Duration // a run of this duration resets the back-off
	startTries  int           // number of exits before the process was first ready that make the start fail
}

func defaultRestart() restartPolicy {
	return restartPolicy{first: 200 * time.Millisecond, most: 10 * time.Second, stable: 30 * time.Second, startTries: 3}
}

// part is one process of the mesh, which is restarted when it exits.
type part struct {
	name    string // name of the workload, or controlName
	role    role
	command command
	// after must be closed before the process starts. Optional.
	after <-chan struct{}
	// prepare runs before each start. Optional.
	prepare func() error
	// ready blocks until the process is ready.
	ready func(context.Context) error
	// grace is how long the process may take to terminate.
	grace   time.Duration
	restart restartPolicy
	kill    <-chan struct{} // closed to kill the process at once
	out     *output
	events  func(*part, event)

	firstReady chan struct{} // closed when ready for the first time
	once       sync.Once
}

// event is a change in the state of a part.
type event struct {
	kind eventKind
	took time.Duration // eventReady: since its start
	exit exit          // eventEnded
	why  string        // eventEnded: the last error
	wait time.Duration // eventEnded: delay until the restart
	life int           // number of starts, from 1
}

type eventKind int

const (
	eventStarted eventKind = iota
	eventReady
	eventEnded
)

// startError reports a part that was never ready.
type startError struct {
	part *part
	exit exit
}

func (e *startError) Error() string {
	return fmt.Sprintf("%sthe %s does not start: it %s%s", owner(e.part.name), e.part.role, e.exit, e.part.out.lastLines())
}

// run keeps the process running until ctx is done and then terminates it. It returns an error only
// if the process exits startTries times without having been ready.
func (p *part) run(ctx context.Context) error {
	if p.after != nil {
		select {
		case <-p.after:
		case <-ctx.Done():
			return nil
		}
	}
	waits := backoff.NewExponentialBackOff(backoff.WithInitialInterval(p.restart.first), backoff.WithMaxInterval(p.restart.most),
		backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0), backoff.WithMaxElapsedTime(0))
	for life := 1; ; life++ {
		began := time.Now()
		e := p.live(ctx, life)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) >= p.restart.stable {
			waits.Reset()
		}
		if life >= p.restart.startTries && !p.wasReady() {
			return &startError{part: p, exit: e}
		}
		wait := waits.NextBackOff()
		p.events(p, event{kind: eventEnded, exit: e, why: p.out.reason(e), wait: wait, life: life})
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// live runs the process once, from start to exit.
func (p *part) live(ctx context.Context, life int) exit {
	if p.prepare != nil {
		if err := p.prepare(); err != nil {
			return exit{code: -1, err: err}
		}
	}
	began := time.Now()
	p.out.begin()
	proc, err := startChild(p.command, p.out)
	if err != nil {
		return exit{code: -1, err: err}
	}
	p.events(p, event{kind: eventStarted, life: life})

	watch, cancel := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		if p.ready(watch) == nil {
			p.once.Do(func() { close(p.firstReady) })
			p.events(p, event{kind: eventReady, took: time.Since(began), life: life})
		}
	})
	select {
	case <-proc.exited:
	case <-ctx.Done():
		p.out.muted.Store(true)
		proc.stop(p.grace, p.kill)
	}
	cancel()
	watcher.Wait()
	p.out.flush()
	return proc.exit
}

func (p *part) wasReady() bool {
	select {
	case <-p.firstReady:
		return true
	default:
		return false
	}
}
