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
	"time"

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
	var line strings.Builder
	for part := range strings.FieldsFuncSeq(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }) {
		part = strings.TrimSpace(part)
		switch {
		case part == "":
			continue
		case strings.HasSuffix(line.String(), ":"):
			line.WriteByte(' ')
		case line.Len() > 0:
			line.WriteString("; ")
		}
		line.WriteString(part)
	}
	return line.String()
}

// loggedError is an error that people have read in the log.
type loggedError struct{ error }

// Unwrap gives the error itself.
func (e loggedError) Unwrap() error { return e.error }
