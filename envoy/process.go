// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// pipeGrace is how long Run waits for the last output of an Envoy that has
// ended, should something else still hold its pipe.
const pipeGrace = time.Second

// Config is what a Process needs.
type Config struct {
	// Binary is the path of Envoy, or its name on PATH.
	Binary string
	// Args are the arguments as of Args, without the program's name.
	Args []string
	// Dir is the working directory. Empty: the agent's.
	Dir string
	// Env is the environment. nil: the agent's.
	Env []string
	// Admin is asked to drain. nil: the drain is only a wait.
	Admin *Admin
	// Drain says how Envoy ends.
	Drain DrainConfig
	// Stdout and Stderr take Envoy's output. nil discards it. An *os.File is
	// handed to Envoy as it is.
	Stdout, Stderr io.Writer
	// Logger is required.
	Logger *slog.Logger
	// Registerer takes the metric. nil: none.
	Registerer prometheus.Registerer
}

// Process is one Envoy, started once.
type Process struct {
	cfg     Config
	exits   *prometheus.CounterVec
	pid     atomic.Int64
	started chan struct{}
	run     atomic.Bool
}

// New checks the configuration. It starts nothing.
func New(cfg Config) (*Process, error) {
	if cfg.Binary == "" {
		return nil, errors.New("no envoy binary is configured: set binaryPath of the proxy configuration")
	}
	if cfg.Logger == nil {
		return nil, errors.New("the envoy process has no logger")
	}
	drain, err := cfg.Drain.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg.Drain = drain
	p := &Process{
		cfg: cfg,
		exits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_agent_envoy_exits_total",
			Help: "Ends of the Envoy process, by cause: stopped (asked to), unstopped (killed by the agent), exited (by itself, code 0), failed (other code), signal, oom.",
		}, []string{"cause"}),
		started: make(chan struct{}),
	}
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(p.exits); err != nil {
			return nil, fmt.Errorf("register the metric of envoy's exits: %w", err)
		}
	}
	return p, nil
}

// PID returns the process id of Envoy, 0 before it has started.
func (p *Process) PID() int { return int(p.pid.Load()) }

// Started is closed once Envoy has been started.
func (p *Process) Started() <-chan struct{} { return p.started }

// Run starts Envoy and returns when it has ended. When ctx is done, Envoy is
// drained and stopped as the configuration says, and Run returns nil. When Envoy
// ends by itself, Run returns an *ExitError. Run can be called once.
func (p *Process) Run(ctx context.Context) error {
	if p.run.Swap(true) {
		return errors.New("this envoy process has been run before")
	}
	if ctx.Err() != nil {
		return nil
	}
	before := oomKills()
	c, err := p.start()
	if err != nil {
		return fmt.Errorf("start envoy %s: %w", p.cfg.Binary, err)
	}
	p.pid.Store(int64(c.process.Pid))
	close(p.started)
	p.cfg.Logger.Info("envoy started", "pid", c.process.Pid, "path", p.cfg.Binary)

	// Ended by itself, asked to end, or asked to end at once.
	select {
	case <-c.ended:
		return p.ended(c, before)
	case <-ctx.Done():
	case <-p.cfg.Drain.Now:
	}
	return p.stop(ctx, c, before)
}

// stop takes Envoy down in its three steps, each cut short by Drain.Now.
func (p *Process) stop(ctx context.Context, c *child, oomBefore uint64) error {
	// The context is done, but what follows needs one that is not.
	ctx = context.WithoutCancel(ctx)
	drain := p.cfg.Drain
	if !closed(drain.Now) {
		p.drain(ctx, c.ended)
	}
	if closed(c.ended) && !obeyed(c.state) {
		return p.ended(c, oomBefore)
	}
	if !closed(c.ended) && !closed(drain.Now) {
		p.signal(c, syscall.SIGTERM)
		wait(drain.KillAfter, c.ended, drain.Now)
	}
	if closed(c.ended) {
		p.count("stopped")
		p.cfg.Logger.Info("envoy stopped", "pid", c.process.Pid, "code", c.state.ExitCode())
		return nil
	}
	p.cfg.Logger.Warn("envoy has not ended in time and is killed", "pid", c.process.Pid)
	p.signal(c, syscall.SIGKILL)
	<-c.ended
	p.count("unstopped")
	return nil
}

// obeyed tells whether Envoy ended as one that was asked to. While it drains that
// can be: systemd, for one, may send SIGTERM to the agent and to Envoy alike.
func obeyed(state *os.ProcessState) bool {
	if state == nil {
		return false
	}
	e := exitError(state, false)
	return e.Signal == syscall.SIGTERM || e.Signal == 0 && e.Code == 0
}

// ended reports an Envoy that ended without having been asked to.
func (p *Process) ended(c *child, oomBefore uint64) error {
	if c.state == nil {
		return fmt.Errorf("wait for envoy: %w", c.err)
	}
	err := exitError(c.state, oomKills() > oomBefore)
	p.count(err.cause())
	return err
}

func (p *Process) count(cause string) { p.exits.WithLabelValues(cause).Inc() }

func (p *Process) signal(c *child, sig syscall.Signal) {
	if err := c.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.cfg.Logger.Error("envoy cannot be signalled", "pid", c.process.Pid, "signal", sig.String(), "err", err)
	}
}

// child is a started Envoy. state and err may be read once ended is closed.
type child struct {
	process *os.Process
	ended   chan struct{}
	state   *os.ProcessState
	err     error
}

// start starts Envoy from a goroutine that stays on one thread until Envoy has
// ended: the kernel's parent death signal is sent when the thread that forked
// ends, not the process, and the runtime ends idle threads.
func (p *Process) start() (*child, error) {
	cmd := exec.Command(p.cfg.Binary, p.cfg.Args...)
	cmd.Dir, cmd.Env = p.cfg.Dir, p.cfg.Env
	cmd.Stdout, cmd.Stderr = p.cfg.Stdout, p.cfg.Stderr
	cmd.SysProcAttr = childAttributes()
	cmd.WaitDelay = pipeGrace

	c := &child{ended: make(chan struct{})}
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
		err := cmd.Wait()
		c.state, c.err = cmd.ProcessState, err
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// wait waits until d has passed or one of the channels is closed.
func wait(d time.Duration, a, b <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a:
	case <-b:
	}
}
