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
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/outrigger-mesh/outrigger/packaging/images/debian"
)

// options are what the command line sets.
type options struct {
	programs     string // directory with one directory of programs for each architecture
	out          string // directory to write to
	archive      debian.Archive
	lock         string    // file that pins the packages
	prefix       string    // of the names of images
	version      string    // tag
	envoyVersion string    // as 1.39.3
	created      time.Time // of every file and image
	arches       []string
}

// unavailable is the exit code if a Debian package cannot be downloaded.
const unavailable = 3

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "images:", err)
		if errors.Is(err, debian.ErrUnavailable) {
			os.Exit(unavailable)
		}
		os.Exit(1)
	}
}

// run makes the images that the arguments ask for, and prints a table of them.
func run(ctx context.Context, arguments []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	o := options{}
	flags.StringVar(&o.programs, "programs", "bin", "`directory` that holds linux-amd64/ and linux-arm64/ with the programs and envoy")
	flags.StringVar(&o.out, "out", "bin/images", "`directory` to write to")
	flags.StringVar(&o.archive.Cache, "cache", "bin/packages", "`directory` of downloaded packages")
	flags.StringVar(&o.lock, "lock", "packaging/images/debian.lock", "`file` that pins the Debian packages")
	flags.StringVar(&o.archive.Mirror, "mirror", debian.DefaultMirror, "`URL` of the Debian archive")
	flags.StringVar(&o.prefix, "prefix", "outrigger", "`name` before the slash of each image")
	flags.StringVar(&o.version, "version", "dev", "`tag` of the images")
	flags.StringVar(&o.envoyVersion, "envoy-version", "", "`version` of the envoy among the programs")
	created := flags.String("created", "0", "`time` of files and images, in seconds since 1970")
	arches := flags.String("arch", "amd64,arm64", "`architectures`, with commas between")
	download := flags.Bool("download", false, "only download the Debian packages; exit with 3 if that is not possible")
	update := flags.Bool("update-lock", false, "pin the newest packages instead of making images")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	seconds, err := strconv.ParseInt(*created, 10, 64)
	if err != nil {
		return fmt.Errorf("--created is %q, want seconds since 1970, such as the output of git log -1 --format=%%ct", *created)
	}
	o.created = time.Unix(seconds, 0).UTC()
	o.arches = strings.Split(*arches, ",")

	if *update {
		return o.archive.UpdateLock(ctx, o.lock)
	}
	pinned, err := debian.ReadLock(o.lock)
	if err != nil {
		return err
	}
	if *download {
		return downloadAll(ctx, o, pinned)
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "IMAGE\tARCHITECTURE\tSIZE\tCOMPRESSED\tARCHIVE")
	for _, k := range kinds {
		built, err := build(ctx, o, k, pinned)
		if err != nil {
			return fmt.Errorf("image %s: %w", k.name, err)
		}
		for _, b := range built {
			_, _ = fmt.Fprintf(table, "%s\t%s\t%.1f MB\t%.1f MB\t%s\n", o.prefix+"/"+k.name, b.arch, float64(b.size)/1e6, float64(b.compressed)/1e6, b.archive)
		}
	}
	return table.Flush()
}

// programPath returns where a program for an architecture is.
func (o options) programPath(arch, name string) string {
	return filepath.Join(o.programs, "linux-"+arch, name)
}

// downloadAll downloads the packages of all architectures to the cache.
func downloadAll(ctx context.Context, o options, pinned []debian.Package) error {
	for _, p := range pinned {
		if !slices.Contains(o.arches, p.Arch) {
			continue
		}
		if _, err := o.archive.Files(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
