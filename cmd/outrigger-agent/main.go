// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

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
	os.Exit(run(os.Args, processEnvironment()))
}

// run executes the command line, which begins with the program's name, and
// gives the exit code.
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
	go func() {
		for _, act := range []func(){cancel /* drain, then end */, func() { close(now) } /* end now */} {
			select {
			case <-signals:
				act()
			case <-done:
				return
			}
		}
	}()

	root := newRootCommand(process{name: name, environ: environ, now: now})
	kept, dropped := tolerate(root, args)
	root.SetArgs(kept)
	for _, flag := range dropped {
		fmt.Fprintf(os.Stderr, "%s: unknown flag %s is ignored\n", name, flag)
	}
	return exitCode(name, root.ExecuteContext(ctx))
}

// exitCode reports an error and maps it to a code.
func exitCode(name string, err error) int {
	if err == nil {
		return exitOK
	}
	var logged loggedError
	if !errors.As(err, &logged) {
		fmt.Fprintln(os.Stderr, name+":", sentence(err))
	}
	var crash *envoy.ExitError
	if errors.As(err, &crash) {
		return exitEnvoyCrashed
	}
	return exitError
}

// sentence is an error as one line, whatever libraries say; several faults
// stand behind each other.
func sentence(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// loggedError is an error that people have read in the log.
type loggedError struct{ error }

// Unwrap gives the error itself.
func (e loggedError) Unwrap() error { return e.error }
