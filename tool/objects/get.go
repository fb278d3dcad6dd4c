// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Output formats.
const (
	outTable = "table"
	outYAML  = "yaml"
	outJSON  = "json"
	outName  = "name"
)

var outputs = []string{outTable, outYAML, outJSON, outName}

func newGetCommand(cfg Config) *cobra.Command {
	store, pick := storeFlags{cfg: cfg}, picker{}
	output := ""
	cmd := &cobra.Command{
		Use:   "get (KIND | KIND NAME... | KIND/NAME...)",
		Short: "Print objects",
		Long: "Print objects as a table, as YAML or as JSON. KIND is a kind, its plural or its\n" +
			"short name, several with commas between, or all. Istio's Gateway goes before that\n" +
			"of the Gateway API, which is gateways.gateway.networking.k8s.io or gtw.",
		Example: "  outrigger get virtualservices -A\n  outrigger get vs,dr -n shop\n  outrigger get vs catalog -o yaml\n" +
			"  outrigger get all -A -l team=web",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return &ExitError{exitUsage, fmt.Errorf("no kind is named: write %s, or all", kindsForPeople())}
			case !slices.Contains(outputs, output):
				return &ExitError{exitUsage, fmt.Errorf("-o %s is unknown: write %s", output, strings.Join(outputs, ", "))}
			}
			of, err := kindsOf(args)
			if err != nil {
				return err
			}
			return store.with(cmd, of, func(_ context.Context, s config.ReadWriter) error {
				found, missing, err := pick.find(s, args)
				if err != nil {
					return err
				}
				r := &outcome{out: cmd.ErrOrStderr(), done: len(found)}
				for _, key := range missing {
					r.fail("%s: %v", display(key), whyMissing(s, key))
				}
				if len(args) == 1 && !strings.Contains(args[0], "/") && pick.selector == "" {
					for _, p := range pick.notShown(s, of, found) {
						r.fail("%s: %v", display(p.Object), whyMissing(s, p.Object))
					}
				}
				if len(found) == 0 && len(missing) == 0 && r.failed == 0 {
					_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "no objects found") // the terminal may be closed
					return nil
				}
				alone := len(args) == 2 && len(found) == 1 || len(args) == 1 && strings.Contains(args[0], "/")
				if err := write(cmd.OutOrStdout(), found, output, pick.all, alone); err != nil {
					return err
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
	cmd.Flags().StringVarP(&output, "output", "o", outTable, "table, yaml, json or name")
	return cmd
}

// write prints objects in one of the formats. If alone is set, a single object was requested and is
// not printed as a list.
func write(out io.Writer, objects []*model.Config, form string, namespaces, alone bool) error {
	switch form {
	case outName:
		for _, c := range objects {
			if _, err := fmt.Fprintln(out, named(c.Key)); err != nil {
				return err
			}
		}
		return nil
	case outTable:
		return writeTables(out, objects, namespaces)
	}
	raw, err := list(objects, alone)
	if err != nil {
		return err
	}
	if form == outYAML {
		raw, err = yaml.JSONToYAML(raw)
	} else {
		var b bytes.Buffer
		err = json.Indent(&b, raw, "", "  ")
		b.WriteByte('\n')
		raw = b.Bytes()
	}
	if err != nil {
		return err
	}
	_, err = out.Write(raw)
	return err
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

// writeTables prints one table per kind.
func writeTables(out io.Writer, objects []*model.Config, namespaces bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	several := len(objects) > 0 && slices.ContainsFunc(objects, func(c *model.Config) bool { return c.Kind != objects[0].Kind })
	for i, c := range objects {
		columns := columnsOf(c.Kind)
		if i == 0 || objects[i-1].Kind != c.Kind {
			if i > 0 {
				if err := w.Flush(); err != nil {
					return err
				}
				if _, err := fmt.Fprintln(out); err != nil {
					return err
				}
			}
			row(w, namespaces, "NAMESPACE", "NAME", columns, func(c column) string { return c.title })
		}
		name := c.Name
		if several {
			name = named(c.Key)
		}
		row(w, namespaces, c.Namespace, name, columns, func(of column) string { return of.value(c) })
	}
	return w.Flush()
}

func row(w io.Writer, namespaces bool, namespace, name string, columns []column, text func(column) string) {
	var cells []string
	if namespaces {
		cells = append(cells, namespace)
	}
	cells = append(cells, name)
	for _, c := range columns {
		cells = append(cells, text(c))
	}
	_, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) // Flush returns the error
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
