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
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// limit bounds the whole run: a benchmark that hangs is a failure.
const limit = 15 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == floorCommand:
		err = runFloor(ctx, os.Args[2:], os.Stdin)
	case len(os.Args) > 1 && os.Args[1] == sourceCommand:
		err = runSource(ctx, os.Args[2:], os.Stdin)
	case len(os.Args) > 1 && os.Args[1] == copyCommand:
		err = runCopy(ctx, os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == dnsFloorCommand:
		err = runDNSFloor(ctx, os.Args[2:])
	default:
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	bin, envoy string
	services   int
	proxies    int
	rounds     int
	starts     int
	responses  int
	restarts   int
	coldStarts int
	probeTime  time.Duration
	json       string
	only       string
	agentEnv   string
	controlEnv string
	profiles   string
	keep       bool
	short      bool
	svg        string
	sizes      []size
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(&o.bin, "bin", "bin", "directory of the programs")
	fs.StringVar(&o.envoy, "envoy", "", "Envoy to run (default: envoy in the directory of the programs, else on PATH)")
	fs.IntVar(&o.services, "services", 500, "services in the mesh")
	fs.IntVar(&o.proxies, "proxies", 1000, "proxies that a change goes to")
	fs.StringVar(&o.json, "json", "", "write the figures to this file, too")
	fs.StringVar(&o.only, "only", "", "parts to run, with commas between: sizes, agent, coldstart, hotrestart, identity, relay, push, intercept, envoy, status, dns, stores (default: all), and pushcurve, restart, churn, which take minutes")
	fs.Func("sizes", "points of pushcurve, services x proxies with commas between, such as 500x1000,10000x100", func(text string) (err error) {
		o.sizes, err = parseSizes(text)
		return err
	})
	fs.StringVar(&o.svg, "svg", "", "draw the curves of pushcurve into this file")
	fs.StringVar(&o.agentEnv, "agent-env", "", "settings to try in the agent's environment, with commas between, such as GOGC=100,GOMAXPROCS=1")
	fs.StringVar(&o.controlEnv, "control-env", "", "settings to try in the control plane's environment, such as GOGC=40")
	fs.StringVar(&o.profiles, "profiles", "", "take profiles of the control plane in push and pushcurve into this directory; its CPU figures mean less then")
	fs.BoolVar(&o.keep, "keep", false, "keep the temporary directory with the logs")
	fs.BoolVar(&o.short, "short", false, "a quick run: 100 proxies, fewer rounds")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.rounds, o.starts, o.responses, o.restarts, o.coldStarts = 5, 5, 50, 10, 100
	o.probeTime = time.Minute
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
		if _, err := os.Stat(o.envoy); err != nil {
			if onPath, err := exec.LookPath("envoy"); err == nil {
				o.envoy = onPath
			}
		}
	}
	for _, p := range []string{filepath.Join(o.bin, "outrigger-agent"), filepath.Join(o.bin, "outrigger-control"), o.envoy} {
		if _, err := os.Stat(p); err != nil {
			return o, fmt.Errorf("%w: run make build envoy first, or say where the programs are with --bin and --envoy", err)
		}
	}
	return o, nil
}

// bench is what all parts share.
type bench struct {
	options
	dir   string
	start *starter
	log   io.Writer
	// redirect is true if no sidecar is an HTTP proxy.
	redirect bool
}

// part is one section of the table.
type part struct {
	name string
	run  func(context.Context) ([]figure, error)
}

// run measures and prints. A part that fails does not keep the others from
// running.
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
	b := &bench{options: o, dir: dir, start: newStarter(), log: stderr}
	defer func() {
		b.start.close()
		if o.keep {
			b.say("logs and files are in %s", dir)
		} else {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := writeMesh(b.path("config"), o.services); err != nil {
		return err
	}
	parts := []part{{"sizes", b.sizes}, {"agent", b.agent}, {"coldstart", b.coldStart}, {"hotrestart", b.hotRestart}, {"identity", b.identity}, {"relay", b.relay}, {"push", b.push}, {"intercept", b.intercept}, {"status", b.status}, {"envoy", b.envoySize}, {"dns", b.dns}, {"stores", b.stores}, {"pushcurve", b.pushCurve}, {"restart", b.restart}, {"churn", b.churn}}
	var all []figure
	for _, p := range parts {
		if !o.wants(p.name) {
			continue
		}
		figures, failed := p.run(ctx)
		all = append(all, figures...)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", p.name, failed))
			b.say("%s: %v", p.name, failed)
		}
	}
	head := fmt.Sprintf("%d cores, %s, mesh of %d services, %d proxies", runtime.NumCPU(), runtime.Version(), o.services, o.proxies)
	if failed := printTable(stdout, head, all); failed != nil {
		return errors.Join(err, failed)
	}
	if o.json != "" {
		err = errors.Join(err, writeJSON(o.json, head, all))
	}
	return err
}

// wants reports whether a part is to run.
func (o options) wants(part string) bool {
	if o.only == "" {
		return !slices.Contains([]string{"pushcurve", "restart", "churn"}, part)
	}
	return strings.Contains(","+o.only+",", ","+part+",")
}

func (b *bench) path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

// say tells how far it is.
func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.log, time.Now().Format("15:04:05 ")+format+"\n", args...) // progress is not worth an end
}

// sizes returns the sizes of the binaries, which are built stripped.
func (b *bench) sizes(context.Context) ([]figure, error) {
	var figures []figure
	for _, p := range []struct {
		name   string
		target float64
	}{{"outrigger-agent", 20e6}, {"outrigger-control", 0}, {"outrigger", 0}} {
		info, err := os.Stat(filepath.Join(b.bin, p.name))
		if err != nil {
			return figures, err
		}
		figures = append(figures, figure{Name: "binary of " + p.name, Unit: megabytes, Ours: float64(info.Size()), Target: p.target})
	}
	return figures, nil
}
