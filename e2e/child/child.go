// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package child

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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

// Process is a program that runs until Stop or Kill, or until this program exits. When it exits,
// its children in the same process group are killed.
type Process struct {
	PID   int
	Path  string         // the program
	Log   string         // file that contains its output
	Began time.Time      // when it was started
	Stdin io.WriteCloser // closed when the program exits
	Ended chan struct{}  // closed when the program has exited
	Err   error          // its exit error; set before Ended is closed

	process *os.Process
}

// Spec describes a program to run.
type Spec struct {
	Path, Dir string
	Log       string // file for the output
	Args, Env []string
	GID       uint32 // 0 means that of this program
	// Enter moves the calling thread to the environment in which to run the program, such as a
	// network namespace; nil means that of this program.
	Enter func() error
}

// Start creates the directory of a program and starts it.
func Start(p Spec) (*Process, error) {
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Path, err)
	}
	out, err := os.Create(p.Log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Path, err)
	}
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.Dir, out, out
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, p.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if p.GID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Gid: p.GID}
	}
	proc := &Process{Path: p.Path, Log: p.Log, Ended: make(chan struct{})}
	if proc.Stdin, err = cmd.StdinPipe(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", p.Path, err), out.Close())
	}
	started := make(chan error, 1)
	go func() {
		// The kernel kills the program when the thread that started it ends. Never unlock the
		// thread, so that it ends with the goroutine.
		runtime.LockOSThread()
		var err error
		if p.Enter != nil {
			err = p.Enter()
		}
		if err == nil {
			proc.Began = time.Now()
			err = cmd.Start()
		}
		if started <- err; err != nil {
			return
		}
		// Kill its remaining children. Until Wait, its process id is not reused.
		for errors.Is(unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		proc.Err = cmd.Wait()
		close(proc.Ended)
	}()
	if err := errors.Join(<-started, out.Close()); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Path, err)
	}
	proc.PID, proc.process = cmd.Process.Pid, cmd.Process
	return proc, nil
}

// Stop sends SIGTERM to the program, and SIGKILL after a minute.
func (p *Process) Stop() {
	_ = p.Signal(syscall.SIGTERM) // it may have exited
	select {
	case <-p.Ended:
	case <-time.After(time.Minute):
		p.Kill()
	}
}

// Signal sends a signal to the program. It returns os.ErrProcessDone if it has exited.
func (p *Process) Signal(s os.Signal) error { return p.process.Signal(s) }

// Kill kills the program at once.
func (p *Process) Kill() {
	_ = p.process.Kill() // it may have exited
	<-p.Ended
}

// Output returns up to the last 16 MB of the program's output.
func (p *Process) Output() string {
	f, err := os.Open(p.Log)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }() // read-only
	const most = 16 << 20
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	b := make([]byte, min(info.Size(), most))
	n, _ := f.ReadAt(b, max(0, info.Size()-most)) // a partial read is sufficient
	return string(b[:n])
}

// LastWords returns the end of the program's output.
func (p *Process) LastWords() string {
	out := p.Output()
	return strings.TrimSpace(out[max(0, len(out)-2000):])
}

// Usage is the resource usage of a process.
type Usage struct {
	RSS, Anonymous, Peak int64 // resident memory in bytes: current, anonymous part, peak
	CPU                  time.Duration
}

// Usage measures the program. The peak is the maximum since ResetPeak.
func (p *Process) Usage() (Usage, error) {
	u, err := UsageOf(p.PID)
	if err != nil {
		return u, fmt.Errorf("%w: %s", err, p.LastWords())
	}
	return u, nil
}

// Logged returns the number of lines and bytes of the program's output.
func (p *Process) Logged() (lines int, size int64, err error) {
	log, err := os.ReadFile(p.Log)
	return bytes.Count(log, []byte("\n")), int64(len(log)), err
}

// UsageOf measures a process of the current user.
func UsageOf(pid int) (u Usage, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, fmt.Errorf("the process has ended: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kB, _ := strconv.ParseInt(f[1], 10, 64) // the fields below are numeric
		switch f[0] {
		case "VmRSS:":
			u.RSS = kB << 10
		case "RssAnon:":
			u.Anonymous = kB << 10
		case "VmHWM:":
			u.Peak = kB << 10
		}
	}
	var ts unix.Timespec
	// Compute the id of another process's CPU clock like clock_getcpuclockid.
	if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err != nil {
		return u, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	u.CPU = time.Duration(ts.Nano())
	return u, nil
}

// ResetPeak resets the peak of memory to the current value. Only the owner of a process may do so.
func (p *Process) ResetPeak() error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset the peak of memory of process %d: %w", p.PID, err)
	}
	return nil
}

// Child returns the id of the program's child process with the given program name.
func (p *Process) Child(program string) (pid int, found bool) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.PID)) // the pattern is valid
	for _, file := range files {
		data, _ := os.ReadFile(file) // empty if the thread has ended
		for _, field := range strings.Fields(string(data)) {
			exe, err := os.Readlink("/proc/" + field + "/exe")
			if err == nil && strings.HasPrefix(filepath.Base(exe), filepath.Base(program)) {
				pid, err = strconv.Atoi(field)
				return pid, err == nil
			}
		}
	}
	return 0, false
}
