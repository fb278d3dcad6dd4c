// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// completionTimeout is how long a shell waits for the store.
const completionTimeout = 2 * time.Second

// complete completes the arguments of a command, which are KIND NAME... or KIND/NAME..., and the
// namespace. A completion has no place for errors.
func (f *storeFlags) complete(cmd *cobra.Command, pick *picker) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, beginning string) ([]string, cobra.ShellCompDirective) {
		kind, name, slash := strings.Cut(beginning, "/")
		switch {
		case slash:
			var out []string
			for _, one := range f.stored(cmd, kind, name, pick, nameOf) {
				out = append(out, kind+"/"+one)
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		case len(args) > 0 && !strings.Contains(args[0], "/"):
			return f.stored(cmd, args[0], beginning, pick, nameOf), cobra.ShellCompDirectiveNoFileComp
		}
		var kinds []string
		for _, s := range schema.All() {
			for _, name := range []string{s.Short, strings.ToLower(s.Name)} {
				if of, ok := schema.Named(name); ok && of.Kind == s.Kind && strings.HasPrefix(name, beginning) {
					kinds = append(kinds, name)
				}
			}
		}
		slices.Sort(kinds)
		return kinds, cobra.ShellCompDirectiveNoFileComp
	}
	err := cmd.RegisterFlagCompletionFunc("namespace", func(cmd *cobra.Command, args []string, beginning string) ([]string, cobra.ShellCompDirective) {
		kind := "all"
		if len(args) > 0 {
			kind, _, _ = strings.Cut(args[0], "/")
		}
		everywhere := *pick
		everywhere.all = true
		return f.stored(cmd, kind, beginning, &everywhere, func(c *model.Config) string { return c.Namespace }), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag exists, and has no other completion
	}
}

func nameOf(c *model.Config) string { return c.Name }

// stored returns a text of each stored object of a kind that begins with another text.
func (f *storeFlags) stored(cmd *cobra.Command, kind, beginning string, pick *picker, text func(*model.Config) string) (out []string) {
	schemas, err := kinds(kind)
	if err != nil {
		return nil
	}
	of := make([]model.Kind, len(schemas))
	for i, s := range schemas {
		of[i] = s.Kind
	}
	from := *pick
	if namespace, err := cmd.Flags().GetString("namespace"); err == nil {
		from.namespace = namespace
	}
	f.timeout = completionTimeout
	err = f.with(cmd, of, func(_ context.Context, s config.ReadWriter) error {
		for _, sch := range schemas {
			for _, c := range s.List(sch.Kind, from.where(sch)) {
				if one := text(c); one != "" && strings.HasPrefix(one, beginning) {
					out = append(out, one)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil
	}
	slices.Sort(out)
	return slices.Compact(out)
}
