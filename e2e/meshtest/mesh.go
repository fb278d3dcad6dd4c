// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshtest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Run runs the mesh of mesh.yaml in a directory with the programs in bin. It returns when the mesh is
// ready; the mesh runs until the end of the test.
func Run(t *testing.T, bin, dir string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "outrigger"), "up", "-f", filepath.Join(dir, "mesh.yaml"), "--isolate=none")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready, lines, ended := make(chan struct{}), []string(nil), make(chan struct{})
	go func() { // reads the output until the mesh ends
		defer close(ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			if lines = append(lines, s.Text()); strings.Contains(s.Text(), "Ctrl-C ends it") {
				close(ready)
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-ended
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("%v\n%s", err, strings.Join(lines, "\n"))
		}
	})
	// Cases: the mesh is ready; it ended; it takes too long.
	select {
	case <-ready:
	case <-ended:
		t.Fatal("the mesh ended")
	case <-time.After(3 * time.Minute):
		t.Fatal("the mesh is not ready within 3 minutes")
	}
}
