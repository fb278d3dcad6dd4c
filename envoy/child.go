// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync/atomic"
)

// child is a started Envoy.
type child struct {
	process *os.Process
	// previous describes the crash of the preceding Envoy, or is nil if there was none.
	previous *ExitError
	ready    atomic.Bool // it has been ready at least once
	// held is true while its admin port may belong to another Envoy or to none.
	held atomic.Bool
	line *line // nil without HotRestart
	// epoch is the number of preceding Envoys in its line.
	epoch int
	// thread runs functions on the thread that started it; nil if another program did.
	thread chan func()
	output outputs

	// The fields below may be read once ended is closed.
	ended chan struct{}
	state *os.ProcessState
	crash *ExitError // how it exited if no stop was requested; nil if unknown
	err   error
}

// end returns a description of its exit, assuming that no stop was requested.
func (c *child) end() error {
	if c.crash == nil {
		return fmt.Errorf("wait for envoy: %w", c.err)
	}
	return c.crash
}

// start starts Envoy from a goroutine that stays locked to one thread until Envoy has exited. The
// kernel sends the parent death signal when the forking thread ends, not the process: the Go runtime
// ends idle threads, and exec ends all other threads than its own.
func (p *Process) start(line *line, epoch int) (*child, error) {
	cmd := exec.Command(p.cfg.Binary, slices.Concat(p.cfg.Args, line.args(epoch))...)
	cmd.Dir, cmd.Env = p.cfg.Dir, append(cmd.Environ(), p.cfg.Env...)
	cmd.SysProcAttr = childAttributes()
	cmd.WaitDelay = pipeGrace

	c := &child{ended: make(chan struct{}), line: line, epoch: epoch, thread: make(chan func())}
	var ends [2]*os.File // of Envoy
	cmd.Stdout, ends[0] = c.output.inherited(p.cfg.Stdout)
	cmd.Stderr, ends[1] = c.output.inherited(p.cfg.Stderr)
	if before := p.current.Load(); before != nil && closed(before.ended) {
		c.previous = before.crash
	}
	oomBefore := oomKills()
	started := make(chan error, 1)
	go func() {
		defer close(c.ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		c.process = cmd.Process
		started <- nil
		waited := make(chan error, 1)
		go func() { waited <- cmd.Wait() }()
		for {
			select {
			case run := <-c.thread:
				run()
			case c.err = <-waited:
				c.output.close()
				if c.state = cmd.ProcessState; c.state != nil {
					c.crash = exitError(c.state, oomKills() > oomBefore)
				}
				return
			}
		}
	}()
	err := <-started
	for _, end := range ends {
		if end != nil {
			_ = end.Close() // Envoy has a copy
		}
	}
	if err != nil {
		c.output.close()
		return nil, &startError{binary: p.cfg.Binary, err: err}
	}
	return c, nil
}
