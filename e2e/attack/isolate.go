// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"
)

// isolation is the variable that marks a process which runs in its own network
// namespace.
const isolation = "OUTRIGGER_ATTACK_ISOLATED"

// isolated runs this program again in a network namespace of its own and
// returns its exit code. It reports false if this process is the one that has to
// do the work: it runs in such a namespace, or may not make one.
func isolated() (code int, ran bool) {
	if os.Getenv(isolation) != "" {
		if err := loopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, "attack: network namespace:", err)
			return 1, true
		}
		return 0, false
	}
	if os.Geteuid() != 0 {
		return 0, false
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), isolation+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := onLockedThread(cmd.Run)
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0, true
	case errors.As(err, &ended):
		return max(ended.ExitCode(), 1), true
	}
	fmt.Fprintln(os.Stderr, "attack: no network namespace, random addresses are used instead:", err)
	return 0, false
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
