// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/internal/output"
)

// revisionWidth is the number of digits of a revision in a table. A beginning is enough to name one.
const revisionWidth = 8

// historyFlags are the flags of history.
type historyFlags struct {
	askFlags
	watchFlags
	namespace, since, revision string
}

func newHistoryCommand(cfg Config) *cobra.Command {
	f := historyFlags{askFlags: askFlags{cfg: cfg}}
	cmd := &cobra.Command{
		Use:   "history [KIND/NAME[.NAMESPACE] | KIND NAME | service | mesh]",
		Short: "Print which objects and services changed, and when",
		Long: `Print the versions of all objects, or of one, that the control plane has used, with
the newest one last. A version with the same content has the same revision.

With service, print those of all services of clusters, with the number of addresses
that receive requests. Frequent changes of one service are recorded each 30 s.

With mesh, print those of the mesh config in force, with all its defaults, and of the
networks (meshNetworks). Secrets in them are not kept.

A control plane keeps 64 MiB of versions of objects, and 64 MiB of services, beside
its state directory, also over a restart. A change that it found at its start, or
after its disk was full, is marked with *.

With --watch, print the versions that follow as they come, until Ctrl-C.

To compare two moments, use outrigger diff --from TIME; to restore a version,
outrigger rollback.`,
		Example: "  outrigger history --since 2h\n  outrigger history --watch\n  outrigger history vs/catalog.shop\n" +
			"  outrigger history service --since 14:00\n  outrigger history svc/catalog.shop\n" +
			"  outrigger history vs/catalog.shop --revision 1f3a\n  outrigger history mesh\n" +
			"  outrigger history --since 14:00 -o json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 2 {
				return cfg.Exit(exitUsage, errors.New("one object can be named, as in vs/catalog.shop or vs catalog -n shop"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "only objects in this namespace")
	cmd.Flags().StringVar(&f.since, "since", "", "only versions since then: a duration (2h), a time of the day (14:02) or a date and time (2006-01-02T15:04)")
	cmd.Flags().StringVar(&f.revision, "revision", "", "print the objects with this revision, or with one that begins like this")
	f.add(cmd)
	f.addWatch(cmd)
	f.complete(cmd, completeObject(&f.askFlags, recordedObject))
	completeFlag(cmd, "revision", completeRevision(&f.askFlags))
	completeFlag(cmd, "since", completeMoment(&f.askFlags))
	return cmd
}

func (f *historyFlags) run(cmd *cobra.Command, args []string) error {
	fields := url.Values{"namespace": {f.namespace}, "revision": {f.revision}}
	refs := []report.Ref{{Namespace: f.namespace}}
	if len(args) == 1 && isService(args[0]) {
		refs[0].Kind = string(model.KubernetesService)
	} else if len(args) == 1 && args[0] == report.MeshName {
		refs = []report.Ref{{Kind: string(model.MeshConfigKind)}}
	} else if len(args) > 0 {
		var err error
		if refs, err = candidates(args, f.namespace); err != nil {
			return f.cfg.Exit(exitUsage, err)
		}
	}
	if f.since != "" {
		since, err := moment(f.since, time.Now())
		if err != nil {
			return f.cfg.Exit(exitUsage, err)
		}
		fields.Set("since", since.Format(time.RFC3339Nano))
	}
	if err := f.checkInterval(); err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	if f.watch {
		return f.follow(cmd, refs, fields)
	}
	h, err := f.versions(cmd.Context(), refs, fields)
	if err != nil {
		return err
	}
	v := view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}
	switch {
	case !f.forReaders():
		return f.write(cmd.OutOrStdout(), h)
	case f.revision != "":
		return v.versions(h)
	case len(h.Versions) == 0 && len(args) > 0 && f.since == "":
		v.say("No version of %s is known: check its name and namespace.\n", oneLine(strings.Join(args, " ")))
		v.say("The history begins at %s.\n", v.clock(h.Begins))
		return nil
	}
	return v.history(h)
}

// versions returns the versions of the first object that has some.
func (f *historyFlags) versions(ctx context.Context, refs []report.Ref, fields url.Values) (h report.History, err error) {
	for _, ref := range refs {
		if h, err = f.history(ctx, ref, fields); err != nil {
			return h, f.cfg.Exit(exitFailed, err)
		}
		if len(h.Versions) > 0 {
			break
		}
	}
	return h, nil
}

// follow prints versions, and then those that are new.
func (f *historyFlags) follow(cmd *cobra.Command, refs []report.Ref, fields url.Values) error {
	w := newWatcher(cmd, &f.askFlags, f.watchFlags, true)
	var before report.History
	return w.run(cmd.Context(), func(ctx context.Context) (frame, error) {
		if n := len(before.Versions); n > 0 {
			fields.Set("since", before.Versions[n-1].At.Format(time.RFC3339Nano))
		}
		h, err := f.versions(ctx, refs, fields)
		if err != nil {
			return frame{}, err
		}
		all, known := h, len(before.Versions)
		h.Versions = slices.DeleteFunc(slices.Clone(h.Versions), func(one report.Version) bool {
			return slices.ContainsFunc(before.Versions, func(b report.Version) bool {
				return b.Ref == one.Ref && b.At.Equal(one.At) && b.Revision == one.Revision
			})
		})
		next := frame{same: w.last.same, page: func(v view) error {
			if !f.forReaders() {
				return f.write(v.out, h)
			}
			return v.history(h)
		}}
		if len(h.Versions) == 0 {
			return next, nil
		}
		if len(h.Versions) < len(all.Versions) {
			h.Omitted = 0 // they were printed
		}
		next.same = all.Versions[len(all.Versions)-1].At.String() + h.Versions[len(h.Versions)-1].Revision + strconv.Itoa(len(all.Versions))
		// What stays are the versions that align the next ones, and those that the next answer repeats.
		shown := slices.Concat(before.Versions, h.Versions)
		before = report.History{Versions: shown[max(0, len(shown)-maxAligned-len(h.Versions)):]}
		if f.forReaders() && known > 0 {
			next.changes = func(v view) error {
				rows, last := v.historyRows(shown)
				lines, _, _ := v.lines(rows, last)
				if h.Omitted > 0 {
					v.say("%s before; choose with --since.\n", count(h.Omitted, "older version", "older versions"))
				}
				_, err := io.WriteString(v.out, strings.Join(lines[len(lines)-len(h.Versions):], ""))
				return err
			}
		}
		return next, nil
	})
}

// maxAligned is how many versions decide about the columns of those that follow.
const maxAligned = 20

// history returns the versions that a control plane knows; of several ones, the one whose history
// reaches back farthest.
func (f *askFlags) history(ctx context.Context, ref report.Ref, fields url.Values) (h report.History, err error) {
	h, _, err = f.historyFrom(ctx, ref, fields)
	return h, err
}

// historyFrom is history with the address of the control plane.
func (f *askFlags) historyFrom(ctx context.Context, ref report.Ref, fields url.Values) (h report.History, control string, err error) {
	for name, value := range map[string]string{"kind": ref.Kind, "namespace": ref.Namespace, "name": ref.Name} {
		fields.Set(name, value)
	}
	return askPast(ctx, f, "history", fields, func(h report.History) time.Time { return h.Begins })
}

// askPast asks all control planes, and returns the answer with the earliest time, and its address.
func askPast[T any](ctx context.Context, f *askFlags, path string, fields url.Values, begins func(T) time.Time) (best T, control string, err error) {
	addresses, err := f.addresses()
	if err != nil {
		return best, "", err
	}
	for _, a := range ask[T](ctx, addresses, question{path: path, fields: fields, memory: f.memory}, f.timeout) {
		switch said := (*answerError)(nil); {
		case errors.As(a.err, &said):
			err = errors.New(said.text)
		case a.err != nil:
			err = cmp.Or(err, noAnswer(a.address, a.err))
		case control == "" || begins(a.value).Before(begins(best)):
			best, control = a.value, a.address
		}
	}
	if control != "" {
		err = nil
	}
	return best, control, err
}

// history prints versions as a table.
func (v view) history(h report.History) error {
	shown, left := h.Versions, 0
	if most := 20; !v.flags.all && len(shown) > most { // the newest ones count
		left = len(shown) - most
		shown = shown[left:]
	}
	rows, last := v.historyRows(shown)
	if len(shown) == 0 {
		v.say("Nothing has changed since then.\n")
	} else if _, err := v.columns(rows, last); err != nil {
		return err
	}
	if left += h.Omitted; left > 0 {
		v.say("%s before; choose with --since, or show up to 1000 with --all.\n", count(left, "older version", "older versions"))
	}
	v.say("The history begins at %s.\n", v.clock(h.Begins))
	if h.Damaged > 0 {
		v.say("%s cannot be read: versions may be missing.\n", count(h.Damaged, "damaged line of its files", "damaged lines of its files"))
	}
	if !h.Stopped.IsZero() {
		v.say("Nothing is recorded since %s: %s.\n", v.clock(h.Stopped), oneLine(h.Reason))
	}
	return nil
}

// historyRows returns the header and the rows of versions, and the column to shorten.
func (v view) historyRows(versions []report.Version) (rows [][]string, last string) {
	dir, _ := os.Getwd() // without it, sources are not shortened
	last = "SOURCE"
	if len(versions) > 0 && versions[0].Kind == string(model.KubernetesService) {
		last = "ADDRESSES"
	}
	rows = [][]string{{"TIME", "OBJECT", "CHANGE", "REVISION", last}}
	for _, one := range versions {
		change, source := one.Change, strings.TrimPrefix(one.Source, dir+string(filepath.Separator))
		if one.Endpoints != nil {
			source = strconv.Itoa(*one.Endpoints)
		}
		if one.Unseen {
			change += "*"
		}
		rows = append(rows, []string{
			v.clock(one.At), briefly(one.Ref), change, one.Revision[:min(revisionWidth, len(one.Revision))], source,
		})
	}
	return rows, last
}

// briefly returns the name of an object with the short name of its kind.
func briefly(r report.Ref) string {
	if sch, ok := schema.Of(model.Kind(r.Kind)); ok && sch.Short != "" {
		return strings.TrimSuffix(sch.Short+"/"+r.Name+"."+r.Namespace, ".")
	}
	return named(r)
}

// versions prints the objects of versions as YAML documents.
func (v view) versions(h report.History) error {
	seen := map[string]bool{}
	for _, one := range h.Versions {
		id := named(one.Ref) + " " + one.Revision
		if seen[id] || one.Object == nil {
			continue
		}
		seen[id] = true
		text, err := yaml.JSONToYAML(one.Object)
		if err != nil {
			return err
		}
		v.say("# %s, revision %s, %s at %s\n", named(one.Ref), one.Revision, one.Change, v.clock(one.At))
		_, _ = fmt.Fprintf(columns.Raw(v.out), "%s---\n", text) // the terminal may be closed
	}
	if len(seen) == 0 {
		return v.flags.cfg.Exit(exitFailed, errors.New("there is no such revision: outrigger history lists them"))
	}
	return nil
}

// clock formats a time of the past: today's without the date.
func (v view) clock(at time.Time) string { return output.Clock(at, v.now) }

// moment reads a time of the past as operators write it: a duration before now, a time of the last 24
// hours, a date and time, or now.
func moment(text string, now time.Time) (time.Time, error) {
	if text == "now" {
		return now, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04"} {
		at, err := time.ParseInLocation(layout, text, now.Location())
		if err == nil && at.After(now) {
			return time.Time{}, fmt.Errorf("%q is in the future: by the clock of this machine it is %s", text, now.Format(time.RFC3339))
		} else if err == nil {
			return at, nil
		}
	}
	for _, layout := range []string{time.TimeOnly, "15:04"} {
		at, err := time.ParseInLocation(layout, text, now.Location())
		if err != nil {
			continue
		}
		at = time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), at.Second(), 0, now.Location())
		if at.After(now) {
			at = at.AddDate(0, 0, -1)
		}
		return at, nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time: write a duration (2h), a time of the day (14:02), a date and time (2006-01-02T15:04) or now", text)
}
