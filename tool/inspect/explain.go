// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

func newExplainCommand(cfg Config) *cobra.Command {
	f, namespace := askFlags{cfg: cfg}, ""
	cmd := &cobra.Command{
		Use:   "explain (KIND/NAME[.NAMESPACE] | KIND NAME | PROXY)",
		Short: "Print what became of an object, or what decides what a proxy has",
		Long: `Of an object: which resources of Envoy it has a part in, which proxies have
acknowledged its last change, which have not yet, which rejected it and with
Envoy's words, and what is known to be wrong with it, since when.

Of a proxy, as name.namespace: the objects that decide what it has, what is wrong
with them, and what it or another proxy of its kind rejected.

KIND is as in outrigger get, and service for those of a cluster.`,
		Example: "  outrigger explain vs/catalog.shop\n  outrigger explain virtualservice catalog -n shop\n  outrigger explain catalog-1.shop\n" +
			"  outrigger explain dr/catalog -n shop -o yaml\n  outrigger explain request --from frontend --to catalog",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return cfg.Exit(exitUsage, errors.New("what? name an object, as in vs/catalog.shop or vs catalog -n shop, or a proxy, as in catalog-1.shop"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && !strings.Contains(args[0], "/") {
				return f.explainProxy(cmd, args[0], namespace)
			}
			return f.explainObject(cmd, args, namespace)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the object (default \"default\") or of the proxy")
	f.add(cmd, outTable, outYAML, outJSON)
	cmd.AddCommand(newExplainRequestCommand(cfg))
	return cmd
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
	} else if slices.Contains([]string{"service", "services", "svc"}, strings.ToLower(kind)) {
		ref.Kind = string(model.KubernetesService)
	} else {
		return nil, fmt.Errorf("kind %q is not known: outrigger get without arguments lists the kinds, and there is service", kind)
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

func (f *askFlags) explainObject(cmd *cobra.Command, args []string, namespace string) error {
	refs, err := candidates(args, namespace)
	if err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	addresses, err := f.addresses()
	if err != nil {
		return err
	}
	var answers []answer[report.Object]
	var first, found *report.Object
	for _, ref := range refs {
		answers = ask[report.Object](cmd.Context(), addresses, question{path: "explain", fields: url.Values{"kind": {ref.Kind}, "namespace": {ref.Namespace}, "name": {ref.Name}}}, f.timeout)
		var all []report.Object
		for _, a := range answers {
			if a.err == nil {
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
		if merged.Found || len(merged.Problems) > 0 {
			found = &merged
			break
		}
	}
	shown := cmp.Or(found, first)
	if shown == nil {
		complain(cmd.ErrOrStderr(), answers)
		return f.cfg.Exit(exitFailed, nil)
	}
	if f.output != outTable {
		err = f.write(cmd.OutOrStdout(), shown)
	} else {
		err = view{out: cmd.OutOrStdout(), now: time.Now(), flags: f}.object(*shown)
	}
	if err != nil {
		return err
	}
	if complain(cmd.ErrOrStderr(), answers) > 0 || found == nil {
		return f.cfg.Exit(exitFailed, nil)
	}
	return nil
}

func (f *askFlags) explainProxy(cmd *cobra.Command, name, namespace string) error {
	addresses, err := f.addresses()
	if err != nil {
		return err
	}
	if namespace != "" && !strings.HasSuffix(name, "."+namespace) {
		name += "." + namespace
	}
	answers := ask[report.Replica](cmd.Context(), addresses, question{path: "proxies"}, f.timeout)
	if err := pick(answers, name); err != nil {
		if complain(cmd.ErrOrStderr(), answers) == len(answers) {
			return f.cfg.Exit(exitFailed, nil)
		}
		return f.cfg.Exit(exitFailed, fmt.Errorf("%w (of an object, write the kind, too: vs/%s)", err, name))
	}
	var where []string
	for _, a := range answers {
		if len(a.value.Proxies) > 0 {
			where, name = append(where, a.address), a.value.Proxies[0].Name
		}
	}
	decided := ask[report.Decided](cmd.Context(), where, question{path: "explain", fields: url.Values{"proxyID": {name}}}, f.timeout)
	var all []report.Decided
	for _, d := range decided {
		if d.err == nil {
			all = append(all, d.value)
		}
	}
	if f.output != outTable && len(all) > 0 {
		err = f.write(cmd.OutOrStdout(), all)
	} else {
		for _, d := range all {
			v := view{out: cmd.OutOrStdout(), now: time.Now(), flags: f}
			if err = v.proxy(d.Proxy); err == nil {
				err = v.decided(d)
			}
		}
	}
	if err != nil {
		return err
	}
	if complain(cmd.ErrOrStderr(), answers)+complain(cmd.ErrOrStderr(), decided) > 0 {
		return f.cfg.Exit(exitFailed, nil)
	}
	return nil
}

// named returns the name of an object in command line syntax.
func named(r report.Ref) string {
	if r.Namespace == "" {
		return kindNamed(r.Kind) + "/" + r.Name
	}
	return kindNamed(r.Kind) + "/" + r.Name + "." + r.Namespace
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
	title := r.Kind
	if sch, ok := schema.Of(model.Kind(r.Kind)); ok && sch.Name != r.Kind {
		title = sch.Name + " (" + sch.Group + ")"
	}
	if title += " " + r.Name; r.Namespace != "" {
		title += " in namespace " + r.Namespace
	}
	return title
}

// object prints the effect of an object.
func (v view) object(o report.Object) error {
	title := titled(o.Ref)
	if !o.Found {
		v.say("There is no %s, neither in a store nor in what proxies have.\n", title)
		v.problems(o.Problems)
		if len(o.Problems) > 0 {
			v.say("An object that was never valid is not taken: correct it, and it is.\n")
		} else {
			v.say("%s lists those that there are.\n", listing(o.Kind))
		}
		return nil
	}
	if o.Source != "" {
		title += ", from " + o.Source
	}
	v.say("%s.\n", title)
	switch {
	case o.Changed.IsZero():
	case o.Started:
		v.say("It has not changed since the control plane started, %s ago.\n", age(o.Changed, v.now))
	default:
		v.say("Its last change went out %s ago.\n", age(o.Changed, v.now))
	}
	if len(o.Problems) > 0 || len(o.Lacking) == 0 {
		v.problems(o.Problems)
	}
	v.lacking(o.Lacking)
	if !o.InForce {
		v.say("\nObjects of this kind change nothing for proxies in this version: no proxy gets anything of it.\n")
		return nil
	}
	if err := v.resources(o); err != nil {
		return err
	}
	return v.standings(o)
}

func (v view) problems(list []report.Problem) {
	if len(list) == 0 {
		v.say("No problem with it is known.\n")
		return
	}
	v.say("\n%s:\n", count(len(list), "problem", "problems"))
	shown, left := cut(v.flags, list)
	for _, p := range shown {
		word, since := "error", ""
		if p.Warning {
			word = "warning"
		}
		if !p.Since.IsZero() {
			since = fmt.Sprintf(", known for %s", age(p.Since, v.now))
		}
		v.say("  %s: %s (%s%s)\n", word, oneLine(p.Reason), cmp.Or(p.Source, named(p.Object)), since)
	}
	v.more(left)
}

// lacking prints the missing credentials.
func (v view) lacking(list []string) {
	if len(list) == 0 {
		return
	}
	v.say("\n%s lacking:\n", countIs(len(list)))
	shown, left := cut(v.flags, list)
	for _, text := range shown {
		v.say("  %s\n", oneLine(text))
	}
	v.more(left)
}

func countIs(n int) string {
	if n == 1 {
		return "1 credential is"
	}
	return fmt.Sprintf("%d credentials are", n)
}

// resources prints the resources to which an object contributes.
func (v view) resources(o report.Object) error {
	if len(o.Resources) == 0 {
		v.say("\nNo resource of the proxies that are connected comes from it.\n")
		return nil
	}
	v.say("\nIt has a part in %s:\n", count(len(o.Resources), "resource", "resources"))
	w := v.tabs()
	_, _ = fmt.Fprintln(w, "  TYPE\tNAME\tPROXIES\tHELD BACK") // Flush tells
	shown, left := cut(v.flags, o.Resources)
	for _, r := range shown {
		back := "-"
		if r.HeldBack > 0 {
			back = fmt.Sprint(r.HeldBack)
		}
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%d\t%s\n", strings.ToUpper(oneLine(r.Type)), oneLine(r.Name), r.Proxies, back) // as above
	}
	if err := w.Flush(); err != nil {
		return err
	}
	v.more(left)
	return nil
}

// standings prints the state of an object on the proxies: the number of proxies that have it, and a
// table of the others.
func (v view) standings(o report.Object) error {
	states := map[report.State]int{}
	var behind []report.Standing
	for _, s := range o.Proxies {
		states[s.State]++
		if s.State != report.Synced || v.flags.all {
			behind = append(behind, s)
		}
	}
	if len(o.Proxies) == 0 {
		v.say("None of %s that are connected to %s gets anything of it.\n", count(o.Others, "proxy", "proxies"), cmp.Or(o.Replica, "the control plane"))
		if o.Nobody != "" {
			v.say("The reason: %s.\n", oneLine(o.Nobody))
		}
		return nil
	}
	words := []string{fmt.Sprintf("%d of %s it in force", states[report.Synced], countHave(len(o.Proxies)))}
	for _, s := range []struct {
		state report.State
		text  string
	}{{report.Stale, "not answered yet"}, {report.Rejected, "rejected it"}, {report.HeldBack, "not been given it, because another one rejected it"}} {
		if n := states[s.state]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s %s", n, hasHave(n), s.text))
		}
	}
	v.say("\n%s.%s\n", strings.Join(words, ", "), others(o.Others))
	if len(behind) == 0 {
		return nil
	}
	w := v.tabs()
	_, _ = fmt.Fprintln(w, "  PROXY\tSTATE\tSINCE\tWHAT") // Flush tells
	shown, left := cut(v.flags, behind)
	for _, s := range shown {
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", oneLine(s.Proxy), oneLine(string(s.State)), age(s.Since, v.now), cmp.Or(oneLine(s.What), "-")) // as above
	}
	if err := w.Flush(); err != nil {
		return err
	}
	v.more(left)
	v.words(behind)
	return nil
}

// words prints the error messages of Envoy without duplicates.
func (v view) words(list []report.Standing) {
	said := map[string]bool{}
	for _, s := range list {
		text := oneLine(s.Reason)
		if text == "" || said[text] {
			continue
		}
		if len(said) == 0 {
			v.say("\nEnvoy's words:\n")
		}
		said[text] = true
		instead := "it is left out, for there was none before"
		switch {
		case s.LastGood:
			instead = "the last good version stays in force"
		case isPlugin(s.What):
			instead = failStrategy
		}
		v.say("  %s, %s ago: %s\n    (%s)\n", s.By, age(s.Since, v.now), text, instead)
	}
}

func countHave(n int) string {
	if n == 1 {
		return "1 proxy has"
	}
	return fmt.Sprintf("%d proxies have", n)
}

func others(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return " 1 other proxy does not receive it."
	}
	return fmt.Sprintf(" %d other proxies do not receive it.", n)
}

// decided prints the objects that determine the configuration of a proxy.
func (v view) decided(d report.Decided) error {
	if len(d.Objects) == 0 {
		v.say("\nNo object decides what it has.\n")
		return nil
	}
	v.say("\n%s what it has:\n", decides(len(d.Objects)))
	w := v.tabs()
	_, _ = fmt.Fprintln(w, "  OBJECT\tPART IN") // Flush tells
	shown, left := cut(v.flags, d.Objects)
	for _, p := range shown {
		var words []string
		names := make([]string, 0, len(p.Resources))
		for name := range p.Resources {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return report.Order(a) - report.Order(b) })
		for _, name := range names {
			words = append(words, fmt.Sprintf("%d %s", p.Resources[name], strings.ToUpper(name)))
		}
		if p.Role != "" {
			words = append(words, p.Role)
		}
		_, _ = fmt.Fprintf(w, "  %s\t%s\n", oneLine(named(p.Ref)), oneLine(strings.Join(words, ", "))) // as above
	}
	if err := w.Flush(); err != nil {
		return err
	}
	v.more(left)
	if len(d.Problems) > 0 {
		v.problems(d.Problems)
	}
	return nil
}

func decides(n int) string {
	if n == 1 {
		return "1 object decides"
	}
	return fmt.Sprintf("%d objects decide", n)
}
