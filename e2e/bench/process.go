// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// starter starts processes on a thread of its own, which lives as long as
// this program: the kernel kills them with it, whatever way it ends.
type starter struct {
	work chan func()
	// dial connects to where its programs listen; nil is as always.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func newStarter() *starter {
	s := &starter{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range s.work {
			f()
		}
	}()
	return s
}

func (s *starter) close() { close(s.work) }

// process is a running program.
type process struct {
	cmd   *exec.Cmd
	log   string
	began time.Time
	ended chan struct{}
	stdin io.WriteCloser
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
}

// spec says what to run.
type spec struct {
	path, dir, log string
	args, env      []string
	stdin          bool
}

// run starts a program; its output goes to the log.
func (s *starter) run(p spec) (*process, error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, out, out
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	proc := &process{cmd: cmd, log: p.log, ended: make(chan struct{}), dial: s.dial}
	if p.stdin {
		if proc.stdin, err = cmd.StdinPipe(); err != nil {
			return nil, errors.Join(fmt.Errorf("start %s: %w", p.path, err), out.Close())
		}
	}
	started := make(chan error, 1)
	s.work <- func() {
		proc.began = time.Now()
		started <- cmd.Start()
	}
	err = errors.Join(<-started, out.Close())
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	go func() {
		_ = cmd.Wait() // the log says how it ended
		close(proc.ended)
	}()
	return proc, nil
}

// stop ends a program, gently first.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone already
	select {
	case <-p.ended:
	case <-time.After(8 * time.Second):
		_ = syscall.Kill(-p.pid(), syscall.SIGKILL) // as above
		<-p.ended
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// wait asks a URL every millisecond until it answers 200 with the wanted text,
// and returns the time since the program's start.
func (p *process) wait(ctx context.Context, url, want string) (time.Duration, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: p.dial}, Timeout: 2 * time.Second}
	defer client.CloseIdleConnections()
	return p.waitAnswer(ctx, client, url, want)
}

// waitAnswer is wait with a client.
func (p *process) waitAnswer(ctx context.Context, client *http.Client, url, want string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if answers(ctx, client, url, want) {
			return time.Since(p.began), nil
		}
		select {
		case <-tick.C:
		case <-p.ended:
			return 0, fmt.Errorf("%s ended: %s", p.cmd.Path, p.lastWords())
		case <-ctx.Done():
			return 0, fmt.Errorf("%s: %w: %s", url, ctx.Err(), p.lastWords())
		}
	}
}

func answers(ctx context.Context, client *http.Client, url, want string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return errors.Join(err, resp.Body.Close()) == nil && resp.StatusCode == http.StatusOK && bytes.Contains(body, []byte(want))
}

// lastWords returns the end of a program's log.
func (p *process) lastWords() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data[max(0, len(data)-2000):]))
}

// cpu returns the CPU time that a process has used.
func cpu(pid int) (time.Duration, error) {
	var ts unix.Timespec
	// The id of another process's CPU clock, as clock_getcpuclockid makes it.
	if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// memory returns a process's resident and anonymous memory in bytes.
func memory(pid int) (resident, anonymous float64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			continue // not every line holds a number
		}
		switch f[0] {
		case "VmRSS:":
			resident = kb * 1024
		case "RssAnon:":
			anonymous = kb * 1024
		}
	}
	return resident, anonymous, nil
}

// untilExec returns the time, in seconds, from a program's start until its child
// has become another program.
func (p *process) untilExec(ctx context.Context, program string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		if _, err := child(p.pid(), program); err == nil {
			return time.Since(p.began).Seconds(), nil
		}
		select {
		case <-p.ended:
			return 0, fmt.Errorf("%s ended: %s", p.cmd.Path, p.lastWords())
		case <-ctx.Done():
			return 0, fmt.Errorf("%s has started no %s: %w", p.cmd.Path, program, ctx.Err())
		case <-time.After(200 * time.Microsecond):
		}
	}
}

// child returns the process that another one started, by the name of its program.
func child(parent int, program string) (int, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		return 0, fmt.Errorf("look for children of process %d: %w", parent, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the thread is gone
		}
		for _, field := range strings.Fields(string(data)) {
			exe, err := os.Readlink("/proc/" + field + "/exe")
			if err == nil && strings.HasPrefix(filepath.Base(exe), filepath.Base(program)) {
				return strconv.Atoi(field)
			}
		}
	}
	return 0, fmt.Errorf("process %d has no child %s", parent, program)
}
