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
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// options are what the command line sets.
type options struct {
	programs     string    // directory with one directory of programs for each architecture
	native       string    // directory of programs for this machine
	repository   string    // directory of LICENSE and THIRD_PARTY_NOTICES
	out          string    // directory to write to
	version      string    // of Outrigger
	envoyVersion string    // as 1.39.3
	created      time.Time // of every file
	arches       []string
	formats      []string
	compression  string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}

// run makes the packages that the arguments ask for, and prints a table of them.
func run(ctx context.Context, arguments []string, stdout io.Writer) (err error) {
	o, err := parse(arguments)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "outrigger-packages-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &builder{options: o, dir: dir}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "PACKAGE\tSIZE")
	for _, k := range kinds {
		for _, arch := range o.arches {
			for _, format := range o.formats {
				path, err := b.write(ctx, k, arch, format)
				if err != nil {
					return fmt.Errorf("package %s for %s: %w", k.name, arch, err)
				}
				info, err := os.Stat(path)
				if err != nil {
					return err
				}
				_, _ = fmt.Fprintf(table, "%s\t%.1f MB\n", filepath.Base(path), float64(info.Size())/1e6)
			}
		}
	}
	return table.Flush()
}

// parse returns the options that the arguments set.
func parse(arguments []string) (o options, err error) {
	flags := flag.NewFlagSet("packages", flag.ContinueOnError)
	flags.StringVar(&o.programs, "programs", "bin", "`directory` that holds linux-amd64/ and linux-arm64/ with the programs and envoy")
	flags.StringVar(&o.native, "native", "", "`directory` of programs for this machine (default: the one of its architecture below --programs)")
	flags.StringVar(&o.repository, "repository", ".", "`directory` of LICENSE and THIRD_PARTY_NOTICES")
	flags.StringVar(&o.out, "out", "bin/linux-packages", "`directory` to write to")
	flags.StringVar(&o.version, "version", "dev", "`version` of the programs, as git describe prints it")
	flags.StringVar(&o.envoyVersion, "envoy-version", "", "`version` of the envoy among the programs")
	created := flags.String("created", "0", "`time` of the files, in seconds since 1970")
	arches := flags.String("arch", "amd64,arm64", "`architectures`, with commas between")
	formats := flags.String("format", "deb,rpm", "`formats`, with commas between")
	flags.StringVar(&o.compression, "compression", "zstd", "`method`: zstd, or gzip for dpkg before Debian 12 and Ubuntu 22.04")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	seconds, err := strconv.ParseInt(*created, 10, 64)
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case err != nil:
		return o, fmt.Errorf("--created is %q; it must be seconds since 1970, such as the output of git log -1 --format=%%ct", *created)
	case o.envoyVersion == "":
		return o, errors.New("--envoy-version is missing; it must be the version of the envoy among the programs, such as 1.39.3")
	}
	o.created, o.arches, o.formats = time.Unix(seconds, 0).UTC(), strings.Split(*arches, ","), strings.Split(*formats, ",")
	if o.native == "" {
		o.native = filepath.Join(o.programs, "linux-"+runtime.GOARCH)
	}
	return o, nil
}
