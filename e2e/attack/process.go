// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/e2e/child"
	"github.com/outrigger-mesh/outrigger/e2e/netlab"
)

// onLockedThread calls a function on a thread that ends when the function returns. The function may
// change the state of the thread. The calling goroutine must not be used for anything else.
func onLockedThread(f func() error) error {
	runtime.LockOSThread()
	return f()
}

// process is a program that runs until it is stopped, or until this program exits.
type process struct{ *child.Process }

// spec describes a program to run.
type spec struct {
	path, dir string
	args, env []string
	gid       uint32          // 0 means that of this program
	at        *netlab.Machine // nil means the namespace of this program
	resolv    string          // file that the program uses as /etc/resolv.conf; empty means that of the system
}

// enter moves the calling thread to the environment in which to run the program.
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

// start starts a program whose output is written to the file log in its directory.
func start(p spec) (*process, error) {
	c, err := child.Start(child.Spec{
		Path: p.path, Dir: p.dir, Log: filepath.Join(p.dir, "log"), Args: p.args, Env: p.env, GID: p.gid, Enter: p.enter,
	})
	if err != nil {
		return nil, err
	}
	return &process{c}, nil
}

// usage is the resource usage of a process.
type usage struct {
	child.Usage
	lines  int   // lines in its log
	logged int64 // bytes in its log
}

// usage measures the process. The peak is the maximum since resetPeak.
func (p *process) usage() (u usage, err error) {
	if u.Usage, err = p.Usage(); err == nil {
		u.lines, u.logged, err = p.Logged()
	}
	return u, err
}

// resetPeak resets the peak of memory to the current value. Without permission, the peak is the
// maximum since the start.
func (p *process) resetPeak() { _ = p.ResetPeak() }
