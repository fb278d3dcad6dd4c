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

// markVariable contains the state directory. It is set in the environment of every application and
// inherited by its descendants.
const markVariable = "OUTRIGGER_UP_STATE"

// leftWait is how long to wait until killed processes are gone.
const leftWait = 2 * time.Second

// killLeft kills processes that the applications of a mesh started in another session, where
// signals to the process group do not reach them. It does not find processes with a cleared
// environment or of another user. It returns their number.
func killLeft(stateDir string) int {
	killed := map[int]bool{}
	mark := []byte(markVariable + "=" + stateDir + "\x00")
	for deadline := time.Now().Add(leftWait); time.Now().Before(deadline); {
		left := marked(mark)
		if len(left) == 0 {
			break
		}
		for _, pid := range left {
			killed[pid] = true
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have exited already
		}
	}
	return len(killed)
}

// marked returns the processes whose environment contains the mark. Processes that have exited have
// no environment.
func marked(mark []byte) []int {
	var pids []int
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	for _, dir := range dirs {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(append([]byte{0}, env...), append([]byte{0}, mark...)) {
			continue // processes of other users cannot be read
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
