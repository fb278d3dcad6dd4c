// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Config configures how the commands find their store.
type Config struct {
	// Open opens the store at a URL for some kinds, or for all if there are none.
	Open func(address string, kinds []model.Kind) (config.Store, error)
	// Default returns the URL of the store to use without --store, or an error that says what to
	// do.
	Default func() (string, error)
	// Past adds the flags that name control planes to a command, and returns what answers it about
	// versions of objects.
	Past func(*cobra.Command) Past
	// Analyze returns the findings that a change brings at the running control plane that uses the store
	// at a URL. If given is true, the user named the store. It returns ErrNoControl if no control plane
	// is known. A nil Analyze means that none is known.
	Analyze func(ctx context.Context, store string, given bool, change analyze.Change) (analyze.Result, error)
	// Envoy is the Envoy of the environment; empty for none.
	Envoy string
	// In is the input that -f - reads, and that questions are answered on.
	In io.Reader
	// Terminal is true if In is a terminal.
	Terminal bool
	// OpenTerminal opens the terminal of the user for questions while In has objects, or returns an error
	// if there is none. Nil means that there is none.
	OpenTerminal func() (io.ReadWriteCloser, error)
	// Width is that of the terminal, in characters; 0 means that the output is none.
	Width int
}

// ExitError is an error with an exit code. A nil Err means that the error has been printed already.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// defaultTimeout is the timeout for the initial read of a store.
const defaultTimeout = 30 * time.Second

// Exit codes. Differences have the same code as failures, as in diff(1).
const (
	exitFailed = 1
	exitUsage  = 2
)

// Commands returns the commands of this package.
func Commands(cfg Config) []*cobra.Command {
	return []*cobra.Command{
		newWriteCommand(cfg, createVerb), newWriteCommand(cfg, applyVerb), newWriteCommand(cfg, replaceVerb),
		newGetCommand(cfg), newDescribeCommand(cfg), newDeleteCommand(cfg),
		newValidateCommand(cfg), newDiffCommand(cfg), newRollbackCommand(cfg), newMigrateCommand(cfg),
	}
}

// storeFlags are the flags of the commands that use a store.
type storeFlags struct {
	cfg     Config
	address string
	timeout time.Duration
	// trouble is called with the errors of a store that is followed; nil for a command that reads once.
	trouble func(error)
}

func (f *storeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.address, "store", "", "URL of the config store: fs:///directory, etcd://host:2379/prefix, k8s:// or k8s:///path/of/kubeconfig (default: OUTRIGGER_STORE; else the running outrigger up; else the kubeconfig)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", defaultTimeout, "timeout of the store")
}

// with opens the store for some kinds, waits until it has been read, and calls use. The store keeps
// running until use returns.
func (f *storeFlags) with(cmd *cobra.Command, kinds []model.Kind, use func(context.Context, config.ReadWriter) error) error {
	address, err := f.url()
	if err != nil {
		return err
	}
	return f.withStore(cmd, address, kinds, use)
}

// addPast adds the flags that name control planes.
func (f *storeFlags) addPast(cmd *cobra.Command) Past {
	cmd.Flags().Lookup("timeout").Usage = "timeout of the store, and of an answer of the control plane"
	return f.cfg.Past(cmd)
}

// url returns the URL of the store.
func (f *storeFlags) url() (string, error) {
	if f.address != "" {
		return f.address, nil
	}
	address, err := f.cfg.Default()
	if err != nil {
		return "", &ExitError{exitUsage, err}
	}
	return address, nil
}

func (f *storeFlags) withStore(cmd *cobra.Command, address string, kinds []model.Kind, use func(context.Context, config.ReadWriter) error) error {
	store, err := f.cfg.Open(address, kinds)
	if err != nil {
		return usage(err) // it has not been connected to
	}
	r := &running{done: make(chan struct{})}
	store.SetWatchErrorHandler(func(err error) {
		r.trouble.Store(&err)
		if f.trouble != nil {
			f.trouble(err)
		}
	})
	ctx, cancel := context.WithCancel(cmd.Context())
	go func() {
		r.err = store.Run(ctx)
		close(r.done)
	}()
	defer func() {
		cancel()
		<-r.done
	}()
	if err := f.synced(ctx, store, r); err != nil {
		return err
	}
	return use(ctx, store)
}

// running is a store that is running.
type running struct {
	done chan struct{} // closed when Run has returned
	err  error         // result of Run, valid when done is closed
	// trouble is the last error of the store.
	trouble atomic.Pointer[error]
}

// synced waits until the store has been read.
func (f *storeFlags) synced(ctx context.Context, store config.Store, r *running) error {
	timer := time.NewTimer(f.timeout)
	defer timer.Stop()
	select {
	case <-store.Synced():
		return nil
	case <-ctx.Done():
		return errInterrupted
	case <-r.done:
		return fmt.Errorf("store %s: %w", store.Name(), r.err)
	case <-timer.C:
	}
	if err := r.trouble.Load(); err != nil {
		return fmt.Errorf("store %s was not read within %s: %w", store.Name(), f.timeout, *err)
	}
	return fmt.Errorf("store %s was not read within %s", store.Name(), f.timeout)
}

// errInterrupted means that the user interrupted the command.
var errInterrupted = errors.New("interrupted")

// outcome collects the failures of individual objects; a failure does not stop the others.
type outcome struct {
	out    io.Writer
	failed int
	done   int
}

// interrupted returns the error of a command that the user interrupted before it was complete, or
// nil if it may continue.
func (r *outcome) interrupted(ctx context.Context, all int) error {
	if ctx.Err() == nil {
		return nil
	}
	return &ExitError{exitFailed, fmt.Errorf("%w: %d of %d are done", errInterrupted, r.done, all)}
}

func (r *outcome) fail(format string, args ...any) {
	r.failed++
	_, _ = fmt.Fprintf(r.out, "error: "+format+"\n", args...) // the terminal may be closed
}

func (r *outcome) err() error {
	if r.failed == 0 {
		return nil
	}
	if r.done > 0 {
		return &ExitError{exitFailed, fmt.Errorf("%d of %d failed; the others are done", r.failed, r.failed+r.done)}
	}
	return &ExitError{Code: exitFailed}
}

// say prints a line of the result.
func say(cmd *cobra.Command, format string, args ...any) {
	_, _ = fmt.Fprintf(cmd.OutOrStdout(), format, args...) // the terminal may be closed
}

// count returns a number with its noun: "1 error" or "2 errors".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// noArgs rejects arguments with the exit code of a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &ExitError{exitUsage, fmt.Errorf("%s takes no arguments, but got %q: name files with -f", cmd.Name(), args[0])}
	}
	return nil
}

var errNothing = errors.New("nothing to do: name files with -f, or objects as KIND NAME")
