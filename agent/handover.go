// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/envoy"
)

// HandoverVersion is the version of how an agent finds what the one before it in its process has left:
// Envoy among the children of the process, sockets by their addresses.
const HandoverVersion = "1"

// HandoverCommand is the command of the agent that prints HandoverVersion.
const HandoverCommand = "handover-version"

const (
	// trialTimeout is how long a program may take to print a version.
	trialTimeout = 30 * time.Second
	// namesPatience is how long lookups wait for the first names after a handover. It is shorter than
	// the five seconds after which resolvers give up.
	namesPatience = 4 * time.Second
)

// replaced returns the path of the agent's program if another file is there than the one that runs,
// as after an upgrade, or "".
func replaced() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	running, err := os.Stat("/proc/self/exe")
	now, missing := os.Stat(path)
	if errors.Join(err, missing) != nil || os.SameFile(running, now) {
		return ""
	}
	return path
}

// handOver checks that the program of another agent works and can replace this one, and leaves Envoy
// and the sockets to it as soon as the control plane is connected.
func (p *parts) handOver(ctx context.Context, path string) error {
	trial, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	out, err := exec.CommandContext(trial, path, HandoverCommand).CombinedOutput()
	if out = bytes.TrimSpace(out); err != nil {
		return fmt.Errorf("%s %s: %w: %.200q", path, HandoverCommand, err, out)
	}
	if string(out) != HandoverVersion {
		return fmt.Errorf("%s has the handover version %.20q, this agent has %s", path, out, HandoverVersion)
	}
	return p.envoy.HandOver(ctx)
}

// keep copies the sockets for the next agent, so that the components of this one can end. It returns
// envoy.ErrHandedOver.
func (p *parts) keep() error {
	kept, err := p.socks.keep()
	if err != nil {
		return fmt.Errorf("hand over to another agent: %w", err)
	}
	p.kept.Store(&kept)
	return envoy.ErrHandedOver
}

// exec executes the program at the path of this one, in this process. It returns an error if that
// fails, which ends Envoy too.
func (p *parts) exec(ctx context.Context, log *slog.Logger, environ []string) error {
	path, err := os.Executable()
	if err != nil {
		return fmt.Errorf("hand over to another agent: %w", err)
	}
	log.Info("another agent replaces this one; envoy runs on", "path", path, "pid", p.envoy.PID())
	// SIGHUP must not end the next program before that handles it.
	signal.Ignore(syscall.SIGHUP)
	if err := p.kept.Load().Pass(); err != nil {
		return fmt.Errorf("hand over to another agent: %w", err)
	}
	return p.envoy.Exec(ctx, path, os.Args, environ)
}

// serveDNS runs the DNS proxy.
func (p *parts) serveDNS(ctx context.Context) error {
	p.awaitNames(ctx)
	return p.dns.Run(ctx)
}

// awaitNames waits for the first names after a handover. Requests wait in the sockets of the DNS proxy
// meanwhile: without names, it would deny those of the mesh.
func (p *parts) awaitNames(ctx context.Context) {
	if !p.socks.inherited {
		return
	}
	select {
	case <-p.dns.Named():
	case <-time.After(namesPatience):
	case <-ctx.Done():
	}
}
