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
)

// pipeDelay is how long the output of an ended process is still read when
// something that it started holds the other end.
const pipeDelay = 500 * time.Millisecond

// command is what to run.
type command struct {
	path string
	args []string // without the program's name
	env  []string
	dir  string
	// files are inherited, from descriptor 3 on.
	files []*os.File
}

// child is a running process, the leader of its own process group: a signal
// of the terminal does not reach it, and it dies with us.
type child struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	exit   exit          // valid once exited is closed

	mu   sync.Mutex // guards gone
	gone bool       // the process id is no longer ours
}

// exit says how a process ended.
type exit struct {
	code   int // -1 after a signal
	signal syscall.Signal
	err    error // it could not be started or waited for
}

// String is the predicate of a sentence about the process.
func (e exit) String() string {
	switch {
	case e.err != nil:
		return "cannot be run: " + e.err.Error()
	case e.signal != 0:
		return fmt.Sprintf("ended by signal %d (%s)", int(e.signal), e.signal)
	}
	return fmt.Sprintf("ended with exit code %d", e.code)
}

// startChild starts a process. Its output, both streams, goes to out, line by
// line as it comes.
func startChild(c command, out io.Writer) (*child, error) {
	p := &child{cmd: exec.Command(c.path, c.args...), exited: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = c.env, c.dir
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = out, out, c.files
	p.cmd.WaitDelay = pipeDelay
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go p.live(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// live starts the process, waits for its end and ends what is left of its
// group. It keeps its thread for as long: the kernel sends the death signal
// of a child when the thread that started it ends.
func (p *child) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	awaitExit(p.cmd.Process.Pid)
	p.signal(syscall.SIGKILL) // what the process started and left behind
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
	p.exit = exitOf(p.cmd.Wait(), p.cmd)
	close(p.exited)
}

// awaitExit waits until a process has ended and leaves it to be waited for,
// so that its id, and with it the id of its group, is not given to another.
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
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // it may have ended by itself
	}
}

// stop asks the process to end, and kills it when it has not ended after
// grace or when kill is closed. It returns when the process is gone.
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
