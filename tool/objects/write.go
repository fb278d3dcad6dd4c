// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// verb is a command that writes the objects in files.
type verb struct {
	name, past  string
	short, long string
	write       func(ctx context.Context, s config.ReadWriter, c *model.Config) (changed bool, err error)
}

// reviewed is the part of the help about the review of a change.
const reviewed = "\n\nMistakes that the change brings are printed, as outrigger analyze finds them. A\n" +
	"change that denies all requests to a workload asks first on a terminal, also with\n" +
	"-f -. Without a terminal, it is made."

var (
	createVerb = verb{
		"create", "created", "Create objects from files",
		"Create the objects of the files. An object that already exists is an error." + reviewed,
		func(ctx context.Context, s config.ReadWriter, c *model.Config) (bool, error) {
			_, err := s.Create(ctx, c)
			return true, err
		},
	}
	applyVerb = verb{
		"apply", "applied", "Create or change objects from files",
		"Make the stored objects equal to those of the files: create those that do not\n" +
			"exist, replace labels, annotations and spec of the others. An object with a\n" +
			"metadata.resourceVersion is written only if it has not changed since." + reviewed,
		apply,
	}
	replaceVerb = verb{
		"replace", "replaced", "Replace objects by those of files",
		"Replace labels, annotations and spec of objects that exist. An object with a\n" +
			"metadata.resourceVersion is written only if it has not changed since." + reviewed,
		func(ctx context.Context, s config.ReadWriter, c *model.Config) (bool, error) {
			_, err := s.Update(ctx, c)
			return true, err
		},
	}
)

// apply creates or updates an object as specified in the file. It overwrites concurrent changes,
// unless the file contains a resource version.
func apply(ctx context.Context, s config.ReadWriter, c *model.Config) (changed bool, err error) {
	old := s.Get(c.Key)
	if old != nil && config.SameContent(old, c) && (c.ResourceVersion == "" || c.ResourceVersion == old.ResourceVersion) {
		return false, nil
	}
	for create := old == nil && c.ResourceVersion == ""; ; create = !create {
		if create {
			_, err = s.Create(ctx, c)
		} else {
			_, err = s.Update(ctx, c)
		}
		cameOrWent := errors.Is(err, config.ErrExists) || errors.Is(err, config.ErrNotFound)
		if cameOrWent && c.ResourceVersion != "" {
			return false, fmt.Errorf("%w: metadata.resourceVersion is that of a deleted object, or of another store; remove it to create the object", err)
		}
		if !cameOrWent {
			return true, err
		}
	}
}

func newWriteCommand(cfg Config, v verb) *cobra.Command {
	store, files := storeFlags{cfg: cfg}, fileFlags{cfg: cfg}
	dryRun, yes := false, false
	cmd := &cobra.Command{
		Use:   v.name + " -f FILE",
		Short: v.short,
		Long: v.long + "\n\nEach object is checked first: if anything is wrong in any file, every problem is\n" +
			"listed and nothing is written. The exit code is 0, 1 if something failed, 2 for\na wrong command line.",
		Example: fmt.Sprintf("  outrigger %[1]s -f route.yaml\n  outrigger %[1]s -f config/ -n shop\n"+
			"  outrigger %[1]s -f - --store etcd://127.0.0.1:2379 < route.yaml", v.name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects, err := files.readSome(cmd, "written")
			if err != nil {
				return err
			}
			if dryRun {
				for _, c := range objects {
					say(cmd, "%s would be %s\n", display(c.Key), v.past)
				}
				return nil
			}
			return store.with(cmd, kindsIn(objects), func(ctx context.Context, s config.ReadWriter) error {
				r := &outcome{out: cmd.ErrOrStderr()}
				address, err := store.url()
				if err != nil {
					return err
				}
				piped := slices.Contains(files.files, "-")
				if err := (&review{cfg: cfg, store: address, given: store.address != "", yes: yes, piped: piped}).run(ctx, cmd, s, objects, nil); err != nil {
					return err
				}
				for _, c := range objects {
					if err := r.interrupted(ctx, len(objects)); err != nil {
						return err
					}
					changed, err := v.write(ctx, s, c)
					switch {
					case err != nil:
						r.fail("%s: %v", c.Source, err)
						continue
					case changed:
						say(cmd, "%s %s\n", display(c.Key), v.past)
					default:
						say(cmd, "%s unchanged\n", display(c.Key))
					}
					r.done++
				}
				return r.err()
			})
		},
	}
	files.add(cmd)
	store.add(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only check the files, without a store")
	cmd.Flags().BoolVar(&yes, "yes", false, "ask nothing, also before what denies all requests to a workload")
	return cmd
}

func newDeleteCommand(cfg Config) *cobra.Command {
	store, files, pick := storeFlags{cfg: cfg}, fileFlags{cfg: cfg}, picker{}
	ignoreMissing, yes := false, false
	cmd := &cobra.Command{
		Use:                   "delete (KIND NAME... | KIND/NAME... | KIND -l SELECTOR | -f FILE)",
		DisableFlagsInUseLine: true,
		Short:                 "Delete objects",
		Long: "Delete objects by name, by label, or all those in files. Of a file only kind,\n" +
			"namespace and name count: its objects need not be valid, and the same object may\n" +
			"be in several files.\n\n" +
			"What other objects miss without the objects is printed, as outrigger analyze finds\n" +
			"it. If all requests to a workload would be denied, the command asks first on a terminal.",
		Example: "  outrigger delete virtualservice catalog -n shop\n  outrigger delete vs -l team=web -A\n" +
			"  outrigger delete -f route.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			var keys []model.Key
			if len(files.files) > 0 {
				if len(args) > 0 {
					return &ExitError{exitUsage, fmt.Errorf("-f and %q exclude each other: delete the objects of files, or the named ones", args[0])}
				}
				var err error
				if keys, err = files.readKeys(cmd, "deleted"); err != nil {
					return err
				}
			} else if len(args) == 0 {
				return &ExitError{exitUsage, errNothing}
			} else if len(args) == 1 && pick.selector == "" && !strings.Contains(args[0], "/") {
				return &ExitError{exitUsage, fmt.Errorf("delete %s: name the objects, or choose them with -l", args[0])}
			}
			of, err := kindsOf(args)
			if err != nil {
				return err
			}
			for _, key := range keys {
				of = append(of, key.Kind)
			}
			pick.namespace = files.namespace
			return store.with(cmd, of, func(ctx context.Context, s config.ReadWriter) error {
				r := &outcome{out: cmd.ErrOrStderr()}
				if len(args) > 0 {
					found, missing, err := pick.find(s, args)
					if err != nil {
						return err
					}
					for _, key := range missing {
						if !ignoreMissing {
							r.fail("%s: %v", display(key), config.ErrNotFound)
						}
					}
					for _, c := range found {
						keys = append(keys, c.Key)
					}
				}
				if len(keys) == 0 && pick.selector != "" {
					_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "no objects found") // the terminal may be closed
				}
				address, err := store.url()
				if err != nil {
					return err
				}
				piped := slices.Contains(files.files, "-")
				if err := (&review{cfg: cfg, store: address, given: store.address != "", yes: yes, piped: piped}).run(ctx, cmd, s, nil, keys); err != nil {
					return err
				}
				for _, key := range keys {
					if err := r.interrupted(ctx, len(keys)); err != nil {
						return err
					}
					switch err := s.Delete(ctx, key, ""); {
					case errors.Is(err, config.ErrNotFound) && ignoreMissing:
					case err != nil:
						r.fail("%v", err)
					default:
						r.done++
						say(cmd, "%s deleted\n", display(key))
					}
				}
				return r.err()
			})
		},
	}
	files.add(cmd)
	pick.add(cmd)
	store.add(cmd)
	store.complete(cmd, &pick)
	cmd.Flags().BoolVar(&yes, "yes", false, "ask nothing, also before what denies all requests to a workload")
	cmd.Flags().BoolVar(&ignoreMissing, "ignore-not-found", false, "an object that does not exist is no error")
	return cmd
}
