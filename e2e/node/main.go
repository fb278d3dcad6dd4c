// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Runner is a *testing.M or a wrapper.
type Runner interface{ Run() int }

// stageVariable says which of the processes of a run this is; it is empty in the first.
const stageVariable = "OUTRIGGER_TEST_NODE"

const (
	stageProbe = "probe" // asks whether the machine allows a node
	stageInit  = "init"  // process 1 of the node
	stageTests = "tests"
	stageClean = "clean" // removes the node's cgroups at the end of the first process
)

// filesVariable holds a [files] in JSON.
const filesVariable = "OUTRIGGER_TEST_NODE_FILES"

// Main runs the tests of m on a node of their own and returns the exit code. It returns 0 after a
// line on standard output if the machine does not allow a node.
func Main(ctx context.Context, m Runner) int {
	runtime.LockOSThread() // Pdeathsig and unshare refer to threads
	var err error
	switch os.Getenv(stageVariable) {
	case stageProbe:
		err = probe()
	case stageInit:
		var code int
		if code, err = initProcess(); err == nil {
			return code
		}
	case stageTests:
		return m.Run()
	case stageClean:
		err = clean(os.Stdin)
	default:
		var code int
		if code, err = outside(ctx); err == nil {
			return code
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		return 1
	}
	return 0
}

// outside prepares what needs the network and the build cache of the machine, and runs the node.
func outside(ctx context.Context) (code int, err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	groups, err := allowed(ctx)
	if err != nil {
		fmt.Printf("node: tests on a real node are left out: %v\n", err)
		return 0, nil
	}
	finish, err := groups.removeAtEnd()
	if err != nil {
		return 0, errors.Join(err, groups.remove())
	}
	defer func() { err = errors.Join(err, finish()) }()
	f, err := prepare(ctx)
	if err != nil {
		return 0, err
	}
	encoded, err := json.Marshal(f)
	if err != nil {
		return 0, err
	}
	cmd := stage(ctx, stageInit)
	cmd.Args = append(cmd.Args, os.Args[1:]...)
	cmd.Env = append(cmd.Env, filesVariable+"="+string(encoded), cgroupsVariable+"="+groups.String())
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	} else if err != nil {
		return 0, err
	}
	return 0, nil
}

// allowed returns the cgroups of a node, or the reason why this machine allows none.
func allowed(ctx context.Context) (cgroups, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("they need root")
	}
	out, err := stage(ctx, stageProbe).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("the machine allows no namespaces: %w: %s", err, out)
	}
	return newCgroups()
}

// stage returns this program as a process of new namespaces. It ends with this thread.
func stage(ctx context.Context, name string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{os.Args[0]}
	cmd.Env = append(os.Environ(), stageVariable+"="+name)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if name == stageProbe {
		cmd.Stdout, cmd.Stderr = nil, nil
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd
}
