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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// options are what the command line sets.
type options struct {
	repository    string // directory of the sources
	programs      string // directory that holds linux-ARCH/ with the programs and envoy
	images        string // directory of images
	packages      string // directory of packages
	out           string // directory to write to
	version       string // as v1.2.3
	envoyVersion  string // as 1.39.3
	created       time.Time
	arches        []string
	key, builder  string
	commit, since string // since is the tag of the last release; empty for none
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// versions are those of releases and their candidates.
var versions = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-(alpha|beta|rc)\.[0-9]+)?$`)

// parse returns the options that the arguments set.
func parse(arguments []string) (o options, err error) {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&o.repository, "repository", ".", "`directory` of the sources, a git work tree")
	flags.StringVar(&o.programs, "programs", "bin", "`directory` that holds linux-amd64/ and linux-arm64/ with the programs and envoy")
	flags.StringVar(&o.images, "images", "bin/images", "`directory` of images")
	flags.StringVar(&o.packages, "packages", "bin/linux-packages", "`directory` of packages")
	flags.StringVar(&o.out, "out", "bin/release", "`directory` to write to; it is emptied first")
	flags.StringVar(&o.version, "version", "", "`version`, such as v1.2.3 or v1.2.3-rc.1")
	flags.StringVar(&o.envoyVersion, "envoy-version", "", "`version` of the envoy among the programs")
	flags.StringVar(&o.key, "key", "", "`file` with a private key, ECDSA or RSA in PEM, that signs checksums and provenance")
	flags.StringVar(&o.builder, "builder", "urn:outrigger:make-release", "`URI` of the builder, for the provenance")
	created := flags.String("created", "0", "`time` of the files, in seconds since 1970")
	arches := flags.String("arch", "amd64,arm64", "`architectures`, with commas between")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	seconds, err := strconv.ParseInt(*created, 10, 64)
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case err != nil:
		return o, fmt.Errorf("--created is %q; it must be seconds since 1970, such as the output of git log -1 --format=%%ct", *created)
	case !versions.MatchString(o.version):
		return o, fmt.Errorf("--version is %q; it must be v1.2.3 or v1.2.3-rc.1: tag the commit (git tag v1.2.3), or run make release VERSION=v1.2.3", o.version)
	case o.envoyVersion == "":
		return o, errors.New("--envoy-version is missing; it must be the version of the envoy among the programs, such as 1.39.3")
	}
	o.created, o.arches = time.Unix(seconds, 0).UTC(), strings.Split(*arches, ",")
	return o, nil
}

// run writes a release and prints a table of its files.
func run(ctx context.Context, arguments []string, stdout io.Writer) error {
	o, err := parse(arguments)
	if err != nil {
		return err
	}
	var sign signer // before anything is written
	if o.key != "" {
		if sign, err = readKey(o.key); err != nil {
			return err
		}
	}
	if err := o.readHistory(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	if err := o.copyFiles(); err != nil {
		return err
	}
	for _, arch := range o.arches {
		if err := o.writeArchive(arch); err != nil {
			return fmt.Errorf("archive for %s: %w", arch, err)
		}
	}
	if err := o.writeChart(); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	if err := o.writeChanges(ctx); err != nil {
		return fmt.Errorf("changes: %w", err)
	}
	files, err := o.writeSums()
	if err != nil {
		return err
	}
	if err := o.writeProvenance(files, sign); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "FILE\tSIZE")
	for _, f := range files {
		_, _ = fmt.Fprintf(table, "%s\t%.1f MB\n", f.name, float64(f.size)/1e6)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if sign == nil {
		_, err = fmt.Fprintln(stdout, "not signed: name a private key with KEY=FILE")
	}
	return err
}

// copyFiles copies what others built: images with their contents, packages, alerts.
func (o options) copyFiles() error {
	version := strings.TrimPrefix(o.version, "v")
	copied := map[string]string{"outrigger-" + version + ".rules.yaml": filepath.Join(o.repository, "packaging", "prometheus", "outrigger.rules.yaml")}
	images, err := filepath.Glob(filepath.Join(o.images, "*-*.*"))
	if err != nil {
		return err
	}
	for _, path := range images {
		kind, rest, _ := strings.Cut(filepath.Base(path), "-")
		arch, ending, _ := strings.Cut(rest, ".")
		if slices.Contains(o.arches, arch) {
			copied["outrigger-image-"+kind+"-"+version+"-linux-"+arch+"."+ending] = path
		}
	}
	if len(copied) == 1 {
		return fmt.Errorf("%s has no images for %s: run make images", o.images, strings.Join(o.arches, ", "))
	}
	packages, err := filepath.Glob(filepath.Join(o.packages, "*.[dr][ep][bm]"))
	if err != nil {
		return err
	}
	if len(packages) == 0 {
		return fmt.Errorf("%s has no packages: run make packages", o.packages)
	}
	for _, path := range packages {
		copied[filepath.Base(path)] = path
	}
	for name, path := range copied {
		if err := copyFile(filepath.Join(o.out, name), path); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }() // it is only read
	target, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
