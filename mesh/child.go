// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/mesh/isolation"
)

// pipeDelay is how long to read the output of an exited process while one of its children keeps the
// pipe open.
const pipeDelay = 500 * time.Millisecond

// command is a command to run.
type command struct {
	path string
	args []string // without the program's name
	env  []string
	dir  string
	// files are inherited by the process, starting at descriptor 3.
	files []*os.File
	// place is where and as whom the process runs; nil means like this process.
	place *isolation.Place
}

// child is a running process, the leader of its own process group: signals of the terminal do not
// reach it. It is killed if this process dies.
type child struct {
	cmd    *exec.Cmd
	place  *isolation.Place
	exited chan struct{} // closed when the process has exited
	exit   exit          // valid once exited is closed

	mu   sync.Mutex // guards gone
	gone bool       // the process id is no longer valid
}

// exit describes how a process ended.
type exit struct {
	code   int // -1 if ended by a signal
	signal syscall.Signal
	err    error // it could not be started or waited for
}

// String returns the predicate of a sentence about the process.
func (e exit) String() string {
	switch {
	case e.err != nil:
		return "cannot be run: " + e.err.Error()
	case e.signal != 0:
		return fmt.Sprintf("terminated by signal %d (%s)", int(e.signal), e.signal)
	}
	return fmt.Sprintf("exited with code %d", e.code)
}

// startChild starts a process. Both its output streams are copied to out.
func startChild(c command, out io.Writer) (*child, error) {
	p := &child{cmd: exec.Command(c.path, c.args...), place: c.place, exited: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = c.env, c.dir
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = out, out, c.files
	p.cmd.WaitDelay = pipeDelay
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.place != nil {
		p.cmd.SysProcAttr.Credential = c.place.Credential()
	}
	started := make(chan error, 1)
	go p.live(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// live starts the process, waits for it to exit and kills the rest of its process group. It keeps
// its thread locked until then: the kernel sends the parent death signal when the thread that
// started the child ends.
func (p *child) live(started chan<- error) {
	runtime.LockOSThread()
	if p.place == nil {
		defer runtime.UnlockOSThread()
	} else if err := p.place.Enter(); err != nil { // the thread ends with the goroutine
		started <- err
		return
	}
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	awaitExit(p.cmd.Process.Pid)
	p.signal(syscall.SIGKILL) // kill processes that it has left behind
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
	p.exit = exitOf(p.cmd.Wait(), p.cmd)
	close(p.exited)
}

// awaitExit waits until a process has exited but does not reap it, so that its process id and its
// process group id are not reused.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func exitOf(err error, cmd *exec.Cmd) exit {
	if cmd.ProcessState == nil {
		return exit{code: -1, err: err}
	}
	e := exit{code: cmd.ProcessState.ExitCode()}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.signal = ws.Signal()
	}
	return e
}

// signal sends a signal to the process and its group.
func (p *child) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // it may have exited already
	}
}

// stop asks the process to terminate, and kills it after grace or when kill is closed. It returns
// when the process is gone.
func (p *child) stop(grace time.Duration, kill <-chan struct{}) {
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
		return
	case <-timer.C:
	case <-kill:
	}
	p.signal(syscall.SIGKILL)
	<-p.exited
}
