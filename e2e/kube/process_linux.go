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

// childAttributes puts a program into a process group of its own, so that Ctrl-C
// does not end it before the test, and ends it with the test process.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStopped waits until no thread of a process runs any more, a minute at most:
// a signal that stops it reaches threads on other processors later.
func awaitStopped(pid int) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is good
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
