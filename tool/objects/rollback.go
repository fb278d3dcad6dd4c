// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// rollback restores an earlier version of an object.
type rollback struct {
	store       storeFlags
	pick        picker
	past        Past
	to          string
	dryRun, yes bool
}

func newRollbackCommand(cfg Config) *cobra.Command {
	r := rollback{store: storeFlags{cfg: cfg}}
	cmd := &cobra.Command{
		Use:   "rollback (KIND/NAME | KIND NAME)",
		Short: "Restore an earlier version of an object",
		Long: "Write an earlier version of an object to the store, and show what changes. Without\n" +
			"--to, it is the last version that differs from the stored one. An object that was\n" +
			"deleted is created again. Mistakes that the change brings are printed, as by\n" +
			"outrigger apply.\n\n" +
			"The control plane knows the versions; outrigger history lists them. It is that of\n" +
			"--control, else the one of the running outrigger up that uses the store. Nothing is\n" +
			"written unless the object comes from that store: not what outrigger up makes from its\n" +
			"mesh file, nor what is in another store of the control plane.",
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
		RunE: r.run,
	}
	cmd.Flags().StringVarP(&r.pick.namespace, "namespace", "n", "", "namespace of the object (default \"default\")")
	cmd.Flags().StringVar(&r.to, "to", "", "revision to restore, or the beginning of one")
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "only show what would change")
	cmd.Flags().BoolVar(&r.yes, "yes", false, "restore without a question, also what denies all requests to a workload")
	r.store.add(cmd)
	r.past = r.store.addPast(cmd)
	r.past.Complete()
	return cmd
}

func (r *rollback) run(cmd *cobra.Command, args []string) error {
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
	key := model.Key{Kind: of[0].Kind, Namespace: r.pick.where(of[0]), Name: name}
	address, err := r.address(cmd)
	if err != nil {
		return err
	}
	return r.store.withStore(cmd, address, []model.Kind{key.Kind}, func(ctx context.Context, s config.ReadWriter) error {
		there := standingOf(s, key)
		c, source, err := r.version(ctx, cmd, address, key, there)
		if err != nil {
			return err
		}
		text, err := difference(there.object, c)
		if err != nil {
			return err
		}
		_, _ = io.WriteString(columns.Raw(cmd.OutOrStdout()), text) // the terminal may be closed
		if there.fault != "" {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", there.fault) // as above
		}
		if err := (&review{cfg: r.store.cfg, store: address, given: r.store.address != "", yes: r.yes || r.dryRun}).run(ctx, cmd, s, []*model.Config{c}, nil); err != nil {
			return err
		}
		switch {
		case r.dryRun:
			say(cmd, "%s would be restored to %s\n", display(key), c.Source)
			return nil
		case there.has(c):
			say(cmd, "%s already equals %s\n", display(key), c.Source)
			return nil
		}
		restored := c.Clone()
		restored.Source = source
		if err := there.replace(ctx, s, restored); err != nil {
			return err
		}
		say(cmd, "%s restored to %s\n", display(key), c.Source)
		return nil
	})
}

// address returns the URL of the store: without --store, that of the mesh of --control.
func (r *rollback) address(cmd *cobra.Command) (string, error) {
	controls, err := cmd.Flags().GetStringSlice("control")
	if err == nil && len(controls) > 0 && r.store.address == "" {
		if address, err := mesh.RunningStore(os.TempDir(), controls[0]); address != "" || err != nil {
			return address, err
		}
	}
	return r.store.url()
}

// isMesh reports whether an argument names the mesh config or the networks.
func isMesh(arg string) bool {
	kind, _, _ := strings.Cut(strings.ToLower(arg), "/")
	return kind == report.MeshName || kind == strings.ToLower(string(model.MeshConfigKind)) || kind == strings.ToLower(report.NetworksName)
}

// version returns the version to restore, and where the object was last.
func (r *rollback) version(ctx context.Context, cmd *cobra.Command, address string, key model.Key, there standing) (c *model.Config, source string, err error) {
	h, control, err := r.past.Versions(ctx, address, key, "")
	if err != nil {
		return nil, "", err
	}
	sayControl(cmd, control, h.Replica)
	o := origin{control: control, stores: h.Stores, store: address, key: key}
	var last report.Version
	for _, v := range h.Versions {
		if v.Revision != "" {
			last = v
		}
	}
	exists := last.Revision != "" && h.Versions[len(h.Versions)-1].Revision != ""
	own, err := o.check(last, exists, there)
	if err != nil {
		return nil, "", &ExitError{exitFailed, err}
	}
	if !own {
		if _, err := r.content(ctx, o, last.Revision); !errors.Is(err, errGenerated) {
			return nil, "", &ExitError{exitFailed, o.elsewhere(last)}
		} // else one of the store replaces it
	}
	broken := error(nil)
	for _, p := range there.unnamed {
		if fileOf(p.Source) == fileOf(last.Source) {
			broken = fmt.Errorf("%s: %s comes from this file: correct it first", p, display(key))
		}
	}
	if there.object == nil && broken != nil {
		return nil, "", &ExitError{exitFailed, broken} // it would be in two files
	}
	c, err = r.choose(ctx, o, h, there)
	switch {
	case err != nil || c != nil:
		return c, last.Source, err
	case !own:
		err = o.elsewhere(last)
	case broken != nil:
		err = broken
	case there.object == nil:
		err = fmt.Errorf("control plane %s knows no version of %s: its history begins at %s", control, display(key), clock(h.Begins))
	default:
		err = fmt.Errorf("control plane %s knows no other version of %s: its history begins at %s", control, display(key), clock(h.Begins))
	}
	return nil, "", &ExitError{exitFailed, err}
}

// choose returns the version with the revision --to, else the last one that differs from the stored object,
// or nil.
func (r *rollback) choose(ctx context.Context, o origin, h report.History, there standing) (*model.Config, error) {
	if r.to != "" {
		v, err := r.named(ctx, o, h)
		if err != nil {
			return nil, err
		}
		return o.restorable(v)
	}
	tried := map[string]bool{}
	for i := len(h.Versions) - 1; i >= 0; i-- {
		v := h.Versions[i]
		if v.Revision == "" || tried[v.Revision] {
			continue
		}
		tried[v.Revision] = true
		c, err := r.content(ctx, o, v.Revision)
		switch {
		case errors.Is(err, errGenerated):
		case err != nil:
			return nil, err
		case c != nil && !there.has(c):
			return c, nil
		}
	}
	return nil, nil
}

// content returns the object of a revision, nil if the control plane has removed it since.
func (r *rollback) content(ctx context.Context, o origin, revision string) (*model.Config, error) {
	found, _, err := r.past.Versions(ctx, o.store, o.key, revision)
	if err != nil || len(found.Versions) == 0 {
		return nil, err
	}
	return o.restorable(found.Versions[0])
}

// named returns the version with the revision --to.
func (r *rollback) named(ctx context.Context, o origin, h report.History) (v report.Version, err error) {
	found, _, err := r.past.Versions(ctx, o.store, o.key, r.to)
	if err != nil {
		return v, err
	}
	for _, one := range found.Versions {
		if v.Revision != "" && v.Revision != one.Revision {
			return v, &ExitError{exitFailed, fmt.Errorf("--to %s is the beginning of several revisions of %s: write more of %s or %s", r.to, display(o.key), v.Revision, one.Revision)}
		}
		v = one
	}
	if v.Revision != "" {
		return v, nil
	}
	text := fmt.Sprintf("%s has no revision %s in the history of control plane %s, which begins at %s", display(o.key), r.to, o.control, clock(h.Begins))
	if others, _, err := r.past.Versions(ctx, o.store, model.Key{}, r.to); err == nil && len(others.Versions) > 0 {
		of := others.Versions[0].Ref
		return v, &ExitError{exitFailed, fmt.Errorf("%s: it is one of %s", text, display(model.Key{Kind: model.Kind(of.Kind), Namespace: of.Namespace, Name: of.Name}))}
	}
	for _, oldest := range h.Versions {
		if oldest.Revision != "" && h.Omitted == 0 {
			return v, &ExitError{exitFailed, fmt.Errorf("%s: the oldest there is %s of %s", text, oldest.Revision, clock(oldest.At))}
		}
	}
	return v, &ExitError{exitFailed, fmt.Errorf("%s: outrigger history lists them", text)}
}

// standing is what a store has of an object.
type standing struct {
	object *model.Config // nil if there is none
	// fault is what is wrong with its text, with the place; then object, if there is one, is not what is
	// stored, but the last good version.
	fault string
	// unnamed is what is wrong with files, and may hide the object.
	unnamed []model.Problem
}

// standingOf returns what a store has of an object.
func standingOf(s config.Reader, key model.Key) standing {
	there := standing{object: s.Get(key)}
	for _, p := range s.Problems() {
		if p.Object == key && !p.Warning && (there.object == nil || fileOf(p.Source) == fileOf(there.object.Source)) {
			there.fault = p.String()
		}
		if p.Object.Name == "" && !p.Warning {
			there.unnamed = append(there.unnamed, p)
		}
	}
	return there
}

// has reports whether the content of an object is stored.
func (t standing) has(c *model.Config) bool {
	return t.object != nil && t.fault == "" && config.SameContent(t.object, c)
}

// replace writes an object. It fails if what is stored has changed since it was read, except for its
// status.
func (t standing) replace(ctx context.Context, s config.ReadWriter, next *model.Config) error {
	if t.object == nil {
		_, err := s.Create(ctx, next)
		if t.fault == "" || !errors.Is(err, config.ErrExists) {
			return err
		}
	}
	for {
		if t.object != nil && t.fault == "" {
			next.ResourceVersion = t.object.ResourceVersion
		}
		_, err := s.Update(ctx, next)
		now := s.Get(next.Key)
		if !errors.Is(err, config.ErrConflict) || now == nil || t.object == nil || !config.SameContent(now, t.object) || now.ResourceVersion == next.ResourceVersion {
			return err
		}
		t.object = now
	}
}
