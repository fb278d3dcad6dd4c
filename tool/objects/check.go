// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/internal/output"
	"github.com/outrigger-mesh/outrigger/tool/deep"
)

func newValidateCommand(cfg Config) *cobra.Command {
	files := fileFlags{cfg: cfg}
	strict, form := false, ""
	thorough := deepFlags{cfg: cfg}
	cmd := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Check files without a store",
		Long: "Check the objects of files by all rules of the control plane, and list all problems\n" +
			"at once, with file, line, field and cure. Warnings are about objects that are valid\n" +
			"but possibly not intended. Objects of other API groups, such as Deployments, are\n" +
			"skipped. The exit code is 0, 1 with errors, or 2 for a wrong command line or a file\n" +
			"that cannot be read.\n\n" +
			"With --deep, a real Envoy also validates what the proxies would have: those of the\n" +
			"Pods, Deployments, WorkloadEntries and WorkloadGroups in the files, and one for each\n" +
			"selector that selects none of them, as of an EnvoyFilter. Nothing is connected to, and\n" +
			"Lua is compiled, but does not run. Secrets and modules of Wasm are not validated.",
		Example: "  outrigger validate -f config/\n  kustomize build . | outrigger validate -f - --strict\n  outrigger validate -f config/ --deep",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files.skips, files.keeps = !strict, thorough.enabled
			for i, dir := range files.links {
				var err error
				if files.links[i], err = filepath.Abs(dir); err != nil {
					return err
				}
			}
			objects, problems, err := files.read(cmd.Context())
			if err != nil {
				return err
			}
			v := validated{Valid: len(objects), Skipped: files.skipped, Problems: []report.Problem{}}
			v.add(problems)
			failed := v.Errors > 0 || strict && v.Warnings > 0
			if output.ForReaders(form) {
				sayProblems(cmd.ErrOrStderr(), problems)
				if failed {
					return &ExitError{exitFailed, errors.New(v.summary())}
				}
				say(cmd, "%s\n", v.summary())
			}
			if thorough.enabled && !failed {
				result, err := thorough.check(cmd, files, objects)
				if err != nil {
					return err
				}
				if output.ForReaders(form) {
					return sayDeep(cmd, result, strict)
				}
				v.add(result.Problems)
				v.Envoy, failed = &result, len(result.Refused) > 0 || strict && len(result.Problems) > 0
			}
			if output.ForReaders(form) {
				return nil
			}
			if err := output.Write(cmd.OutOrStdout(), form, v); err != nil || !failed {
				return err
			}
			return &ExitError{Code: exitFailed}
		},
	}
	files.add(cmd)
	cmd.Flags().StringSliceVar(&files.links, "links", nil, "directory that links in that of -f may lead to, as with ?links= of a store; / allows all; can be repeated")
	thorough.add(cmd)
	output.Add(cmd, &form)
	cmd.Flags().BoolVar(&strict, "strict", false, "warnings and objects of other API groups fail too")
	return cmd
}

// validated is what validate finds, as JSON and YAML have it.
type validated struct {
	Valid    int              `json:"valid"`
	Errors   int              `json:"errors"`
	Warnings int              `json:"warnings"`
	Skipped  int              `json:"skipped"`
	Problems []report.Problem `json:"problems"`
	// Envoy is the result of --deep.
	Envoy *deep.Result `json:"envoy,omitempty"`
}

// add adds problems.
func (v *validated) add(problems []model.Problem) {
	for _, p := range problems {
		if p.Warning {
			v.Warnings += p.Count()
		} else {
			v.Errors += p.Count()
		}
		ref := report.Ref{Kind: string(p.Object.Kind), Namespace: p.Object.Namespace, Name: p.Object.Name}
		v.Problems = append(v.Problems, report.Problem{Object: ref, Source: p.Source, Reason: p.Reason, Warning: p.Warning})
	}
}

// summary returns the numbers as a sentence.
func (v *validated) summary() string {
	text := fmt.Sprintf("%s valid, %s, %s", count(v.Valid, "object"), count(v.Errors, "error"), count(v.Warnings, "warning"))
	if v.Skipped > 0 {
		text += fmt.Sprintf("; %s for others skipped", count(v.Skipped, "object"))
	}
	return text
}

func newDiffCommand(cfg Config) *cobra.Command {
	store, files := storeFlags{cfg: cfg}, fileFlags{cfg: cfg}
	from, to, past := "", "", Past(nil)
	cmd := &cobra.Command{
		Use:   "diff (-f FILE | --from TIME)",
		Short: "Show what apply would change, or what has changed",
		Long: "Show, as a unified diff, what apply would change in the store. With --from, show\n" +
			"which objects of the control plane have changed since then: that of --control, else\n" +
			"the one of the running outrigger up that uses --store. The exit code is 0 without\n" +
			"differences, 1 with some, and 2 if something failed.",
		Example: "  outrigger diff -f config/\n  outrigger diff -f route.yaml --store etcd://127.0.0.1:2379\n" +
			"  outrigger diff --from 2h\n  outrigger diff --from 14:00 --to 14:30",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from != "" || to != "" {
				return diffOfTimes(cmd, past, store.address, len(files.files), from, to)
			}
			objects, err := files.readSome(cmd, "compared")
			if exit := (*ExitError)(nil); errors.As(err, &exit) {
				err = exit.Err
			}
			if err != nil {
				return &ExitError{exitUsage, err}
			}
			differs := false
			err = store.with(cmd, kindsIn(objects), func(_ context.Context, s config.ReadWriter) error {
				for _, c := range objects {
					text, err := difference(s.Get(c.Key), c)
					if err != nil {
						return err
					}
					differs = differs || text != ""
					_, _ = io.WriteString(columns.Raw(cmd.OutOrStdout()), text) // the terminal may be closed
				}
				return nil
			})
			switch {
			case err != nil:
				return &ExitError{exitUsage, err}
			case differs:
				return &ExitError{Code: exitFailed}
			}
			return nil
		},
	}
	files.add(cmd)
	store.add(cmd)
	past = store.addPast(cmd)
	cmd.Flags().StringVar(&from, "from", "", "compare with the objects of this time: a duration (2h), a time of the day (14:02) or a date and time (2006-01-02T15:04)")
	cmd.Flags().StringVar(&to, "to", "", "with --from, the time to compare (default now)")
	past.Complete()
	return cmd
}

// difference returns the changes from the stored object, or nil, to next.
func difference(stored, next *model.Config) (string, error) {
	var before, after []byte
	var err error
	if stored != nil {
		if before, err = written(stored); err != nil {
			return "", err
		}
	}
	if after, err = written(next); err != nil {
		return "", err
	}
	if bytes.Equal(before, after) {
		return "", nil
	}
	name := display(next.Key)
	return udiff.Unified("stored/"+name, next.Source, string(before), string(after)), nil
}

// written returns an object as the user would write it, without fields that stores add.
func written(c *model.Config) ([]byte, error) {
	return codec.EncodeYAML(&model.Config{Key: c.Key, Labels: c.Labels, Annotations: c.Annotations, Spec: c.Spec})
}
