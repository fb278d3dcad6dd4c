// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// childAttributes puts a program into its own process group, so that Ctrl-C does not stop it before
// the test, and has the kernel kill it with the test process.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStopped waits until no thread of a process runs, at most a minute: a stop signal reaches
// threads on other processors later.
func awaitStopped(pid int) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is valid
		running := false
		for _, file := range threads {
			stat, err := os.ReadFile(file)
			if _, state, ok := bytes.Cut(stat, []byte(") ")); err == nil && ok {
				running = running || !bytes.HasPrefix(state, []byte("T"))
			}
		}
		if !running {
			return
		}
	}
}
