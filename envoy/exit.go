// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ExitError describes an unexpected exit of Envoy.
type ExitError struct {
	// Code is the exit code, or -1 if a signal ended Envoy.
	Code int
	// Signal is the signal that ended Envoy, or 0 if none did.
	Signal syscall.Signal
	// OOM is true if the kernel reports an out-of-memory kill during Envoy's lifetime.
	OOM bool
}

// Error returns a sentence that says what happened and where to find details.
func (e *ExitError) Error() string {
	switch {
	case e.OOM:
		return "envoy was killed by the kernel because its cgroup was out of memory: raise the memory limit, or lower envoy's concurrency or the configuration it is sent"
	case e.Signal == syscall.SIGKILL:
		return "envoy was killed by signal 9 (killed); if it was not sent on purpose, look for out-of-memory messages in the kernel's log"
	case e.Signal != 0:
		return fmt.Sprintf("envoy was terminated by signal %d (%s); if it was not sent on purpose, envoy crashed and its last log lines contain the reason", int(e.Signal), e.Signal)
	case e.Code == 0:
		return "envoy exited with code 0 although the agent had not stopped it; a request to its admin port or a signal may have done so"
	default:
		return fmt.Sprintf("envoy exited with code %d; its last log lines contain the reason, most often an invalid bootstrap or a port in use", e.Code)
	}
}

// cause returns the value of the metric's cause label.
func (e *ExitError) cause() string {
	switch {
	case e.OOM:
		return "oom"
	case e.Signal != 0:
		return "signal"
	case e.Code == 0:
		return "exited"
	default:
		return "failed"
	}
}

// exitError returns an ExitError for the exited process. oomKilled reports whether the kernel's
// out-of-memory killer acted while it ran.
func exitError(state *os.ProcessState, oomKilled bool) *ExitError {
	e := &ExitError{Code: state.ExitCode()}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		e.Signal = status.Signal()
	}
	e.OOM = oomKilled && e.Signal == syscall.SIGKILL
	return e
}

// oomKills returns the number of out-of-memory kills in the agent's cgroup, which Envoy shares. It
// returns 0 if the number is unknown.
func oomKills() uint64 {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	return oomKillsIn("/sys/fs/cgroup", string(own))
}

// oomKillsIn reads the number of kills below root, the mount point of the cgroup file system. own
// is the content of /proc/self/cgroup.
func oomKillsIn(root, own string) uint64 {
	for _, path := range memoryFiles(root, own) {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		for lines.Scan() {
			if value, found := strings.CutPrefix(lines.Text(), "oom_kill "); found {
				n, err := strconv.ParseUint(value, 10, 64)
				if err == nil {
					return n
				}
			}
		}
	}
	return 0
}

// memoryFiles lists the files that may contain the number of kills: first in the cgroup named in
// /proc, as seen by the host, then in the root, which is the container's own cgroup within its
// namespace.
func memoryFiles(root, own string) []string {
	var files []string
	for line := range strings.Lines(own) {
		// The format is "0::/path" for version 2 and "4:memory:/path" for version 1.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[0] == "0" && parts[1] == "":
			files = append(files, filepath.Join(root, parts[2], "memory.events"), filepath.Join(root, "memory.events"))
		case parts[1] == "memory":
			files = append(files, filepath.Join(root, "memory", parts[2], "memory.oom_control"), filepath.Join(root, "memory", "memory.oom_control"))
		}
	}
	return files
}
