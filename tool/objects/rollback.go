// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// Past answers about versions of objects that a control plane has used.
type Past interface {
	// Changes returns the objects that differ between two moments, as the user writes them.
	Changes(ctx context.Context, from, to string) (report.Changes, error)
	// Versions returns the versions of an object, the newest last. If revision is not empty, it returns
	// those whose revision begins with it, with their objects.
	Versions(ctx context.Context, key model.Key, revision string) ([]report.Version, error)
}

// diffOfTimes prints which objects differ between two moments.
func diffOfTimes(cmd *cobra.Command, cfg Config, files int, from, to string) error {
	switch {
	case files > 0:
		return &ExitError{exitUsage, errors.New("-f and --from exclude each other: compare files with the store, or two times")}
	case from == "":
		return &ExitError{exitUsage, errors.New("--to needs --from: write --from TIME")}
	}
	changes, err := cfg.Past.Changes(cmd.Context(), from, to)
	if err != nil {
		return &ExitError{exitUsage, err}
	}
	for _, c := range changes.Objects {
		text, err := pastDifference(c)
		if err != nil {
			return &ExitError{exitUsage, err}
		}
		_, _ = io.WriteString(columns.Raw(cmd.OutOrStdout()), text) // the terminal may be closed
	}
	if len(changes.Objects) > 0 {
		return &ExitError{Code: exitFailed}
	}
	return nil
}

// pastDifference returns the difference of two versions as a unified diff.
func pastDifference(c report.Changed) (string, error) {
	text := func(v *report.Version) (label, content string, err error) {
		if v == nil {
			return "/dev/null", "", nil
		}
		at := "\t" + v.At.Local().Format(time.DateTime)
		if model.Kind(v.Kind) == model.MeshConfigKind {
			raw, err := yaml.JSONToYAML(v.Object)
			return v.Name + at, string(raw), err
		}
		old, err := pastObject(*v)
		if err != nil {
			return "", "", err
		}
		raw, err := written(old)
		return display(old.Key) + at, string(raw), err
	}
	fromLabel, before, err := text(c.Before)
	if err != nil {
		return "", err
	}
	toLabel, after, err := text(c.After)
	if err != nil {
		return "", err
	}
	return udiff.Unified(fromLabel, toLabel, before, after), nil
}

// pastObject returns the object of a version.
func pastObject(v report.Version) (*model.Config, error) {
	c, err := codec.DecodeStored(v.Object)
	if err != nil {
		return nil, fmt.Errorf("revision %s: %w", v.Revision, err)
	}
	c.Source = "revision " + v.Revision
	return c, nil
}

func newRollbackCommand(cfg Config) *cobra.Command {
	store, pick := storeFlags{cfg: cfg}, picker{}
	to, dryRun, yes := "", false, false
	cmd := &cobra.Command{
		Use:   "rollback (KIND/NAME | KIND NAME)",
		Short: "Restore an earlier version of an object",
		Long: "Write an earlier version of an object to the store, and show what changes. Without\n" +
			"--to, it is the last version that differs from the stored one. An object that was\n" +
			"deleted is created again. The control plane knows the versions; outrigger history\n" +
			"lists them. Mistakes that the change brings are printed, as by outrigger apply.",
		Example: "  outrigger rollback vs/catalog -n shop\n  outrigger rollback vs/catalog -n shop --to 1f3a\n" +
			"  outrigger rollback vs/catalog -n shop --dry-run",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 && isMesh(args[0]) {
				return &ExitError{exitUsage, errors.New("the mesh config is in no store: copy what changed from outrigger history mesh --revision REVISION into the mesh file of outrigger up, the file of --meshConfig, or its ConfigMap")}
			}
			if len(args) == 0 || len(args) > 2 || len(args) == 1 && !strings.Contains(args[0], "/") {
				return &ExitError{exitUsage, errors.New("name one object, as in vs/catalog or vs catalog")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name, _ := strings.Cut(args[0], "/")
			if len(args) == 2 {
				name = args[1]
			}
			of, err := kinds(kind)
			if err != nil {
				return err
			}
			if len(of) != 1 || name == "" {
				return &ExitError{exitUsage, errors.New("name one object, as in vs/catalog or vs catalog")}
			}
			key := model.Key{Kind: of[0].Kind, Namespace: pick.where(of[0]), Name: name}
			return store.with(cmd, []model.Kind{key.Kind}, func(ctx context.Context, s config.ReadWriter) error {
				c, err := earlier(ctx, cfg.Past, s.Get(key), key, to)
				if err != nil {
					return err
				}
				text, err := difference(s.Get(key), c)
				if err != nil {
					return err
				}
				_, _ = io.WriteString(columns.Raw(cmd.OutOrStdout()), text) // the terminal may be closed
				address, err := store.url()
				if err != nil {
					return err
				}
				if err := (&review{cfg: cfg, store: address, given: store.address != "", yes: yes || dryRun}).run(ctx, cmd, s, []*model.Config{c}, nil); err != nil {
					return err
				}
				if dryRun {
					say(cmd, "%s would be restored to %s\n", display(key), c.Source)
					return nil
				}
				changed, err := apply(ctx, s, c)
				switch {
				case err != nil:
					return err
				case !changed:
					say(cmd, "%s already equals %s\n", display(key), c.Source)
				default:
					say(cmd, "%s restored to %s\n", display(key), c.Source)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&pick.namespace, "namespace", "n", "", "namespace of the object (default \"default\")")
	cmd.Flags().StringVar(&to, "to", "", "revision to restore, or the beginning of one")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would change")
	cmd.Flags().BoolVar(&yes, "yes", false, "restore without a question, also what denies all requests to a workload")
	store.add(cmd)
	store.complete(cmd, &pick)
	return cmd
}

// isMesh reports whether an argument names the mesh config or the networks.
func isMesh(arg string) bool {
	kind, _, _ := strings.Cut(strings.ToLower(arg), "/")
	return kind == report.MeshName || kind == strings.ToLower(string(model.MeshConfigKind)) || kind == strings.ToLower(report.NetworksName)
}

// earlier returns the version of an object with a revision, or the last one that differs from the
// stored object if revision is empty.
func earlier(ctx context.Context, past Past, stored *model.Config, key model.Key, revision string) (*model.Config, error) {
	all, err := past.Versions(ctx, key, "")
	if err != nil {
		return nil, err
	}
	tried := map[string]bool{}
	for i := len(all) - 1; i >= 0; i-- {
		v := all[i]
		if v.Revision == "" || tried[v.Revision] || !strings.HasPrefix(v.Revision, revision) {
			continue
		}
		tried[v.Revision] = true
		found, err := past.Versions(ctx, key, v.Revision)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			continue // the control plane has removed it since
		}
		c, err := pastObject(found[0])
		if err != nil {
			return nil, err
		}
		if revision != "" || stored == nil || !config.SameContent(stored, c) {
			return c, nil
		}
	}
	if revision != "" {
		return nil, &ExitError{exitFailed, fmt.Errorf("%s has no revision %s: outrigger history lists them", display(key), revision)}
	}
	if stored == nil {
		return nil, &ExitError{exitFailed, fmt.Errorf("the control plane knows no version of %s", display(key))}
	}
	return nil, &ExitError{exitFailed, fmt.Errorf("the control plane knows no other version of %s", display(key))}
}
