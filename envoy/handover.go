// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/outrigger-mesh/outrigger/internal/handover"
)

// ErrHandedOver is the error of Run when Envoy runs on, for the program that [Process.Exec] executes.
var ErrHandedOver = errors.New("envoy is left to the next program")

// HandOver waits until nothing prevents a hot restart, and then makes Run return ErrHandedOver. The
// next program of this process finds Envoy among its children and starts a new one that takes over.
func (p *Process) HandOver(ctx context.Context) error {
	if p.hot == nil {
		return errors.New("hot restart is disabled")
	}
	for {
		c := p.current.Load()
		if c == nil {
			return errors.New("envoy has not been started yet")
		}
		err := p.possible(ctx, c)
		if err != nil && p.current.Load() != c {
			continue // another one has taken over
		}
		if err != nil {
			return err
		}
		if c.thread == nil {
			return errors.New("envoy is still that of the agent before this one")
		}
		if !slices.Contains(children(), c.process.Pid) {
			return errors.New("the kernel does not list the children of a process (CONFIG_PROC_CHILDREN)")
		}
		select {
		case p.hot.handOver <- struct{}{}:
		default: // it was requested already
		}
		return nil
	}
}

// Exec executes another program in this process, after Run has returned ErrHandedOver. It returns an
// error if that fails, or if Envoy has exited. If ctx is done, it stops Envoy instead.
func (p *Process) Exec(ctx context.Context, path string, argv, environ []string) error {
	c := p.current.Load()
	if ctx.Err() != nil {
		return p.stop(ctx, c)
	}
	if err := handover.Kept(c.output.pipes).Pass(); err != nil {
		return fmt.Errorf("execute %s: %w", path, err)
	}
	failed := make(chan error)
	select {
	case c.thread <- func() { failed <- syscall.Exec(path, argv, environ) }:
		return fmt.Errorf("execute %s: %w", path, <-failed)
	case <-c.ended:
		return p.ended(c)
	}
}

// children returns the process ids of this process's children.
func children() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is valid
	for _, path := range lists {
		list, _ := os.ReadFile(path) // the thread may have ended
		for _, field := range strings.Fields(string(list)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// inherit returns the Envoy that the program before this one has left, or nil.
func (h *hotRestarts) inherit(stdout, stderr io.Writer) (found *child) {
	for _, pid := range children() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue // it has ended
		}
		if info, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil || !ownedBySelf(info) {
			continue // an orphan of another user, which process 1 adopts
		}
		c := h.parse(strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00"))
		if c == nil || found != nil && c.epoch < found.epoch {
			continue
		}
		if c.process, err = os.FindProcess(pid); err == nil {
			found = c
		}
	}
	if found == nil {
		return nil
	}
	found.output.find(found.process.Pid, stdout, stderr)
	found.ready.Store(true) // else it would not have been left
	found.ended = make(chan struct{})
	go func() { // ends when Envoy does
		defer close(found.ended)
		oomBefore := oomKills()
		found.state, found.err = found.process.Wait()
		found.output.close()
		if found.state != nil {
			found.crash = exitError(found.state, oomKills() > oomBefore)
		}
	}()
	return found
}

func ownedBySelf(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// parse returns the Envoy with these arguments, without its process, or nil if it is not one that
// uses the sockets.
func (h *hotRestarts) parse(argv []string) *child {
	value := func(flag string) string {
		i := slices.Index(argv, flag)
		if i < 0 || i+1 == len(argv) {
			return ""
		}
		return argv[i+1]
	}
	baseID, err := strconv.ParseUint(value("--base-id"), 10, 32)
	epoch, epochErr := strconv.Atoi(value("--restart-epoch"))
	if errors.Join(err, epochErr) != nil || value("--socket-path") != h.Sockets || epoch < 0 {
		return nil
	}
	return &child{line: lineOf(h.Sockets, uint32(baseID), h.Drain), epoch: epoch}
}
