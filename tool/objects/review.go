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
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

const (
	// maxReviewed is how many findings of a change are printed.
	maxReviewed = 10
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

// run prints the findings that a change brings: objects that are written, keys that are deleted. Before a
// change that denies all requests to a workload, it asks whether to go on; an error means no.
func (r *review) run(ctx context.Context, cmd *cobra.Command, s config.Reader, objects []*model.Config, keys []model.Key) error {
	added, err := r.added(ctx, cmd.ErrOrStderr(), s, objects, keys)
	if err != nil {
		return err
	}
	return r.ask(ctx, cmd.ErrOrStderr(), added)
}

// ask prints findings, and asks whether to go on if one says that all requests are denied.
func (r *review) ask(ctx context.Context, out io.Writer, added []analyze.Finding) error {
	for i, f := range added {
		if i == maxReviewed {
			_, _ = fmt.Fprintf(out, "%s not listed: outrigger analyze lists all\n", count(len(added)-i, "more finding")) // the terminal may be closed
			break
		}
		_, _ = io.WriteString(out, f.Text(cmp.Or(columns.OfTerminal(out), columns.Unlimited))) // as above
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

// added returns the findings that a change brings, the worst first. The running control plane knows all
// services and workloads. Without one, those of the store are compared.
func (r *review) added(ctx context.Context, out io.Writer, s config.Reader, objects []*model.Config, keys []model.Key) ([]analyze.Finding, error) {
	objects = slices.DeleteFunc(slices.Clone(objects), func(c *model.Config) bool {
		old := s.Get(c.Key)
		return old != nil && config.SameContent(old, c)
	})
	if len(objects)+len(keys) == 0 {
		return nil, nil
	}
	err := analyze.ErrNoControl
	if r.cfg.Analyze != nil {
		change, failed := analyze.Change{Deleted: keys}, error(nil)
		if change.Objects, failed = manifest(objects); failed != nil {
			return nil, failed
		}
		for _, c := range objects {
			if s.Get(c.Key) == nil {
				change.Created = append(change.Created, c.Key)
			}
		}
		var result analyze.Result
		if result, err = r.cfg.Analyze(ctx, r.store, r.given, change); err == nil {
			sources := map[analyze.Object]string{}
			for _, c := range objects {
				sources[analyze.ObjectOf(c.Key)] = c.Source
			}
			for i, f := range result.Findings {
				result.Findings[i].Source = cmp.Or(sources[f.Object], f.Source)
			}
			return result.Findings, nil
		}
	}
	if ctx.Err() != nil {
		return nil, errInterrupted
	}
	refers := slices.ContainsFunc(objects, func(c *model.Config) bool { return !defining[c.Kind] })
	if refers || len(s.Schemas()) < len(schema.All()) || !errors.Is(err, analyze.ErrNoControl) {
		_, _ = fmt.Fprintf(out, "not checked: services, workloads and objects that the store does not have, because %v; outrigger analyze --control ADDRESS checks them\n", err) // the terminal may be closed
	}
	return stored(s, objects, keys), nil
}

// defining are the kinds whose objects refer to no others. It is never written to.
var defining = map[model.Kind]bool{model.ServiceEntry: true, model.WorkloadEntry: true, model.WorkloadGroup: true}

// manifest returns objects as YAML.
func manifest(objects []*model.Config) (string, error) {
	var text strings.Builder
	for _, c := range objects {
		raw, err := written(c)
		if err != nil {
			return "", err
		}
		text.WriteString("---\n")
		text.Write(raw)
	}
	return text.String(), nil
}

// stored returns the findings that a change of a store brings. What the changed objects refer to may be
// outside of the store, so only what is wrong in themselves counts. What the other objects refer to is
// missed only if the store had it.
func stored(s config.Reader, objects []*model.Config, keys []model.Key) []analyze.Finding {
	before, after := map[model.Key]*model.Config{}, map[model.Key]*model.Config{}
	for _, sch := range s.Schemas() {
		for _, c := range s.List(sch.Kind, "") {
			before[c.Key], after[c.Key] = c, c
		}
	}
	changed, now := map[analyze.Object]bool{}, time.Now()
	for _, c := range objects {
		next := *c
		next.Created = now // as in a store: the order of objects depends on their age
		if old := before[c.Key]; old != nil {
			next.Created = old.Created
		}
		after[c.Key], changed[analyze.ObjectOf(c.Key)] = &next, true
	}
	for _, key := range keys {
		delete(after, key)
	}
	compare := func(in analyze.Input) []analyze.Finding {
		state := func(of map[model.Key]*model.Config) analyze.Input {
			next := in
			next.Objects = slices.SortedFunc(maps.Values(of), func(a, b *model.Config) int { return a.Compare(b.Key) })
			next.Build(nil)
			return next
		}
		return analyze.Compare(state(before), state(after)).Findings
	}
	out := compare(analyze.Input{AssumedMesh: true, Partial: true})
	type place struct {
		code   string
		object analyze.Object
	}
	known := map[place]bool{}
	for _, f := range out {
		known[place{f.Code, f.Object}] = true
	}
	for _, f := range compare(analyze.Input{AssumedMesh: true, Complete: true}) {
		if !changed[f.Object] && !known[place{f.Code, f.Object}] {
			out = append(out, f)
		}
	}
	slices.SortStableFunc(out, func(a, b analyze.Finding) int { return cmp.Compare(a.Severity.Rank(), b.Severity.Rank()) })
	return out
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
