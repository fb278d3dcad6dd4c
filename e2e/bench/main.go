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
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// limit is the time limit of the whole run; a benchmark that hangs is a failure.
const limit = 15 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	args := os.Args[1:]
	program := func(ctx context.Context, args []string) error { return run(ctx, args, os.Stdout, os.Stderr) }
	if len(args) > 0 {
		// Helpers that run in separate processes.
		helpers := map[string]func(context.Context, []string) error{floorHelper: runFloor, copyHelper: runCopy, dnsFloorHelper: runDNSFloor}
		if helper := helpers[args[0]]; helper != nil {
			program, args = helper, args[1:]
		}
	}
	if err := program(ctx, args); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the command line options.
type options struct {
	bin, envoy        string
	services, proxies int
	only              string
	keep, short       bool

	rounds, starts, responses, restarts, coldStarts int
	probeTime                                       time.Duration
}

func parse(args []string, out io.Writer) (options, error) {
	o := options{rounds: 5, starts: 5, responses: 50, restarts: 10, coldStarts: 100, probeTime: time.Minute}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(&o.bin, "bin", "bin", "directory of the programs")
	fs.StringVar(&o.envoy, "envoy", "", "Envoy to run (default: envoy in the directory of the programs)")
	fs.IntVar(&o.services, "services", 500, "services in the mesh")
	fs.IntVar(&o.proxies, "proxies", 1000, "proxies that a change goes to")
	fs.StringVar(&o.only, "only", "", "parts to run, with commas between: "+names(false)+" (default: all), and "+names(true)+", which take minutes")
	fs.BoolVar(&o.keep, "keep", false, "keep the temporary directory with the logs")
	fs.BoolVar(&o.short, "short", false, "a quick run: 100 proxies, fewer rounds")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.short {
		o.rounds, o.starts, o.restarts, o.coldStarts, o.probeTime = 3, 3, 3, 10, 10*time.Second
		o.proxies = min(o.proxies, 100)
	}
	var err error
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return o, fmt.Errorf("directory of the programs: %w", err)
	}
	if o.envoy == "" {
		o.envoy = filepath.Join(o.bin, "envoy")
	}
	for _, p := range []string{filepath.Join(o.bin, "outrigger-agent"), filepath.Join(o.bin, "outrigger-control"), o.envoy} {
		if _, err := os.Stat(p); err != nil {
			return o, fmt.Errorf("%w: run make build envoy first, or name the programs with --bin and --envoy", err)
		}
	}
	return o, nil
}

// bench is the state shared by all parts.
type bench struct {
	options
	dir   string
	start *starter
	log   io.Writer
	rows  *[]figure
	// redirect is true if all sidecars have intercepted traffic.
	redirect bool
}

// part is one section of the table.
type part struct {
	name string
	run  func(*bench, context.Context)
	long bool // runs only if named explicitly
}

func parts() []part {
	return []part{
		{"sizes", (*bench).sizes, false},
		{"agent", (*bench).agent, false},
		{"coldstart", (*bench).coldStart, false},
		{"hotrestart", (*bench).hotRestart, false},
		{"identity", (*bench).identity, false},
		{"relay", (*bench).relay, false},
		{"push", (*bench).push, false},
		{"intercept", (*bench).intercept, false},
		{"status", (*bench).status, false},
		{"envoy", (*bench).envoySize, false},
		{"dns", (*bench).dns, false},
		{"stores", (*bench).stores, false},
		{"what-if", (*bench).whatIf, false},
		{"history", (*bench).history, false},
		{"tools", (*bench).tools, false},
		{"policies", (*bench).policies, false},
		{"telemetry", (*bench).telemetry, false},
		{"pushcurve", (*bench).pushCurve, true},
		{"restart", (*bench).restart, true},
		{"churn", (*bench).churn, true},
	}
}

// names lists the parts for a help text.
func names(long bool) string {
	var all []string
	for _, p := range parts() {
		if p.long == long {
			all = append(all, p.name)
		}
	}
	return strings.Join(all, ", ")
}

// run runs the benchmarks and prints the table. If a part fails, the others still run.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dir, err := os.MkdirTemp("", "outrigger-bench-")
	if err != nil {
		return fmt.Errorf("make the temporary directory: %w", err)
	}
	b := &bench{options: o, dir: dir, start: &starter{}, log: stderr, rows: new([]figure)}
	defer func() {
		if o.keep {
			b.say("logs and files are in %s", dir)
		} else {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := attempt(ctx, func(context.Context) { writeMesh(b.path("config"), o.services) }); err != nil {
		return err
	}
	for _, p := range parts() {
		if o.only == "" && p.long || o.only != "" && !strings.Contains(","+o.only+",", ","+p.name+",") {
			continue
		}
		if failed := attempt(ctx, func(ctx context.Context) { p.run(b, ctx) }); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", p.name, failed))
			b.say("%s: %v", p.name, failed)
		}
		b.start.stop()
	}
	head := fmt.Sprintf("%d cores, %s, mesh of %d services, %d proxies", runtime.NumCPU(), runtime.Version(), o.services, o.proxies)
	return errors.Join(err, printTable(stdout, head, *b.rows))
}

func (b *bench) path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

// add adds rows to the table.
func (b *bench) add(figures ...figure) { *b.rows = append(*b.rows, figures...) }

// say prints progress.
func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.log, time.Now().Format("15:04:05 ")+format+"\n", args...) // ignore errors of progress output
}

// sizes adds the sizes of the stripped binaries.
func (b *bench) sizes(context.Context) {
	for _, name := range []string{"outrigger-agent", "outrigger-control", "outrigger"} {
		f := figure{Name: "binary of " + name, Unit: megabytes, Ours: float64(must(os.Stat(filepath.Join(b.bin, name))).Size())}
		if name == "outrigger-agent" {
			f.Target = 20e6
		}
		b.add(f)
	}
}
