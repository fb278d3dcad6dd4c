// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// limit is the time limit of the whole run.
const limit = 20 * time.Minute

func main() {
	os.Exit(ownnet.Tests(program{}).Run())
}

// program is the whole program; it runs in its own network namespace.
type program struct{}

// Run runs the program and returns the exit code.
func (program) Run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "attack:", err)
		return 1
	}
	return 0
}

// options are the command line options.
type options struct {
	bin, envoy string
	only       string
	write      string
	short      bool
	keep       bool
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("attack", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(&o.bin, "bin", "bin", "directory of the programs")
	fs.StringVar(&o.envoy, "envoy", "", "Envoy to run (default: envoy in the directory of the programs, else on PATH)")
	fs.StringVar(&o.only, "only", "", "run only the attacks whose area or name contains this text")
	fs.StringVar(&o.write, "write", "", "write the results of the attacks that ran into the list of this document, if every promise held")
	fs.BoolVar(&o.short, "short", false, "smaller loads")
	fs.BoolVar(&o.keep, "keep", false, "keep the temporary directory with the logs")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	return o, o.find()
}

// find locates the programs.
func (o *options) find() (err error) {
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return fmt.Errorf("directory of the programs: %w", err)
	}
	if o.envoy == "" {
		o.envoy = filepath.Join(o.bin, "envoy")
		if _, err := os.Stat(o.envoy); err != nil {
			if onPath, err := exec.LookPath("envoy"); err == nil {
				o.envoy = onPath
			}
		}
	}
	for _, p := range []string{filepath.Join(o.bin, "outrigger-agent"), filepath.Join(o.bin, "outrigger-control"), filepath.Join(o.bin, "outrigger"), o.envoy} {
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("%w: run make build envoy first, or name the programs with --bin and --envoy", err)
		}
	}
	return nil
}

// run runs the attacks and prints the table.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := newSuite(o, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var results []result
	for _, a := range attacks() {
		if !a.matches(o.only) {
			continue
		}
		r := s.launch(ctx, a)
		results = append(results, r)
		s.say("%-5s %s: %s: %s", r.verdict(), a.area, a.try, r.seen())
	}
	if err := printTable(stdout, results); err != nil {
		return err
	}
	if err := broken(results); err != nil {
		return err
	}
	if o.write == "" {
		return nil
	}
	return writeDocument(o.write, results)
}

// broken returns an error with the number of attacks whose promise did not hold.
func broken(results []result) error {
	n := 0
	for _, r := range results {
		if r.verdict() == "FAIL" {
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("%d of %d promises did not hold", n, len(results))
	}
	return nil
}
