// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

const (
	// maxReviewed is how many findings of a change are printed.
	maxReviewed = 10
	// findingWidth is the width of a finding in characters, where there is no terminal.
	findingWidth = 80
)

// review prints what a change breaks before it is written.
type review struct {
	cfg   Config
	store string // URL
	given bool   // the user named the store
	yes   bool
	// piped means that the objects are on the standard input, which then has no answers.
	piped bool
}

// run prints the findings that objects bring. Before a change that denies all requests to a workload,
// it asks whether to go on; an error means no.
func (r *review) run(ctx context.Context, cmd *cobra.Command, s config.Reader, objects []*model.Config) error {
	out := cmd.ErrOrStderr()
	added, err := r.added(ctx, out, s, objects)
	if err != nil {
		return err
	}
	return r.ask(ctx, out, added)
}

// runWithout is run for the deletion of objects. Only objects of the same kinds are compared.
func (r *review) runWithout(ctx context.Context, cmd *cobra.Command, s config.Reader, keys []model.Key) error {
	stored := map[model.Key]*model.Config{}
	listed := map[model.Kind]bool{}
	for _, key := range keys {
		if listed[key.Kind] {
			continue
		}
		listed[key.Kind] = true
		for _, c := range s.List(key.Kind, "") {
			stored[c.Key] = c
		}
	}
	before := partial(stored)
	for _, key := range keys {
		delete(stored, key)
	}
	return r.ask(ctx, cmd.ErrOrStderr(), partial(stored).Added(before))
}

// ask prints findings, and asks whether to go on if one says that all requests are denied.
func (r *review) ask(ctx context.Context, out io.Writer, added []analyze.Finding) error {
	for i, f := range added {
		if i == maxReviewed {
			_, _ = fmt.Fprintf(out, "%s not listed: outrigger analyze lists all\n", count(len(added)-i, "more finding")) // the terminal may be closed
			break
		}
		_, _ = io.WriteString(out, f.Text(cmp.Or(columns.OfTerminal(out), findingWidth))) // as above
	}
	if r.yes || !slices.ContainsFunc(added, analyze.Finding.DeniesAll) {
		return nil
	}
	in := r.cfg.In
	switch {
	case r.piped && r.cfg.OpenTerminal != nil:
		terminal, err := r.cfg.OpenTerminal()
		if err != nil {
			return nil //nolint:nilerr // nobody can be asked, as without a terminal below
		}
		defer func() { _ = terminal.Close() }() // ends the read, and cannot lose data
		in, out = terminal, terminal
	case r.piped || !r.cfg.Terminal:
		return nil
	}
	_, _ = fmt.Fprint(out, "The change denies all requests to a workload. Make it? [y/N] ") // as above
	answer, err := readLine(ctx, in)
	if err != nil {
		return err
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return &ExitError{exitFailed, errors.New("nothing was written; --yes applies the change without the question")}
	}
	return nil
}

// added returns the findings that objects bring, the worst first. The running control plane knows
// services and workloads. Without one, only objects of the same kinds are compared.
func (r *review) added(ctx context.Context, out io.Writer, s config.Reader, objects []*model.Config) ([]analyze.Finding, error) {
	if r.cfg.Analyze != nil {
		var text strings.Builder
		sources := map[analyze.Object]string{}
		for _, c := range objects {
			raw, err := written(c)
			if err != nil {
				return nil, err
			}
			text.WriteString("---\n")
			text.Write(raw)
			sources[analyze.ObjectOf(c.Key)] = c.Source
		}
		var after analyze.Result
		before, err := r.cfg.Analyze(ctx, r.store, r.given, "")
		if err == nil {
			after, err = r.cfg.Analyze(ctx, r.store, r.given, text.String())
		}
		switch {
		case err == nil:
			added := after.Added(before)
			for i, f := range added {
				if source, ok := sources[f.Object]; ok {
					added[i].Source = source
				}
			}
			return added, nil
		case ctx.Err() != nil:
			return nil, errInterrupted
		case !errors.Is(err, analyze.ErrNoControl):
			_, _ = fmt.Fprintf(out, "not checked: hosts, workloads and other objects that the change refers to, because %v\n", err) // the terminal may be closed
		}
	}
	stored := map[model.Key]*model.Config{}
	for _, kind := range kindsIn(objects) {
		for _, c := range s.List(kind, "") {
			stored[c.Key] = c
		}
	}
	before, now := partial(stored), time.Now()
	for _, c := range objects {
		next := *c
		next.Created = now // as in a store: the order of objects depends on their age
		if old := stored[c.Key]; old != nil {
			next.Created = old.Created
		}
		stored[c.Key] = &next
	}
	return partial(stored).Added(before), nil
}

// partial analyzes all objects of some kinds.
func partial(objects map[model.Key]*model.Config) analyze.Result {
	list := slices.SortedFunc(maps.Values(objects), func(a, b *model.Config) int { return a.Compare(b.Key) })
	in := analyze.Input{Objects: list, AssumedMesh: true, Partial: true}
	in.Build(nil)
	return analyze.Run(in)
}

// readLine reads a line until ctx is done.
func readLine(ctx context.Context, in io.Reader) (string, error) {
	type result struct {
		line string
		err  error
	}
	done := make(chan result, 1)
	go func() { // only the end of the process stops the read
		line, err := bufio.NewReader(io.LimitReader(in, codec.MaxFileSize)).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		done <- result{line, err}
	}()
	select {
	case r := <-done:
		return r.line, r.err
	case <-ctx.Done():
		return "", errInterrupted
	}
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// OpenTerminal opens the terminal that the process belongs to. It returns an error if there is none, or
// if out, where a user would follow the command, is none.
func OpenTerminal(out *os.File) (io.ReadWriteCloser, error) {
	if !IsTerminal(out) {
		return nil, fmt.Errorf("%s is no terminal", out.Name())
	}
	return os.OpenFile("/dev/tty", os.O_RDWR, 0)
}
