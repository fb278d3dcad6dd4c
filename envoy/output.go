// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// outputs are what an Envoy prints to pipes. These are files of the agent, which pass to the next one.
type outputs struct {
	pipes  []*os.File
	copies sync.WaitGroup
}

// inherited returns w, so that Envoy inherits it if it is a file. If Envoy could not open the file as
// /dev/stdout, as access logs do, it returns a pipe to w and reports that Envoy needs its own end
// only: systemd passes services a socket, and files that only root can open.
func (o *outputs) inherited(w io.Writer) (io.Writer, *os.File) {
	f, ok := w.(*os.File)
	if !ok {
		return w, nil
	}
	again, err := os.OpenFile(fmt.Sprintf("/dev/fd/%d", f.Fd()), os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0)
	if err == nil {
		_ = again.Close() // nothing was written
		return w, nil
	}
	from, to, err := os.Pipe()
	if err != nil {
		return struct{ io.Writer }{f}, nil // os/exec reports that there are no pipes
	}
	o.copy(f, from)
	return to, to
}

// copy copies what a pipe receives until all its writers have ended.
func (o *outputs) copy(to io.Writer, pipe *os.File) {
	o.pipes = append(o.pipes, pipe)
	o.copies.Go(func() { _, _ = io.Copy(to, pipe) }) // without a reader the output is lost
}

// close waits for the last output of an Envoy that has exited, for a moment.
func (o *outputs) close() {
	copied := make(chan struct{})
	go func() { // ends when the pipes are closed
		o.copies.Wait()
		close(copied)
	}()
	wait(pipeGrace, copied, nil)
	for _, pipe := range o.pipes {
		_ = pipe.Close() // only read
	}
	<-copied
}

// find copies what the Envoy of the program before this one prints to pipes that that has left.
func (o *outputs) find(pid int, stdout, stderr io.Writer) {
	for fd, to := range map[int]io.Writer{syscall.Stdout: stdout, syscall.Stderr: stderr} {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
		if err != nil || to == nil {
			continue
		}
		own, _ := filepath.Glob("/proc/self/fd/*") // the pattern is valid
		for _, path := range own {
			n, err := strconv.Atoi(filepath.Base(path))
			if err != nil || n <= syscall.Stderr {
				continue
			}
			if same, err := os.Readlink(path); err != nil || same != link {
				continue
			}
			closed, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
			mode, modeErr := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0)
			if err != nil || modeErr != nil || closed&unix.FD_CLOEXEC != 0 || mode&unix.O_ACCMODE != unix.O_RDONLY {
				continue
			}
			unix.CloseOnExec(n)
			o.copy(to, os.NewFile(uintptr(n), link))
		}
	}
}
