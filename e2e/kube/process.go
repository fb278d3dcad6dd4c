// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	probeEvery = 10 * time.Millisecond
	probeTime  = 2 * time.Second // timeout of one request
)

// Server is a program that can be stopped, killed and restarted with the same flags, data and
// address. All methods may be called at any time.
type Server struct {
	name, path, dir string
	args            []string
	env             []string                    // beside PATH and TMPDIR
	ready           func(context.Context) error // nil: it serves

	mu   sync.Mutex // guards the fields below, not while anybody waits
	proc *process
}

// process is one run of a program.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed once it was waited for
}

// Program returns an additional program of the cluster, without starting it. It serves once ready
// returns nil. Its environment is env, PATH and TMPDIR. Its log is in the cluster's directory. The
// caller must stop it before the cluster.
func (c *Cluster) Program(name, path string, args, env []string, ready func(context.Context) error) *Server {
	return &Server{name: name, path: path, dir: c.work.dir, args: args, env: env, ready: ready}
}

// File returns the path of a file of the cluster's programs: ca.crt, tokens.key
// and tokens.pub of service accounts, server.crt and server.key.
func (c *Cluster) File(name string) string { return c.work.file(name) }

// Start starts the program and waits until it serves. It returns an error if the program already
// runs.
func (s *Server) Start(ctx context.Context) error {
	if err := s.launch(); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	if err := s.Wait(ctx); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	return nil
}

// launch starts the program without waiting.
func (s *Server) launch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil && s.proc.running() {
		return errors.New("it runs already")
	}
	log, err := os.OpenFile(s.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(s.path, s.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	// The programs are short-lived: less garbage collection saves a quarter of their CPU time.
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin", "TMPDIR=" + s.dir, "GOGC=400", "GOMEMLIMIT=800MiB"}, s.env...)
	cmd.SysProcAttr = childAttributes()
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go p.live(started)
	if err := errors.Join(<-started, log.Close()); err != nil {
		return err
	}
	s.proc = p
	return nil
}

// live starts the process and waits for its exit. It keeps its thread until then, because the
// kernel kills a child when the thread that started it exits.
func (p *process) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		_ = p.cmd.Wait() // its state contains the exit status
	}
	close(p.ended)
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Wait waits until the program serves.
func (s *Server) Wait(ctx context.Context) error {
	p := s.current()
	if p == nil {
		return fmt.Errorf("%s was not started", s.name)
	}
	for {
		err := s.probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended (%s): %s", s.name, p.cmd.ProcessState, s.tail(20))
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w: %w: %s", s.name, ctx.Err(), err, s.tail(20))
		case <-time.After(probeEvery):
		}
	}
}

func (s *Server) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	return s.ready(ctx)
}

func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Running reports whether the process exists, paused or not.
func (s *Server) Running() bool {
	p := s.current()
	return p != nil && p.running()
}

// PID returns the id of the process, 0 before the first start.
func (s *Server) PID() int {
	if p := s.current(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Stop terminates the program and waits for its exit. When ctx is done, it kills the program.
func (s *Server) Stop(ctx context.Context) error {
	p := s.current()
	if p == nil || !p.running() {
		return nil
	}
	s.signal(syscall.SIGTERM)
	s.signal(syscall.SIGCONT) // a paused process does not handle signals
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		s.Kill()
		return fmt.Errorf("stop %s: it was killed: %w", s.name, ctx.Err())
	}
}

// Kill kills the program, like a crash, and waits for its exit.
func (s *Server) Kill() {
	if p := s.current(); p != nil {
		s.signal(syscall.SIGKILL)
		<-p.ended
	}
}

// Restart stops the program if it runs, starts it and waits until it serves.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(ctx); err != nil {
		return err
	}
	return s.Start(ctx)
}

// Pause suspends the program: its connections stay open without responses.
func (s *Server) Pause() {
	s.signal(syscall.SIGSTOP)
	if p := s.current(); p != nil {
		awaitStopped(p.cmd.Process.Pid)
	}
}

// Resume continues a paused program.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

// signal sends a signal to the process, if it runs. Process.Signal knows
// whether the id is still its own.
func (s *Server) signal(sig os.Signal) {
	if p := s.current(); p != nil {
		_ = p.cmd.Process.Signal(sig) // it has exited, which is intended or reported elsewhere
	}
}

// Log returns the path of the file with the output of the program.
func (s *Server) Log() string { return filepath.Join(s.dir, s.name+".log") }

// tail returns the last lines of the log.
func (s *Server) tail(lines int) string {
	text, err := os.ReadFile(s.Log())
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	all = all[max(0, len(all)-lines):]
	return fmt.Sprintf("last lines of %s:\n%s", s.name, strings.ToValidUTF8(string(bytes.Join(all, []byte("\n"))), "?"))
}
