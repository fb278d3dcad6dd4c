// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/output"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Past answers a command of another package about versions of objects.
type Past struct {
	flags askFlags
	cmd   *cobra.Command
}

// PastOf returns what answers a command, and adds the flags that name control planes to it.
func PastOf(cfg Config, cmd *cobra.Command) *Past {
	p := &Past{askFlags{cfg: cfg, output: outTable}, cmd}
	p.flags.addNamed(cmd)
	return p
}

// of names the control plane of the running mesh that uses the store at a URL, unless the user has named
// one. The timeout is that of the command.
func (p *Past) of(store string) (err error) {
	if p.flags.timeout, err = p.cmd.Flags().GetDuration("timeout"); err != nil {
		return err
	}
	if store == "" || len(p.flags.controls) > 0 {
		return nil
	}
	control, err := mesh.RunningControl(os.TempDir(), store)
	if control != "" {
		p.flags.controls = []string{control}
	}
	return err
}

// Changes returns the objects that differ between two moments, which are written like those of
// outrigger history, and the address of the control plane that knows them.
func (p *Past) Changes(ctx context.Context, store, from, to string) (c report.Changes, control string, err error) {
	now := time.Now()
	begin, err := moment(from, now)
	if err != nil {
		return c, "", p.flags.cfg.Exit(exitUsage, err)
	}
	end, err := moment(cmp.Or(to, "now"), now)
	if err != nil {
		return c, "", p.flags.cfg.Exit(exitUsage, err)
	}
	if begin.After(end) {
		return c, "", p.flags.cfg.Exit(exitUsage, fmt.Errorf("--from %s is after --to %s: write the earlier time first", output.Clock(begin, now), output.Clock(end, now)))
	}
	if err := p.of(store); err != nil {
		return c, "", err
	}
	c, control, err = askPast(ctx, &p.flags, "changes", url.Values{"from": {begin.Format(time.RFC3339Nano)}, "to": {end.Format(time.RFC3339Nano)}},
		func(c report.Changes) time.Time { return c.From })
	c.Replica = oneLine(c.Replica)
	return c, control, err
}

// Versions returns the versions of an object, with the objects if revision is not empty, and the address
// of the control plane that knows them. Later calls ask the same one.
func (p *Past) Versions(ctx context.Context, store string, key model.Key, revision string) (h report.History, control string, err error) {
	if err := p.of(store); err != nil {
		return h, "", err
	}
	h, control, err = p.flags.historyFrom(ctx, report.Ref{Kind: string(key.Kind), Namespace: key.Namespace, Name: key.Name}, url.Values{"revision": {revision}})
	if err != nil {
		return h, "", err
	}
	p.flags.controls = []string{control}
	h.Replica = oneLine(h.Replica)
	for i := range h.Versions {
		h.Versions[i].Source = oneLine(h.Versions[i].Source)
	}
	return h, control, nil
}

// Complete adds the completion of a command from the history of its control plane: of the moments --from
// and --to, or of the revision --to and the object.
func (p *Past) Complete() {
	ask := func(of completed) completed {
		return func(cmd *cobra.Command, args []string, beginning string) ([]string, cobra.ShellCompDirective) {
			if store, err := cmd.Flags().GetString("store"); err != nil || p.of(store) != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return of(cmd, args, beginning)
		}
	}
	if p.cmd.Flags().Lookup("from") != nil {
		completeFlag(p.cmd, "from", ask(completeMoment(&p.flags)))
		completeFlag(p.cmd, "to", ask(completeMoment(&p.flags)))
		return
	}
	completeFlag(p.cmd, "to", ask(completeRevision(&p.flags)))
	completeFlag(p.cmd, "namespace", ask(func(cmd *cobra.Command, _ []string, beginning string) (names []string, _ cobra.ShellCompDirective) {
		for _, v := range p.flags.recorded(cmd, report.Ref{}) {
			names = append(names, oneLine(v.Namespace))
		}
		return beginningWith(beginning, slices.DeleteFunc(names, func(s string) bool { return s == "" })), cobra.ShellCompDirectiveNoFileComp
	}))
	p.cmd.ValidArgsFunction = ask(completeObject(&p.flags, pastObject))
}
