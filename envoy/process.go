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
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// pipeGrace is how long Run waits for the last output of an Envoy that has exited, in case another
// process still has its pipe open.
const pipeGrace = time.Second

// answerGrace is how long to wait for the output of a program after it has exited. It is longer
// than an overloaded machine needs to read a line.
const answerGrace = 5 * time.Second

// Config is the configuration of a Process.
type Config struct {
	// Binary is the path of Envoy, or its name in PATH.
	Binary string
	// AllowUnsafe allows a hot restart to an Envoy with known bypasses of authorization.
	AllowUnsafe bool
	// Args are the arguments returned by [Args], without the program's name.
	Args []string
	// Prepare returns the arguments to use instead of Args, or Args. Run calls it once, and uses the
	// result if Envoy accepts its configuration. Optional.
	Prepare func(ctx context.Context) []string
	// Dir is the working directory. If empty, it is the agent's.
	Dir string
	// Env is added to the agent's environment, NAME=value.
	Env []string
	// Admin is used to drain Envoy. If nil, the drain only waits.
	Admin *Admin
	// Configured returns an error that says which required configuration the Envoy with this
	// process id lacks, or nil. It is called until that Envoy has been ready once. Optional.
	Configured func(pid int) error
	// Drain configures how Envoy is stopped.
	Drain DrainConfig
	// Restart limits how often a crashed Envoy is restarted. The zero value disables restarts.
	Restart Restart
	// HotRestart lets a new Envoy take over from the running one. The zero value disables hot
	// restarts.
	HotRestart HotRestart
	// Stdout and Stderr receive Envoy's output. nil discards it. Envoy inherits an *os.File
	// directly, unless it could not open it again.
	Stdout, Stderr io.Writer
	// Logger is required.
	Logger *slog.Logger
	// Registerer registers the metrics. nil means none.
	Registerer prometheus.Registerer
}

// Process runs the agent's Envoy. The underlying process may be replaced by restarts, within the
// budget of Restart, and by hot restarts.
type Process struct {
	cfg         Config
	exits       *prometheus.CounterVec
	restarts    prometheus.Counter
	hotRestarts *prometheus.CounterVec
	hot         *hotRestarts          // nil without HotRestart
	current     atomic.Pointer[child] // the serving Envoy; nil before the first start
	started     chan struct{}
	run         atomic.Bool
	draining    atomic.Bool    // a drain has begun; there is only one
	drained     chan struct{}  // closed when the drain is over
	beside      sync.WaitGroup // goroutines that run beside the serving Envoy within Run
}

// New checks the configuration and returns a Process. It does not start Envoy.
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
	if err := cfg.Restart.check(); err != nil {
		return nil, err
	}
	hot, err := newHotRestarts(&cfg)
	if err != nil {
		return nil, err
	}
	p := &Process{
		cfg: cfg,
		hot: hot,
		exits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_agent_envoy_exits_total",
			Help: "Exits of the Envoy process, by cause: stopped (on request), unstopped (killed by the agent), exited (without a request, code 0), failed (other code), signal, oom.",
		}, []string{"cause"}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outrigger_agent_envoy_restarts_total", Help: "Starts of Envoy after a crash.",
		}),
		hotRestarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_agent_hot_restarts_total",
			Help: "Requested hot restarts, by result: ok, refused (nothing was started), failed (the new Envoy did not become ready), unready (it took over but is not ready).",
		}, []string{"result"}),
		started: make(chan struct{}),
		drained: make(chan struct{}),
	}
	collectors := []prometheus.Collector{p.exits, p.restarts}
	if hot != nil {
		collectors = append(collectors, p.hotRestarts)
	}
	if cfg.Registerer == nil {
		return p, nil
	}
	for _, c := range collectors {
		if err := cfg.Registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of the envoy process: %w", err)
		}
	}
	return p, nil
}

// PID returns the process id of Envoy, or 0 before the first start.
func (p *Process) PID() int {
	if c := p.current.Load(); c != nil {
		return c.process.Pid
	}
	return 0
}

// Started returns a channel that is closed once Envoy has been started.
func (p *Process) Started() <-chan struct{} { return p.started }

// Run starts Envoy and returns when it has exited. When ctx is done, Run drains and stops Envoy as
// configured and returns nil. If Envoy exits by itself, Run restarts it within the budget of
// Restart, or returns an error that wraps an *ExitError. It returns ErrHandedOver after
// [Process.HandOver]. Run can be called only once.
func (p *Process) Run(ctx context.Context) (err error) {
	if p.run.Swap(true) {
		return errors.New("this envoy process was already run")
	}
	if ctx.Err() != nil {
		return nil
	}
	if limit, err := raiseFileLimit(); err != nil {
		p.cfg.Logger.Warn("the soft limit of open files is unchanged for envoy", "err", err)
	} else {
		p.cfg.Logger.Info("envoy may open as many files as the hard limit allows", "count", limit)
	}
	p.prepare(ctx)
	if p.hot != nil {
		if err := p.hot.prepare(p.cfg.Stdout, p.cfg.Stderr); err != nil {
			return err
		}
		defer func() { // runs after the wait below, when nothing uses the files any more
			if !errors.Is(err, ErrHandedOver) {
				p.hot.clean()
			}
		}()
	}
	beside, end := context.WithCancel(context.WithoutCancel(ctx))
	defer p.beside.Wait()
	defer end()
	if p.hot != nil {
		p.beside.Go(func() { p.watchBinary(beside) })
	}
	return p.keep(ctx, beside)
}

// prepare replaces the arguments by those of Config.Prepare if Envoy accepts them.
func (p *Process) prepare(ctx context.Context) {
	if p.cfg.Prepare == nil {
		return
	}
	args := p.cfg.Prepare(ctx)
	if slices.Equal(args, p.cfg.Args) || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, rehearsalTimeout)
	defer cancel()
	check := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "--disable-hot-restart" })
	if _, err := p.ask(ctx, append(check, "--disable-hot-restart", "--mode", "validate")...); err != nil {
		p.cfg.Logger.Warn("envoy refuses the bootstrap of the control plane and starts without it", "err", err)
		return
	}
	p.cfg.Args = args
}

// keep starts Envoy and restarts it within the budget. Goroutines that run beside Envoy end when
// the context beside is done.
func (p *Process) keep(ctx, beside context.Context) error {
	budget := budget{Restart: p.cfg.Restart}
	for {
		begin := time.Now()
		err := p.once(ctx, beside)
		if !p.again(ctx, err) {
			return err
		}
		left, delay, within := budget.take(begin, time.Now())
		if !within {
			return fmt.Errorf("the budget of envoy's restarts, %s, is exhausted: %w", p.cfg.Restart, err)
		}
		p.cfg.Logger.Error("envoy crashed and is restarted; count is the number of restarts left",
			"err", err, "count", left, "duration", budget.Window)
		if wait(delay, ctx.Done(), p.cfg.Drain.Now); ctx.Err() != nil || closed(p.cfg.Drain.Now) {
			return nil
		}
		p.restarts.Inc()
	}
}

// again reports whether the exit of Envoy, or the failure to start it, may be followed by a restart
// within the budget.
func (p *Process) again(ctx context.Context, err error) bool {
	if p.cfg.Restart.Count == 0 || ctx.Err() != nil || closed(p.cfg.Drain.Now) {
		return false
	}
	if crash := (*ExitError)(nil); errors.As(err, &crash) {
		// Exit code 0 means that Envoy was stopped on purpose, through its admin port or by
		// SIGTERM.
		return crash.Code != 0
	}
	// A binary that is being replaced can be missing or busy for a moment. This does not apply to
	// the first start.
	missing := (*startError)(nil)
	return errors.As(err, &missing) && p.current.Load() != nil
}

// startError reports that Envoy could not be executed.
type startError struct {
	binary string
	err    error
}

func (e *startError) Error() string { return fmt.Sprintf("start envoy %s: %s", e.binary, e.err) }

func (e *startError) Unwrap() error { return e.err }

// once runs one Envoy from start to exit, or a sequence of Envoys in which each takes over from the
// previous one.
func (p *Process) once(ctx, beside context.Context) error {
	c, err := p.first()
	if err != nil {
		return err
	}
	before := p.current.Swap(c)
	if before == nil {
		close(p.started)
	}
	if before != nil && p.Draining() {
		p.beside.Go(func() { p.drainAgain(beside, c) })
	}
	if p.hot != nil {
		return p.serve(ctx, beside, c)
	}
	// Events: Envoy exited by itself; it must stop gracefully; it must stop at once.
	select {
	case <-c.ended:
		return p.ended(c)
	case <-ctx.Done():
	case <-p.cfg.Drain.Now:
	}
	return p.stop(ctx, c)
}

// first returns the Envoy of the program before this one, to be replaced, or starts one.
func (p *Process) first() (*child, error) {
	var line *line
	if p.hot != nil {
		if c := p.hot.inherited; c != nil {
			p.hot.inherited = nil
			p.cfg.Logger.Info("envoy of the agent before this one found", "pid", c.process.Pid)
			p.HotRestart("this agent has replaced another one")
			return c, nil
		}
		var err error
		if line, err = p.hot.newLine(); err != nil {
			return nil, err
		}
	}
	c, err := p.start(line, 0)
	if err == nil {
		p.cfg.Logger.Info("envoy started", "pid", c.process.Pid, "path", p.cfg.Binary)
	}
	return c, err
}

// stop stops Envoy in three steps: drain, SIGTERM, SIGKILL. Drain.Now cuts each step short.
func (p *Process) stop(ctx context.Context, c *child) error {
	// The context is done, but the steps below need one that is not.
	ctx = context.WithoutCancel(ctx)
	drain := p.cfg.Drain
	if !closed(drain.Now) {
		p.Drain(ctx)
	}
	if closed(c.ended) && !obeyed(c.state) {
		return p.ended(c)
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
	if closed(drain.Now) {
		p.cfg.Logger.Warn("killing envoy: an immediate end was requested", "pid", c.process.Pid)
	} else {
		p.cfg.Logger.Warn("envoy has not exited in time; killing it", "pid", c.process.Pid)
	}
	p.signal(c, syscall.SIGKILL)
	<-c.ended
	p.count("unstopped")
	return nil
}

// obeyed reports whether Envoy exited as after a request to stop. This can happen during a drain:
// for example, systemd may send SIGTERM to both the agent and Envoy.
func obeyed(state *os.ProcessState) bool {
	if state == nil {
		return false
	}
	e := exitError(state, false)
	return e.Signal == syscall.SIGTERM || e.Signal == 0 && e.Code == 0
}

// ended returns the error for an Envoy that exited without a request to stop.
func (p *Process) ended(c *child) error {
	if c.crash != nil {
		p.count(c.crash.cause())
	}
	return c.end()
}

func (p *Process) count(cause string) { p.exits.WithLabelValues(cause).Inc() }

func (p *Process) signal(c *child, sig syscall.Signal) {
	if err := c.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.cfg.Logger.Error("envoy cannot be signalled", "pid", c.process.Pid, "signal", sig.String(), "err", err)
	}
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
