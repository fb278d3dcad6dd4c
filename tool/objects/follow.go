// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/output"
)

// followed is how often get --watch compares the objects of a store, which is kept up to date.
const followed = time.Second

// troubles returns a function that prints errors of a store, each once until there is another one.
func troubles(cmd *cobra.Command) func(error) {
	last := ""
	return func(err error) {
		if text := err.Error(); text != last {
			last = text
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "error: %s; trying again\n", text) // the terminal may be closed
		}
	}
}

// follow prints the objects that differ from before, until ctx is done.
func (p printer) follow(ctx context.Context, find func() ([]*model.Config, error), before []*model.Config) error {
	ticks := time.NewTicker(followed)
	defer ticks.Stop()
	known := map[model.Key]*model.Config{}
	for _, c := range before {
		known[c.Key] = c
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		objects, err := find()
		if err != nil {
			return err
		}
		changed, now := map[model.Key]bool{}, map[model.Key]*model.Config{}
		for _, c := range objects {
			now[c.Key] = c
			old := known[c.Key]
			changed[c.Key] = old == nil || !config.SameContent(old, c)
		}
		if len(known) == 0 && p.rows() {
			changed = nil // with the header
		}
		if err := p.changes(objects, changed); err != nil {
			return err
		}
		out := p.notes // a document has no place for it
		if p.rows() || p.form == outName {
			out = p.out
		}
		for _, c := range before {
			if now[c.Key] != nil {
				continue
			}
			if _, err := fmt.Fprintf(out, "%s deleted\n", display(c.Key)); err != nil {
				return err
			}
		}
		before, known = objects, now
	}
}

// rows reports whether a table is printed.
func (p printer) rows() bool { return p.form == output.Table || p.form == output.Wide }

// changes prints the objects that changed.
func (p printer) changes(objects []*model.Config, changed map[model.Key]bool) error {
	if p.rows() {
		return p.tables(objects, changed)
	}
	for _, c := range objects {
		if !changed[c.Key] {
			continue
		}
		if p.form == output.YAML {
			if _, err := io.WriteString(p.out, "---\n"); err != nil {
				return err
			}
		}
		if err := p.print([]*model.Config{c}, true); err != nil {
			return err
		}
	}
	return nil
}
