// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/cmd/outrigger/up"
	"github.com/outrigger-mesh/outrigger/envoy"
)

const upLong = `Run a mesh on this machine: one control plane, and for each workload of the mesh
file its application, an agent and an Envoy on a loopback address of its own.
No root, no container, no network is needed.

The mesh file is checked first, and every problem is listed: an unknown field, a
missing command, a port in use. Then everything starts, a table shows what runs,
and the output of the workloads follows. What ends is started again. Ctrl-C ends
everything and removes what was made; a second Ctrl-C does so at once.

Envoy 1.36 or newer is taken from --envoy, from ENVOY, from beside this program
(make envoy puts it there) or from PATH, in this order.`

const upExample = `  outrigger up -f examples/shop/mesh.yaml
  outrigger up -f mesh.yaml --verbose
  outrigger up -f mesh.yaml --state-dir ./state   # keep logs, CA and configuration
  ENVOY=/usr/local/bin/envoy outrigger up -f mesh.yaml`

func newUpCommand(env environment, kill <-chan struct{}) *cobra.Command {
	cfg := up.Config{Environ: env.all, Kill: kill}
	cmd := &cobra.Command{
		Use:     "up -f mesh.yaml",
		Short:   "Run a mesh on this machine",
		Long:    upLong,
		Example: upExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, end := context.WithCancel(cmd.Context())
			defer end()
			cfg.Display = newDisplay(cmd.OutOrStdout(), env)
			cfg.Display.Out = whileRead{cfg.Display.Out, end}
			return runUp(ctx, cfg, env)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&cfg.File, "file", "f", "mesh.yaml", "the mesh file")
	flags.StringVar(&cfg.StateDir, "state-dir", "", "keep the state here (default: a temporary directory, removed at the end)")
	flags.StringVar(&cfg.Envoy, "envoy", "", "the Envoy to run")
	flags.DurationVar(&cfg.Timeout, "timeout", time.Minute, "how long the start may take")
	flags.BoolVarP(&cfg.Verbose, "verbose", "v", false, "show all output of agents, Envoys and the control plane, not only warnings and errors")
	return cmd
}

func runUp(ctx context.Context, cfg up.Config, env environment) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the directory of this program: %w", err)
	}
	cfg.Programs = filepath.Dir(self)
	if cfg.WorkDir, err = os.Getwd(); err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	cfg.Envoy, err = findEnvoy(ctx, cfg.Envoy, env.envoy, cfg.Programs)
	if ctx.Err() != nil {
		return nil // ended before anything began
	}
	if err != nil {
		cfg.Problems = []up.Problem{{Text: err.Error()}}
	}
	mesh, err := up.New(cfg)
	if err != nil {
		return err
	}
	return mesh.Run(ctx)
}

// findEnvoy gives the absolute path of an Envoy that is new enough: the one
// of the flag, of the environment, beside this program, or on PATH.
func findEnvoy(ctx context.Context, flag, fromEnv, programs string) (string, error) {
	path, err := "", error(nil)
	switch {
	case flag != "":
		path, err = exec.LookPath(flag)
	case fromEnv != "":
		path, err = exec.LookPath(fromEnv)
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
	if _, err := envoy.CheckVersion(ctx, path); err != nil {
		return "", err
	}
	return path, nil
}

// whileRead ends the mesh when nobody reads its output any more, as in
// outrigger up | head.
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

// newDisplay finds out whether out is a terminal.
func newDisplay(out io.Writer, env environment) up.Display {
	d := up.Display{Out: out}
	if f, ok := out.(*os.File); ok {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		d.Terminal = err == nil && !env.dumb
		if d.Terminal {
			d.Height = int(size.Row)
		}
	}
	d.Color = d.Terminal && !env.noColor
	return d
}
