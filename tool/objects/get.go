// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/internal/output"
)

// outName is the output format of names only.
const outName = "name"

func newGetCommand(cfg Config) *cobra.Command {
	store, pick := storeFlags{cfg: cfg}, picker{}
	form, watch := "", false
	cmd := &cobra.Command{
		Use:   "get (KIND | KIND NAME... | KIND/NAME...)",
		Short: "Print objects",
		Long: "Print objects as a table, as YAML or as JSON. KIND is a kind, its plural or its\n" +
			"short name, several with commas between, or all. Istio's Gateway goes before that\n" +
			"of the Gateway API, which is gateways.gateway.networking.k8s.io or gtw.\n\n" +
			"On a terminal a table fits: texts are shortened, then columns are left out, the last\n" +
			"first, and named below the table.\n\n" +
			"With --watch, print the objects, then those that change: rows of the table, or a\n" +
			"document for each with -o yaml or json.",
		Example: "  outrigger get virtualservices -A\n  outrigger get vs,dr -n shop\n  outrigger get vs catalog -o yaml\n" +
			"  outrigger get all -A -l team=web",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &ExitError{exitUsage, fmt.Errorf("no kind is named: write %s, or all", kindsForPeople())}
			}
			of, err := kindsOf(args)
			if err != nil {
				return err
			}
			if watch {
				store.trouble = troubles(cmd)
			}
			return store.with(cmd, of, func(ctx context.Context, s config.ReadWriter) error {
				found, missing, err := pick.find(s, args)
				if err != nil {
					return err
				}
				r := &outcome{out: cmd.ErrOrStderr(), done: len(found)}
				pick.lacking(r, s, of, args, found, missing)
				alone := len(args) == 2 && len(found) == 1 || len(args) == 1 && strings.Contains(args[0], "/")
				p := printer{cmd.OutOrStdout(), cmd.ErrOrStderr(), form, pick.all, cfg.Width}
				if err := p.print(found, alone); err != nil {
					return err
				}
				if watch {
					return p.follow(ctx, func() ([]*model.Config, error) {
						now, _, err := pick.find(s, args)
						return now, err
					}, found)
				}
				if r.failed > 0 {
					return &ExitError{Code: exitFailed}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&pick.namespace, "namespace", "n", "", "namespace of the objects (default \"default\")")
	pick.add(cmd)
	store.add(cmd)
	store.complete(cmd, &pick)
	output.Add(cmd, &form, outName)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print objects that change, until Ctrl-C")
	return cmd
}

// printer prints objects in one of the formats.
type printer struct {
	out, notes io.Writer
	form       string
	namespaces bool // with a column for them
	width      int  // of the terminal; 0 for none
}

// print prints objects. If alone is set, a single object was requested and is not printed as a list.
func (p printer) print(objects []*model.Config, alone bool) error {
	switch p.form {
	case outName:
		for _, c := range objects {
			if _, err := fmt.Fprintln(p.out, named(c.Key)); err != nil {
				return err
			}
		}
		return nil
	case output.Table, output.Wide:
		return p.tables(objects, nil)
	}
	raw, err := list(objects, alone)
	if err != nil {
		return err
	}
	return output.Write(p.out, p.form, json.RawMessage(raw))
}

// named returns the name of an object in the syntax of get and delete.
func named(key model.Key) string {
	sch, ok := schema.Of(key.Kind)
	if !ok {
		return key.String()
	}
	return short(sch, key)
}

// list encodes one object, or a Kubernetes List.
func list(objects []*model.Config, alone bool) ([]byte, error) {
	items := make([]json.RawMessage, len(objects))
	for i, c := range objects {
		raw, err := codec.EncodeJSON(c)
		if err != nil {
			return nil, err
		}
		items[i] = raw
	}
	if alone && len(items) == 1 {
		return items[0], nil
	}
	return json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
}

// tables prints one table per kind. If changed is not nil, it prints only the rows of these objects, in the
// columns of all.
func (p printer) tables(objects []*model.Config, changed map[model.Key]bool) error {
	width, out := p.width, p.out
	if p.form == output.Wide {
		width, out = columns.Unlimited, columns.Raw(out)
	} else if width == 0 {
		width = columns.Unlimited
	}
	var b strings.Builder
	several, shortened := len(objects) > 0 && objects[0].Kind != objects[len(objects)-1].Kind, false
	for first, i := 0, 0; first < len(objects); first = i {
		kind := objects[first].Kind
		shown := columnsOf(kind, width == columns.Unlimited)
		rows := [][]string{row(p.namespaces, "NAMESPACE", "NAME", shown, func(c column) string { return c.title })}
		for i = first; i < len(objects) && objects[i].Kind == kind; i++ {
			c, name := objects[i], objects[i].Name
			if several {
				name = named(c.Key)
			}
			rows = append(rows, row(p.namespaces, c.Namespace, name, shown, func(of column) string { return of.value(c) }))
		}
		table := columns.Fit(rows, "", width)
		if changed != nil {
			for n, c := range objects[first:i] {
				if changed[c.Key] {
					b.WriteString(table.Lines[n+1] + "\n")
				}
			}
			continue
		}
		if first > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(table.String())
		shortened = shortened || table.Shortened
	}
	if shortened {
		b.WriteString("\n… stands for a part of a text: -o wide shows texts in full.\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func row(namespaces bool, namespace, name string, shown []column, text func(column) string) []string {
	var cells []string
	if namespaces {
		cells = append(cells, namespace)
	}
	cells = append(cells, name)
	for _, c := range shown {
		cells = append(cells, text(c))
	}
	return cells
}

// age formats a duration as briefly as kubectl does.
func age(created time.Time) string {
	if created.IsZero() {
		return "-"
	}
	switch d := time.Since(created); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
