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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/e2e/netlab"
)

// starter starts processes on a thread of its own, which lives as long as
// this program: the kernel kills them with it, whatever way it ends.
type starter struct {
	work chan func()
	// dial connects to where its programs listen; nil is this machine.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// running are what it has started since stop.
	running []*process
}

// newStarter returns a starter whose programs run on a machine, nil for this one.
func newStarter(at *netlab.Machine) (*starter, error) {
	s := &starter{work: make(chan func())}
	entered := make(chan error, 1)
	if at != nil {
		s.dial = at.Dial
	}
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		var err error
		if at != nil {
			err = at.Enter()
		}
		if entered <- err; err != nil {
			return
		}
		for f := range s.work {
			f()
		}
	}()
	return s, <-entered
}

// stop ends all programs, the last one first.
func (s *starter) stop() {
	for _, p := range slices.Backward(s.running) {
		p.stop()
	}
	s.running = nil
}

// close ends the thread, after all programs.
func (s *starter) close() {
	s.stop()
	close(s.work)
}

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
}

// run starts a program, which ends with the part. Its output goes to the log.
func (s *starter) run(p spec) *process {
	check(os.MkdirAll(p.dir, 0o700))
	out := must(os.Create(p.log))
	defer func() { _ = out.Close() }() // the program has it
	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, out, out
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	proc := &process{cmd: cmd, log: p.log, ended: make(chan struct{}), dial: s.dial, stdin: must(cmd.StdinPipe())}
	started := make(chan error, 1)
	s.work <- func() {
		proc.began = time.Now()
		started <- cmd.Start()
	}
	check(<-started)
	s.running = append(s.running, proc)
	go func() {
		_ = cmd.Wait() // the log says how it ended
		close(proc.ended)
	}()
	return proc
}

// helper runs this program as one of its helpers, in the directory of the bench.
func (b *bench) helper(name string, args ...string) *process {
	return b.start.run(spec{path: must(os.Executable()), dir: b.dir, log: b.path(name + ".log"), args: append([]string{name}, args...)})
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

// until calls done every so often until it reports true, for half a minute at
// most, and returns the seconds since the program's start.
func (p *process) until(ctx context.Context, what string, every time.Duration, done func(context.Context) bool) float64 {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if done(ctx) {
			return time.Since(p.began).Seconds()
		}
		select {
		case <-tick.C:
		case <-p.ended:
			fail("%s ended before it was %s: %s", p.cmd.Path, what, p.lastWords())
		case <-ctx.Done():
			fail("%s is not %s: %w: %s", p.cmd.Path, what, ctx.Err(), p.lastWords())
		}
	}
}

// wait asks a URL every millisecond until it answers 200 with the wanted text.
func (p *process) wait(ctx context.Context, url, want string) float64 {
	client := &http.Client{Transport: &http.Transport{DialContext: p.dial}, Timeout: 2 * time.Second}
	defer client.CloseIdleConnections()
	return p.waitAnswer(ctx, client, url, want)
}

// waitAnswer is wait with a client.
func (p *process) waitAnswer(ctx context.Context, client *http.Client, url, want string) float64 {
	return p.until(ctx, "answering "+url, time.Millisecond, func(ctx context.Context) bool {
		var body bytes.Buffer
		_, err := get(ctx, client, url, &body)
		return err == nil && bytes.Contains(body.Bytes(), []byte(want))
	})
}

// listens waits until a program listens.
func (p *process) listens(ctx context.Context, network, address string) {
	p.until(ctx, "listening on "+filepath.Base(address), 5*time.Millisecond, func(context.Context) bool {
		conn, err := net.Dial(network, address)
		return err == nil && conn.Close() == nil
	})
}

// child waits for the process that another one started, by the name of its
// program, and returns its id and the seconds until it was there.
func (p *process) child(ctx context.Context, program string) (pid int, took float64) {
	took = p.until(ctx, "running "+program, 200*time.Microsecond, func(context.Context) bool {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.pid())) // the pattern is valid
		for _, file := range files {
			data, _ := os.ReadFile(file) // empty if the thread is gone
			for _, field := range strings.Fields(string(data)) {
				exe, err := os.Readlink("/proc/" + field + "/exe")
				if err == nil && strings.HasPrefix(filepath.Base(exe), filepath.Base(program)) {
					pid, err = strconv.Atoi(field)
					return err == nil
				}
			}
		}
		return false
	})
	return pid, took
}

// lastWords returns the end of a program's log.
func (p *process) lastWords() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data[max(0, len(data)-2000):]))
}

// usage is what a process has used, in seconds of CPU time, and holds, in bytes.
type usage struct{ cpu, resident, anonymous, peak float64 }

func (p *process) usage() usage { return usageOf(p.pid()) }

func usageOf(pid int) (u usage) {
	for line := range strings.Lines(string(must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))))) {
		name, value, _ := strings.Cut(line, ":")
		if to := map[string]*float64{"VmRSS": &u.resident, "RssAnon": &u.anonymous, "VmHWM": &u.peak}[name]; to != nil {
			must(fmt.Sscan(value, to))
			*to *= 1024
		}
	}
	var ts unix.Timespec
	// The id of another process's CPU clock, as clock_getcpuclockid makes it.
	check(unix.ClockGettime(int32(^pid<<3|2), &ts))
	u.cpu = time.Duration(ts.Nano()).Seconds()
	return u
}

// forgetPeak has the kernel note the highest resident memory anew.
func (p *process) forgetPeak() {
	check(os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid()), []byte("5"), 0))
}

// get reads a URL to its end and returns how many bytes it has.
func get(ctx context.Context, client *http.Client, url string, to io.Writer) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, resp.Body, make([]byte, 256<<10))
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return n, err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
		check(ctx.Err())
	case <-time.After(d):
	}
}
