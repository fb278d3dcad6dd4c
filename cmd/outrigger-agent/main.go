// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/agent/logging"
	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

// version is set by the linker (-ldflags "-X main.version=...") and never changes.
var version = "dev"

// The exit codes. pilot-agent does not have exitEnvoyCrashed.
const (
	exitOK           = 0
	exitEnvoyCrashed = 1
	exitNotCaptured  = 126 // the same as pilot-agent's
	exitError        = 255
)

func main() {
	os.Exit(run(os.Args, environment()))
}

// run executes the command line, which begins with the program's name, and
// returns the exit code.
func run(argv, environ []string) int {
	name, args := programName(argv), argv[min(1, len(argv)):]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	now := make(chan struct{})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	// A closed log pipe must not end the proxy: with a handler, writes to it fail
	// instead. The signal itself is ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	done := make(chan struct{})
	defer close(done)
	go obey(signals, done,
		cancel,                        // drain, then exit
		func() { close(now) },         // exit without draining
		func() { os.Exit(exitError) }, // exit even if something hangs
	)

	kept, dropped := tolerate(newRootCommand(process{}), args)
	root := newRootCommand(process{name: name, environ: environ, dropped: dropped, now: now})
	root.SetArgs(append([]string{}, kept...)) // nil means those of the process
	return exitCode(name, root.ExecuteContext(ctx))
}

// duplicateSignal is the interval in which a second signal counts as a duplicate:
// programs such as timeout and sudo send a signal to a process and to its group, so
// that it arrives twice. It must not cut the drain short.
const duplicateSignal = 100 * time.Millisecond

// obey runs one act for each signal, until all have run or done is closed.
func obey(signals <-chan os.Signal, done <-chan struct{}, acts ...func()) {
	var last time.Time
	for len(acts) > 0 {
		select {
		case <-signals:
		case <-done:
			return
		}
		if now := time.Now(); now.Sub(last) >= duplicateSignal {
			last = now
			acts[0]()
			acts = acts[1:]
		}
	}
}

// exitCode prints an error, unless it was logged, and returns its exit code.
func exitCode(name string, err error) int {
	if err == nil {
		return exitOK
	}
	var logged logging.Logged
	if !errors.As(err, &logged) {
		fmt.Fprintln(os.Stderr, name+":", logging.Sentence(err))
	}
	if errors.Is(err, capture.ErrNotCaptured) {
		return exitNotCaptured
	}
	var crash *envoy.ExitError
	if errors.As(err, &crash) {
		return exitEnvoyCrashed
	}
	return exitError
}

// The names of the program: its own, and that of the program that it replaces.
const (
	ownName  = "outrigger-agent"
	peerName = "pilot-agent"
)

// programName returns the name by which the program was called. Only help and
// messages depend on it.
func programName(argv []string) string {
	if len(argv) > 0 && filepath.Base(argv[0]) == peerName {
		return peerName
	}
	return ownName
}

// rename replaces the program's name in the usage and the examples of all commands.
func rename(command *cobra.Command, name string) {
	command.Use = strings.Replace(command.Use, ownName, name, 1)
	command.Example = strings.ReplaceAll(command.Example, ownName, name)
	for _, c := range command.Commands() {
		rename(c, name)
	}
}
