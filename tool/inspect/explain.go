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
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// explainFlags are the flags of explain.
type explainFlags struct {
	askFlags
	watchFlags
	namespace, at string
}

// errOlder is the error of an answer about the present to a question about the past.
var errOlder = errors.New("it is older than this tool, and does not explain the past: upgrade it")

func newExplainCommand(cfg Config) *cobra.Command {
	f := explainFlags{askFlags: askFlags{cfg: cfg}}
	cmd := &cobra.Command{
		Use:   "explain (KIND/NAME[.NAMESPACE] | KIND NAME | PROXY | CODE)",
		Short: "Print why: of an object, a proxy, a request, or a code of analyze",
		Long: `Of an object: which resources of Envoy it has a part in, which proxies have
acknowledged its last change, which have not yet, which rejected it and with the
words of Envoy or the agent, and what is known to be wrong with it, since when.

Of a proxy, as name.namespace: the objects that decide what it has, what is wrong
with them, and what it or another proxy of its kind rejected.

Of a code of outrigger analyze, as IST0101: when it is reported, with an example and
its correction.

KIND is as in outrigger get, and service for those of a cluster.

With --watch, print an object or a proxy again when it changes, as while proxies
acknowledge a change.

With --at, print what an object, or the mesh config (mesh), was then, and which
resources of the proxies that are connected now it would have had a part in; or which
objects would have decided what a proxy has. The control plane computes it from its
history, see outrigger history: which proxies were connected then, what they
acknowledged or rejected, and objects that were never valid are not recorded.

The exit code is 0; 1 if the object does not exist, has an error, lacks a credential or
is rejected by a proxy, or if the proxy rejects something or has an object with an
error; 2 for a wrong command line.`,
		Example: "  outrigger explain vs/catalog.shop\n  outrigger explain virtualservice catalog -n shop\n  outrigger explain catalog-1.shop\n" +
			"  outrigger explain dr/catalog -n shop -o yaml\n  outrigger explain vs/catalog.shop --at 14:02\n" +
			"  outrigger explain IST0101\n  outrigger explain request --from frontend --to catalog",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return cfg.Exit(exitUsage, errors.New("no object is named: write one, as in vs/catalog.shop or vs catalog -n shop, a proxy, as in catalog-1.shop, or a code, as in IST0101"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			fields := url.Values{}
			if f.at != "" {
				at, err := moment(f.at, time.Now())
				if err != nil {
					return cfg.Exit(exitUsage, err)
				}
				fields.Set("at", at.Format(time.RFC3339Nano))
			}
			if e, ok := analyze.Explain(strings.ToUpper(args[0])); ok && len(args) == 1 {
				if f.at != "" || f.watch {
					return cfg.Exit(exitUsage, fmt.Errorf("--at and --watch are for objects and proxies: the code %s does not change", e.Code))
				}
				return f.explainCode(cmd, e)
			} else if len(args) == 1 && likeCode.MatchString(args[0]) {
				return cfg.Exit(exitUsage, fmt.Errorf("no check has the code %s: outrigger analyze -L lists the codes", args[0]))
			}
			if f.watch && f.at != "" {
				return cfg.Exit(exitUsage, errors.New("--watch prints what changes, and the past does not: leave out --at"))
			}
			meshThen := f.at != "" && len(args) == 1 && args[0] == report.MeshName
			if len(args) == 1 && !strings.Contains(args[0], "/") && !meshThen {
				return f.show(cmd, f.watchFlags, func(ctx context.Context, w *watcher) (frame, error) {
					return f.explainProxy(ctx, cmd, w, args[0], fields)
				})
			}
			refs := []report.Ref{{Kind: string(model.MeshConfigKind), Name: report.MeshName}}
			if !meshThen {
				var err error
				if refs, err = candidates(args, f.namespace); err != nil {
					return cfg.Exit(exitUsage, err)
				}
			}
			return f.show(cmd, f.watchFlags, func(ctx context.Context, w *watcher) (frame, error) {
				return f.explainObject(ctx, cmd, w, refs, fields)
			})
		},
	}
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of the object (default \"default\") or of the proxy")
	cmd.Flags().StringVar(&f.at, "at", "", "explain what it was at this time: a duration (2h), a time of the day (14:02) or a date and time (2006-01-02T15:04)")
	f.add(cmd)
	f.addWatch(cmd)
	f.complete(cmd, completeObject(&f.askFlags, presentObject))
	cmd.AddCommand(newExplainRequestCommand(cfg))
	return cmd
}

// likeCode is what a code of outrigger analyze looks like.
var likeCode = regexp.MustCompile(`^(?i:IST|OUT)[0-9]+$`)

func (f *askFlags) explainCode(cmd *cobra.Command, e analyze.Explanation) error {
	if !f.forReaders() {
		return f.write(cmd.OutOrStdout(), e)
	}
	_, err := io.WriteString(columns.Raw(cmd.OutOrStdout()), e.Page(f.width()))
	return err
}

// candidates returns the objects that the arguments may refer to, the most likely first. It is
// ambiguous because names may contain dots.
func candidates(args []string, namespace string) ([]report.Ref, error) {
	kind, name := args[0], ""
	if len(args) == 2 {
		name = args[1]
	} else {
		kind, name, _ = strings.Cut(args[0], "/")
	}
	ref, cluster := report.Ref{Name: name}, false
	if sch, ok := schema.Named(kind); ok {
		ref.Kind, cluster = string(sch.Kind), sch.Cluster
	} else if isService(kind) {
		ref.Kind = string(model.KubernetesService)
	} else {
		return nil, fmt.Errorf("kind %q is unknown: outrigger get without arguments lists the kinds, in addition to service", kind)
	}
	if name == "" {
		return nil, errors.New("the name of the object is missing: write it as in vs/catalog.shop")
	}
	if cluster {
		return []report.Ref{ref}, nil
	}
	ref.Namespace = cmp.Or(namespace, schema.DefaultNamespace)
	out := []report.Ref{ref}
	if i := strings.LastIndex(name, "."); namespace == "" && i > 0 && i < len(name)-1 {
		out = []report.Ref{{Kind: ref.Kind, Namespace: name[i+1:], Name: name[:i]}, ref}
	}
	return out, nil
}

// isService reports whether an argument names the services of clusters.
func isService(kind string) bool {
	return slices.Contains([]string{"service", "services", "svc"}, strings.ToLower(kind))
}

// explainObject returns what became of the first one of some objects that exists.
func (f *explainFlags) explainObject(ctx context.Context, cmd *cobra.Command, w *watcher, refs []report.Ref, fields url.Values) (next frame, err error) {
	addresses, err := f.addresses()
	if err != nil {
		return next, err
	}
	var answers []answer[report.Object]
	var first, found *report.Object
	for _, ref := range refs {
		for name, value := range map[string]string{"kind": ref.Kind, "namespace": ref.Namespace, "name": ref.Name} {
			fields.Set(name, value)
		}
		answers = ask[report.Object](ctx, addresses, question{path: "explain", fields: fields}, f.timeout)
		var all []report.Object
		for i, a := range answers {
			if a.err == nil && f.at != "" && a.value.Then == nil {
				answers[i].err = errOlder
			} else if a.err == nil {
				all = append(all, a.value)
			}
		}
		if len(all) == 0 {
			break // the other candidates would fail, too
		}
		merged := report.Merge(all)
		if first == nil {
			first = &merged
		}
		if merged.Found || len(merged.Problems) > 0 || merged.Then != nil && merged.Then.Next != nil {
			found = &merged
			break
		}
	}
	shown := cmp.Or(found, first)
	if shown == nil {
		return next, nobody(&f.askFlags, cmd, w, answers)
	}
	if next, err = f.frameOf(shown, func(v view) error { return v.object(*shown) }); err != nil {
		return next, err
	}
	next.failed = found == nil || found.Then != nil && !found.Found || notInForce(*shown)
	missing(&next, w, answers)
	return next, nil
}

// explainProxy returns what decides what a proxy has.
func (f *explainFlags) explainProxy(ctx context.Context, cmd *cobra.Command, w *watcher, name string, fields url.Values) (next frame, err error) {
	addresses, err := f.addresses()
	if err != nil {
		return next, err
	}
	if f.namespace != "" && !strings.HasSuffix(name, "."+f.namespace) {
		name += "." + f.namespace
	}
	answers := ask[report.Replica](ctx, addresses, question{path: "proxies"}, f.timeout)
	if !slices.ContainsFunc(answers, func(a answer[report.Replica]) bool { return a.err == nil }) {
		return next, nobody(&f.askFlags, cmd, w, answers)
	}
	if err := pick(answers, name); err != nil {
		if f.at != "" {
			err = fmt.Errorf("%w; others have no past", err)
		}
		if w == nil || !w.begun {
			complain(cmd.ErrOrStderr(), answers)
		}
		return next, f.cfg.Exit(exitFailed, fmt.Errorf("%w (for an object, also write the kind: vs/%s)", err, name))
	}
	var where []string
	for _, a := range answers {
		if len(a.value.Proxies) > 0 {
			where, name = append(where, a.address), a.value.Proxies[0].Name
		}
	}
	fields.Set("proxyID", name)
	decided := ask[report.Decided](ctx, where, question{path: "explain", fields: fields}, f.timeout)
	var all []report.Decided
	for i, d := range decided {
		if d.err == nil && f.at != "" && d.value.Then == nil {
			decided[i].err = errOlder
		} else if d.err == nil {
			all = append(all, d.value)
		}
	}
	if len(all) == 0 {
		return next, nobody(&f.askFlags, cmd, w, decided)
	}
	next, err = f.frameOf(all, func(v view) (err error) {
		for _, d := range all {
			if d.Then != nil {
				err = v.decidedThen(d)
			} else if err = v.proxy(d.Proxy); err == nil {
				err = v.decided(d)
			}
		}
		return err
	})
	next.failed = slices.ContainsFunc(all, func(d report.Decided) bool { return refusing(d.Proxy) || wrong(d.Problems) })
	missing(&next, w, answers)
	missing(&next, w, decided)
	return next, err
}

// named returns the name of an object in command line syntax.
func named(r report.Ref) string {
	if isMesh(r) {
		return r.Name
	}
	if r.Namespace == "" {
		return kindNamed(r.Kind) + "/" + r.Name
	}
	return kindNamed(r.Kind) + "/" + r.Name + "." + r.Namespace
}

// isMesh reports whether a reference names the mesh config or the networks, which are in no store.
func isMesh(r report.Ref) bool {
	return r.Kind == string(model.MeshConfigKind) && (r.Name == report.MeshName || r.Name == report.NetworksName)
}

// kindNamed returns the name of a kind in command line syntax, with its group if the name alone
// refers to another kind.
func kindNamed(kind string) string {
	sch, ok := schema.Of(model.Kind(kind))
	if !ok {
		return strings.ToLower(kind)
	}
	name := strings.ToLower(sch.Name)
	if first, ok := schema.Named(name); ok && first.Kind == sch.Kind {
		return name
	}
	return name + "." + sch.Group
}

// listing returns the command that lists the objects of a kind. Kubernetes services are not in a
// config store; in a mesh without a cluster, services are ServiceEntries.
func listing(kind string) string {
	if model.Kind(kind) == model.KubernetesService {
		return "kubectl get services -A (or, without Kubernetes, outrigger get serviceentries -A)"
	}
	return "outrigger get " + kindNamed(kind) + " -A"
}

// titled returns the name of an object for use in a sentence.
func titled(r report.Ref) string {
	if isMesh(r) {
		return "Mesh config"
	}
	title := r.Kind
	if sch, ok := schema.Of(model.Kind(r.Kind)); ok && sch.Name != r.Kind {
		title = sch.Name + " (" + sch.Group + ")"
	}
	if title += " " + r.Name; r.Namespace != "" {
		title += " in namespace " + r.Namespace
	}
	return title
}
