// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1alpha1 "istio.io/api/meta/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func newDescribeCommand(cfg Config) *cobra.Command {
	store, pick := storeFlags{cfg: cfg}, picker{}
	cmd := &cobra.Command{
		Use:     "describe (KIND | KIND NAME... | KIND/NAME...)",
		Short:   "Print objects, their status and their problems",
		Long:    "Print objects in readable form: their spec, their status, and what is wrong with them.",
		Example: "  outrigger describe vs catalog -n shop\n  outrigger describe dr -A",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &ExitError{exitUsage, fmt.Errorf("no kind is named: write %s, or all", kindsForPeople())}
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
				problems := map[model.Key][]model.Problem{}
				for _, p := range s.Problems() {
					problems[p.Object] = append(problems[p.Object], p)
				}
				for i, c := range found {
					if i > 0 {
						say(cmd, "\n")
					}
					if err := describe(cmd.OutOrStdout(), c, problems[c.Key]); err != nil {
						return err
					}
				}
				r := &outcome{out: cmd.ErrOrStderr()}
				pick.lacking(r, s, of, args, found, missing)
				return r.err()
			})
		},
	}
	cmd.Flags().StringVarP(&pick.namespace, "namespace", "n", "", "namespace of the objects (default \"default\")")
	pick.add(cmd)
	store.add(cmd)
	store.complete(cmd, &pick)
	return cmd
}

// describe prints one object.
func describe(out io.Writer, c *model.Config, problems []model.Problem) error {
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-18s%s\n", name+":", value)
		}
	}
	line("Name", c.Name)
	line("Namespace", c.Namespace)
	line("Kind", string(c.Kind))
	line("API version", c.APIVersion)
	line("Labels", pairs(c.Labels))
	line("Annotations", pairs(c.Annotations))
	if !c.Created.IsZero() {
		line("Created", fmt.Sprintf("%s (%s ago)", c.Created.UTC().Format(time.RFC3339), age(c.Created)))
	}
	line("Resource version", c.ResourceVersion)
	if c.Generation > 0 {
		line("Generation", fmt.Sprint(c.Generation))
	}
	line("Source", c.Source)
	if err := section(&b, "Spec", c.Spec); err != nil {
		return err
	}
	if c.Status != nil {
		if err := section(&b, "Status", c.Status); err != nil {
			return err
		}
	}
	// Problems from the store include warnings. If there are none, the store validated the object
	// when it was written.
	if len(problems) == 0 {
		_, warnings := validate.Object(c)
		for _, w := range warnings {
			problems = append(problems, model.Problem{Reason: w.Error(), Warning: true})
		}
	}
	if text := analysis(c); unlisted(text, problems) {
		problems = append(problems, model.Problem{Reason: text, Warning: true})
	}
	if len(problems) == 0 {
		line("Problems", "none")
	} else {
		b.WriteString("Problems:\n")
		for _, p := range problems {
			word := "error"
			if p.Warning {
				word = "warning"
			}
			at := ""
			if p.Source != "" && p.Source != c.Source {
				at = " (" + p.Source + ")"
			}
			fmt.Fprintf(&b, "  %s: %s%s\n", word, p.Reason, at)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// unlisted reports whether the text of a status contains more than the problems, which it joins with
// semicolons.
func unlisted(text string, problems []model.Problem) bool {
	for _, p := range problems {
		text = strings.Replace(text, p.Reason, "", 1)
	}
	return strings.Trim(text, "; ") != ""
}

// analysis returns the problems that a control plane wrote into the status of an object.
func analysis(c *model.Config) string {
	status, _ := c.Status.(*metav1alpha1.IstioStatus)
	for _, condition := range status.GetConditions() {
		if condition.GetType() == "PassedAnalysis" && condition.GetStatus() == "False" {
			return condition.GetMessage()
		}
	}
	return ""
}

func pairs(m map[string]string) string {
	var texts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		texts = append(texts, k+"="+m[k])
	}
	return strings.Join(texts, ", ")
}

func section(b *strings.Builder, title string, part any) error {
	raw, err := codec.EncodeSpec(part)
	if err != nil {
		return err
	}
	text, err := yaml.JSONToYAML(raw)
	if err != nil {
		return err
	}
	b.WriteString(title + ":\n")
	for l := range strings.Lines(string(text)) {
		b.WriteString("  " + l)
	}
	return nil
}
