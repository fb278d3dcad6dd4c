// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// kubectlAnnotation contains the last applied configuration of an object in a cluster. It has no
// meaning elsewhere.
const kubectlAnnotation = "kubectl.kubernetes.io/last-applied-configuration"

// migration copies the objects of one store to another.
type migration struct {
	flags     storeFlags
	from, to  string
	overwrite bool
	dryRun    bool
}

func newMigrateCommand(cfg Config) *cobra.Command {
	m := migration{flags: storeFlags{cfg: cfg}}
	cmd := &cobra.Command{
		Use:   "migrate --from URL --to URL",
		Short: "Copy a mesh's configuration to another store",
		Long: "Copy all objects of all namespaces from one config store to another. Objects that\n" +
			"are the same there already stay; different ones are an error unless --overwrite is\n" +
			"given. Nothing is deleted anywhere, so it can be repeated. Status is not copied: the\n" +
			"control plane of the new store writes its own.",
		Example: "  outrigger migrate --from k8s:// --to etcd://127.0.0.1:2379/outrigger --dry-run\n" +
			"  outrigger migrate --from fs:///etc/mesh --to k8s:///home/me/.kube/config",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if m.from == "" || m.to == "" {
				return &ExitError{exitUsage, errors.New("name both stores: --from URL and --to URL")}
			}
			return m.flags.withStore(cmd, m.from, nil, func(_ context.Context, from config.ReadWriter) error {
				return m.flags.withStore(cmd, m.to, nil, func(ctx context.Context, to config.ReadWriter) error { return m.copy(ctx, cmd, from, to) })
			})
		},
	}
	cmd.Flags().StringVar(&m.from, "from", "", "URL of the store to read")
	cmd.Flags().StringVar(&m.to, "to", "", "URL of the store to write")
	cmd.Flags().BoolVar(&m.overwrite, "overwrite", false, "replace objects that are different in the new store")
	cmd.Flags().BoolVar(&m.dryRun, "dry-run", false, "only print what would be done")
	cmd.Flags().DurationVar(&m.flags.timeout, "timeout", defaultTimeout, "timeout of reading each store")
	return cmd
}

func (m *migration) copy(ctx context.Context, cmd *cobra.Command, from config.Reader, to config.ReadWriter) error {
	r := &outcome{out: cmd.ErrOrStderr()}
	counts := map[string]int{}
	all := 0
	for _, sch := range from.Schemas() {
		all += len(from.List(sch.Kind, ""))
	}
	for _, sch := range from.Schemas() {
		for _, c := range from.List(sch.Kind, "") {
			if err := r.interrupted(ctx, all); err != nil {
				return err
			}
			what, err := m.one(ctx, to, c)
			if err != nil {
				r.fail("%s: %v", display(c.Key), err)
				continue
			}
			r.done++
			counts[what]++
			if what != "unchanged" {
				say(cmd, "%s %s\n", display(c.Key), what)
			}
		}
	}
	for _, p := range from.Problems() {
		if !p.Warning {
			r.fail("not copied: %s", p)
		}
	}
	verb := "copied"
	if m.dryRun {
		verb = "would be copied"
	}
	say(cmd, "%s %s (%d new, %d replaced), %d unchanged\n", count(counts["created"]+counts["replaced"], "object"), verb, counts["created"], counts["replaced"], counts["unchanged"])
	return r.err()
}

// one copies one object and returns a description of the action.
func (m *migration) one(ctx context.Context, to config.ReadWriter, c *model.Config) (string, error) {
	next := c.Clone()
	next.ResourceVersion, next.UID, next.Generation, next.Status = "", "", 0, nil
	delete(next.Annotations, kubectlAnnotation)
	old := to.Get(c.Key)
	switch {
	case old == nil:
		if !m.dryRun {
			_, err := to.Create(ctx, next)
			return "created", err
		}
		return "created", nil
	case config.SameContent(withoutKubectl(old), next):
		return "unchanged", nil
	case !m.overwrite:
		return "", errors.New("it already exists and differs: compare them, or set --overwrite")
	case m.dryRun:
		return "replaced", nil
	}
	_, err := to.Update(ctx, next)
	return "replaced", err
}

func withoutKubectl(c *model.Config) *model.Config {
	out := c.Clone()
	delete(out.Annotations, kubectlAnnotation)
	return out
}

// display returns the name of an object as users write it: kind/name.
func display(key model.Key) string {
	sch, ok := schema.Of(key.Kind)
	if !ok {
		return key.String()
	}
	if key.Namespace == "" || key.Namespace == schema.DefaultNamespace {
		return short(sch, key)
	}
	return short(sch, key) + " in " + key.Namespace
}

// short is like display without the namespace, in command line syntax.
func short(sch schema.Schema, key model.Key) string {
	name := strings.ToLower(sch.Name)
	if string(sch.Kind) != sch.Name {
		name = sch.Plural + "." + sch.Group
	}
	return name + "/" + key.Name
}
