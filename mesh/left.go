// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// markVariable names the state directory in the environment of every
// application, and so in that of whatever it starts.
const markVariable = "OUTRIGGER_UP_STATE"

// leftWait bounds how long killed processes get to be gone.
const leftWait = 2 * time.Second

// killLeft kills what the applications of a mesh started and left behind in a
// session of its own, where the signals to their groups do not reach. What
// was started with another environment, or as another user, is not found.
func killLeft(stateDir string) {
	mark := []byte(markVariable + "=" + stateDir + "\x00")
	for deadline := time.Now().Add(leftWait); time.Now().Before(deadline); {
		left := marked(mark)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
		}
	}
}

// marked returns the processes whose environment holds a mark. Those that have
// ended have none.
func marked(mark []byte) []int {
	var pids []int
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	for _, dir := range dirs {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(append([]byte{0}, env...), append([]byte{0}, mark...)) {
			continue // others' processes cannot be read
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
