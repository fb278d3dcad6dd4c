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
	// maxOutput is the maximum number of bytes of a command's output in an error.
	maxOutput = 256
	// outputGrace is how long to wait for the output once the command has exited. Processes that it
	// left running may keep the output open.
	outputGrace = 100 * time.Millisecond
)

// Exec succeeds if the command exits with code 0. If ctx is done first, Exec kills the command and
// all processes in its process group.
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
		return fmt.Errorf("%s did not finish in time: %w", command[0], ctx.Err())
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return nil // exited with 0; only its output was still open
	case out.text() == "":
		return fmt.Errorf("%s: %w", command[0], err)
	}
	return fmt.Errorf("%s: %w: %s", command[0], err, out.text())
}

// head stores the beginning of the data written to it. It needs no lock: exec copies both outputs
// of a command to the same writer from a single goroutine.
type head struct {
	kept bytes.Buffer
}

func (h *head) Write(p []byte) (int, error) {
	if left := maxOutput - h.kept.Len(); left > 0 {
		h.kept.Write(p[:min(left, len(p))])
	}
	return len(p), nil
}

// text returns the stored output as a single readable line.
func (h *head) text() string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(h.kept.String(), "?")), " ")
}
