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
)

// version is set by the linker (-ldflags "-X main.version=..."); nothing in the
// program changes it.
var version = "dev"

// The exit codes. Those of errors and of a clean stop are pilot-agent's, which
// has no other.
const (
	exitOK           = 0
	exitEnvoyCrashed = 1
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
	// A log that nobody reads any more must not end the proxy: writing to it
	// fails instead. The signal itself is not looked at.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	done := make(chan struct{})
	defer close(done)
	go obey(signals, done,
		cancel,                        // drain, then end
		func() { close(now) },         // end now
		func() { os.Exit(exitError) }, // end, although something hangs that nobody waits for
	)

	kept, dropped := tolerate(newRootCommand(process{}), args)
	root := newRootCommand(process{name: name, environ: environ, dropped: dropped, now: now})
	root.SetArgs(kept)
	return exitCode(name, root.ExecuteContext(ctx))
}

// sameWish is how soon after a signal another one is the same wish: programs
// such as timeout and sudo send it to a process and to its group, so that it
// comes twice. It must not cut the drain short.
const sameWish = 100 * time.Millisecond

// obey does one act for each signal until there is none left, or done is closed.
func obey(signals <-chan os.Signal, done <-chan struct{}, acts ...func()) {
	var last time.Time
	for len(acts) > 0 {
		select {
		case <-signals:
		case <-done:
			return
		}
		if now := time.Now(); now.Sub(last) >= sameWish {
			last = now
			acts[0]()
			acts = acts[1:]
		}
	}
}

// exitCode reports an error and maps it to a code.
func exitCode(name string, err error) int {
	if err == nil {
		return exitOK
	}
	var logged logging.Logged
	if !errors.As(err, &logged) {
		fmt.Fprintln(os.Stderr, name+":", logging.Sentence(err))
	}
	var crash *envoy.ExitError
	if errors.As(err, &crash) {
		return exitEnvoyCrashed
	}
	return exitError
}

// The names of the program: its own, and that of the one whose place it takes.
const (
	ownName  = "outrigger-agent"
	peerName = "pilot-agent"
)

// programName is the name by which the program was called. It is used in help
// and messages only: all names do the same.
func programName(argv []string) string {
	if len(argv) > 0 && filepath.Base(argv[0]) == peerName {
		return peerName
	}
	return ownName
}

// rename puts a name into the usage and the examples of all commands.
func rename(command *cobra.Command, name string) {
	command.Use = strings.Replace(command.Use, ownName, name, 1)
	command.Example = strings.ReplaceAll(command.Example, ownName, name)
	for _, c := range command.Commands() {
		rename(c, name)
	}
}
