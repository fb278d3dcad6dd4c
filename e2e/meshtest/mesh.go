// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Output is the file in the directory of a mesh with what outrigger up prints.
const Output = "up.out"

// Run runs the mesh of mesh.yaml in a directory with the programs in bin. It returns when the mesh is
// ready; the mesh runs until the end of the test.
func Run(t *testing.T, bin, dir string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "outrigger"), "up", "-f", filepath.Join(dir, "mesh.yaml"), "--isolate=none")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := os.Create(filepath.Join(dir, Output))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }() // the mesh writes it
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	printed := func() string {
		text, _ := os.ReadFile(out.Name()) // it is there
		return string(text)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := <-ended; err != nil || t.Failed() {
			t.Errorf("%v\n%s", err, printed())
		}
	})
	for deadline := time.Now().Add(3 * time.Minute); !strings.Contains(printed(), "Ctrl-C ends it"); time.Sleep(10 * time.Millisecond) {
		select {
		case err := <-ended:
			ended <- err
			t.Fatal("the mesh ended")
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("the mesh is not ready within 3 minutes")
		}
	}
}
