// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/envoy"
)

// Host describes the environment in which a user runs a mesh.
type Host struct {
	Out io.Writer
	// EnvoyFlag and EnvoyVariable are paths of an Envoy; the flag takes precedence.
	EnvoyFlag, EnvoyVariable string
	// AllowUnsafeEnvoy allows an Envoy with known bypasses of authorization.
	AllowUnsafeEnvoy bool
	// Isolate is how workloads are separated: [IsolateAuto], [IsolateNetns] or [IsolateNone].
	Isolate string
	// Dumb is true for a terminal that supports only plain lines.
	Dumb bool
	// NoColor disables colours.
	NoColor bool
}

// Up runs a mesh until ctx is done or the output is closed by its reader. It uses the programs in
// the directory of this one. It sets the fields of cfg that depend on the host.
func Up(ctx context.Context, cfg Config, host Host) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	cfg.Display = NewDisplay(host)
	cfg.Display.Out = whileRead{cfg.Display.Out, end}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the directory of this program: %w", err)
	}
	cfg.Programs = filepath.Dir(self)
	if cfg.WorkDir, err = os.Getwd(); err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	cfg.Envoy, err = findEnvoy(ctx, host, cfg.Programs)
	cfg.AllowUnsafeEnvoy = host.AllowUnsafeEnvoy
	if ctx.Err() != nil {
		return nil // cancelled before the start
	}
	if err != nil {
		cfg.Problems = []Problem{{Text: err.Error()}}
	}
	isolated, notes, problems := isolates(ctx, host.Isolate)
	// A process that was left may have a port, so this is done before the ports are checked.
	cfg.Isolated, cfg.Notes, cfg.Problems = isolated, append(clearLeft(cfg.StateDir, os.TempDir()), notes...), append(cfg.Problems, problems...)
	m, err := New(cfg)
	if err != nil {
		return err
	}
	return m.Run(ctx)
}

// LookEnvoy returns the absolute path of the Envoy from a flag, the environment, the directory of this
// program, or PATH.
func LookEnvoy(flag, variable, programs string) (path string, err error) {
	switch {
	case flag != "":
		path, err = exec.LookPath(flag)
	case variable != "":
		path, err = exec.LookPath(variable)
	default:
		if path, err = exec.LookPath(filepath.Join(programs, "envoy")); err != nil {
			path, err = exec.LookPath("envoy")
		}
	}
	if err != nil {
		return "", fmt.Errorf("no Envoy was found (%w): run make envoy, or name one with --envoy or ENVOY", err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", fmt.Errorf("find Envoy: %w", err)
	}
	return path, nil
}

// findEnvoy returns the absolute path of a sufficiently new Envoy.
func findEnvoy(ctx context.Context, host Host, programs string) (string, error) {
	path, err := LookEnvoy(host.EnvoyFlag, host.EnvoyVariable, programs)
	if err != nil {
		return "", err
	}
	if _, err := envoy.CheckVersion(ctx, path, host.AllowUnsafeEnvoy); err != nil {
		return "", err
	}
	return path, nil
}

// whileRead ends the mesh when the reader of its output is gone, as in outrigger up | head.
type whileRead struct {
	io.Writer
	end func()
}

// Write implements io.Writer.
func (w whileRead) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		w.end()
	}
	return n, err
}

// NewDisplay determines whether the output of a host is a terminal, and its size.
func NewDisplay(host Host) Display {
	d := Display{Out: host.Out}
	if f, ok := host.Out.(interface{ Fd() uintptr }); ok {
		fd := int(f.Fd())
		size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		d.Terminal = err == nil && !host.Dumb
		if d.Terminal {
			d.Height, d.Width = int(size.Row), int(size.Col)
			d.size = func() (lines, columns int) {
				size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
				if err != nil {
					return 0, 0
				}
				return int(size.Row), int(size.Col)
			}
		}
	}
	d.Color = d.Terminal && !host.NoColor
	return d
}
