// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// maxOutput is how much of a command's output an error shows.
	maxOutput = 256
	// outputGrace is how long to wait for the output once the command has ended:
	// what it left running may hold on to it.
	outputGrace = 100 * time.Millisecond
)

// Exec succeeds when the command ends with the code 0. When ctx ends first, the
// command and everything that it started in its process group are killed.
func Exec(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return errors.New("there is no command")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	out := &head{}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return os.ErrProcessDone
	}
	cmd.WaitDelay = outputGrace
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not end in time: %w", command[0], ctx.Err())
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return nil // it ended with 0: only its output was still open
	case out.text() == "":
		return fmt.Errorf("%s: %w", command[0], err)
	}
	return fmt.Errorf("%s: %w: %s", command[0], err, out.text())
}

// head keeps the beginning of what is written to it. One process writes, but
// exec copies both of its outputs to the same writer with one goroutine.
type head struct {
	kept bytes.Buffer
}

func (h *head) Write(p []byte) (int, error) {
	if left := maxOutput - h.kept.Len(); left > 0 {
		h.kept.Write(p[:min(left, len(p))])
	}
	return len(p), nil
}

// text is what was kept, as one line that can be read.
func (h *head) text() string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(h.kept.String(), "?")), " ")
}
