// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/e2e/netlab"
)

// onLockedThread calls a function on a thread that ends when it returns: a child
// with Pdeathsig is killed when the thread that started it ends. The function may
// change the thread. The caller is a goroutine that does nothing else.
func onLockedThread(f func() error) error {
	runtime.LockOSThread()
	return f()
}

// process is a program that runs until stop, or until this program ends.
type process struct {
	pid   int
	log   string // file with its output
	ended chan struct{}
	err   error // how it ended; set before ended is closed
}

// spec says what to run.
type spec struct {
	path, dir string
	args, env []string
	gid       uint32          // 0 for that of this program
	at        *netlab.Machine // nil for the namespace of this program
	resolv    string          // file that the program sees as /etc/resolv.conf; empty for that of the system
}

// enter moves the calling thread to where the program is to run.
func (p spec) enter() error {
	if p.at != nil {
		if err := p.at.Enter(); err != nil {
			return err
		}
	}
	if p.resolv == "" {
		return nil
	}
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Mount(p.resolv, "/etc/resolv.conf", "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("%w: /etc/resolv.conf cannot be replaced for one program: %w", errSkipped, err)
	}
	return nil
}

// start starts a program whose output goes to the file log in its directory.
func start(p spec) (*process, error) {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	proc := &process{log: filepath.Join(p.dir, "log"), ended: make(chan struct{})}
	out, err := os.Create(proc.log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, out, out
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if p.gid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Gid: p.gid}
	}
	started := make(chan error, 1)
	go func() {
		_ = onLockedThread(func() error {
			err := p.enter()
			if err == nil {
				err = cmd.Start()
			}
			started <- err
			if err == nil {
				proc.err = cmd.Wait()
				close(proc.ended)
			}
			return err
		}) // the caller has the error
	}()
	if err := errors.Join(<-started, out.Close()); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	proc.pid = cmd.Process.Pid
	return proc, nil
}

// stop ends the program with SIGTERM, and with SIGKILL after a minute.
func (p *process) stop() {
	_ = syscall.Kill(p.pid, syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
	}
	p.kill() // an agent's Envoy may be left
}

// kill ends the program at once.
func (p *process) kill() {
	_ = syscall.Kill(-p.pid, syscall.SIGKILL) // it may have ended
	<-p.ended
}

// output returns what the program wrote, the last 16 MB at most.
func (p *process) output() string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }() // only read
	const most = 16 << 20
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	b := make([]byte, min(info.Size(), most))
	n, _ := f.ReadAt(b, max(0, info.Size()-most)) // what is there is what is wanted
	return string(b[:n])
}

// lastWords returns the end of what the program wrote.
func (p *process) lastWords() string {
	out := p.output()
	return strings.TrimSpace(out[max(0, len(out)-1000):])
}

// usage is what a process uses or used.
type usage struct {
	rss, peak int64 // bytes of resident memory, now and at most
	cpu       time.Duration
	lines     int   // of its log
	logged    int64 // bytes of its log
}

// usage measures the process. The peak is that since resetPeak.
func (p *process) usage() (u usage, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return u, fmt.Errorf("the process has ended: %w: %s", err, p.lastWords())
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kB, _ := strconv.ParseInt(f[1], 10, 64) // the two fields below are numbers
		switch f[0] {
		case "VmRSS:":
			u.rss = kB << 10
		case "VmHWM:":
			u.peak = kB << 10
		}
	}
	var ts unix.Timespec
	// The id of another process's CPU clock, as clock_getcpuclockid makes it.
	if err := unix.ClockGettime(int32(^p.pid<<3|2), &ts); err != nil {
		return u, fmt.Errorf("read the CPU time of process %d: %w", p.pid, err)
	}
	u.cpu = time.Duration(ts.Nano())
	log, err := os.ReadFile(p.log)
	u.lines, u.logged = bytes.Count(log, []byte("\n")), int64(len(log))
	return u, err
}

// resetPeak makes the peak of memory that of now. Only the owner of a process
// may do so; without it, the peak is that since the start.
func (p *process) resetPeak() {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid), []byte("5"), 0) // as above
}
