// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/output"
)

// completionTimeout is how long a shell waits for the answer of a control plane.
const completionTimeout = 2 * time.Second

// completed is what cobra calls to complete an argument or the value of a flag.
type completed = func(cmd *cobra.Command, args []string, beginning string) ([]string, cobra.ShellCompDirective)

// askQuietly asks the control planes, and returns nil without an answer: a completion has no place for
// errors.
func askQuietly[T any](cmd *cobra.Command, f *askFlags, q question) (out []T) {
	f.cfg.Cluster.hurry(completionTimeout)
	addresses, err := f.addresses()
	if err != nil {
		return nil
	}
	for _, a := range ask[T](cmd.Context(), addresses, q, completionTimeout) {
		if a.err == nil {
			out = append(out, a.value)
		}
	}
	return out
}

// beginningWith returns the texts that begin with another one, sorted.
func beginningWith(beginning string, list []string) []string {
	list = slices.DeleteFunc(list, func(s string) bool { return !strings.HasPrefix(s, beginning) })
	slices.Sort(list)
	return slices.Compact(list)
}

// completeProxy completes the name of a proxy as the only argument.
func completeProxy(f *askFlags) completed { return completeProxies(f, 1) }

// completeProxies completes the names of proxies as arguments, of which there may be most.
func completeProxies(f *askFlags, most int) completed {
	return func(cmd *cobra.Command, args []string, beginning string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, replica := range askQuietly[report.Replica](cmd, f, question{path: "proxies"}) {
			for _, p := range replica.Proxies {
				names = append(names, oneLine(p.Name))
			}
		}
		return beginningWith(beginning, names), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNamespace completes the value of a flag by the namespaces of proxies.
func completeNamespace(f *askFlags) completed {
	return func(cmd *cobra.Command, _ []string, beginning string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, replica := range askQuietly[report.Replica](cmd, f, question{path: "proxies"}) {
			for _, p := range replica.Proxies {
				names = append(names, oneLine(p.Namespace))
			}
		}
		return beginningWith(beginning, names), cobra.ShellCompDirectiveNoFileComp
	}
}

// objectForm is how the argument of a command names an object.
type objectForm int

const (
	presentObject  objectForm = iota // NAME.NAMESPACE; also codes of findings and names of proxies
	recordedObject                   // NAME.NAMESPACE of the past; also what else has a history
	pastObject                       // NAME of the past, in the namespace of the flag
)

// completeObject completes KIND/NAME.NAMESPACE, or KIND and then NAME.
func completeObject(f *askFlags, form objectForm) completed {
	return func(cmd *cobra.Command, args []string, beginning string) ([]string, cobra.ShellCompDirective) {
		kind, name, slash := strings.Cut(beginning, "/")
		switch {
		case len(args) > 1 || len(args) == 1 && strings.Contains(args[0], "/"):
			return nil, cobra.ShellCompDirectiveNoFileComp
		case len(args) == 1:
			return beginningWith(beginning, f.objectNames(cmd, args[0], form, false)), cobra.ShellCompDirectiveNoFileComp
		case slash:
			var out []string
			for _, one := range beginningWith(name, f.objectNames(cmd, kind, form, form != pastObject)) {
				out = append(out, kind+"/"+one)
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		}
		known := map[string]bool{} // kinds with a history; empty if it has not answered
		if form != presentObject {
			for _, v := range f.recorded(cmd, report.Ref{}) {
				known[v.Kind] = true
			}
		}
		var kinds []string
		for _, s := range schema.All() {
			if len(known) > 0 && !known[string(s.Kind)] {
				continue
			}
			if s.Short != "" {
				kinds = append(kinds, s.Short+"/")
			}
			kinds = append(kinds, kindNamed(string(s.Kind))+"/")
		}
		if form == recordedObject {
			kinds = append(kinds, "service", report.MeshName)
		}
		out := beginningWith(beginning, kinds)
		if form == presentObject {
			if beginning != "" {
				out = append(out, beginningWith(beginning, codes())...)
			}
			names, _ := completeProxy(f)(cmd, args, beginning)
			out = append(out, names...)
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// objectNames returns the names of the objects of a kind, with their namespaces if within is true.
func (f *askFlags) objectNames(cmd *cobra.Command, kind string, form objectForm, within bool) (names []string) {
	sch, ok := schema.Named(kind)
	if !ok {
		return nil
	}
	add := func(name, namespace string) {
		if within && namespace != "" {
			name += "." + namespace
		}
		names = append(names, oneLine(name))
	}
	if form != presentObject {
		ref := report.Ref{Kind: string(sch.Kind)}
		if form == pastObject && !sch.Cluster {
			namespace, _ := cmd.Flags().GetString("namespace") // without it, the default
			ref.Namespace = cmp.Or(namespace, schema.DefaultNamespace)
		}
		for _, v := range f.recorded(cmd, ref) {
			add(v.Name, v.Namespace)
		}
		if form == pastObject || len(names) > 0 {
			return names
		}
	}
	type object struct {
		Metadata struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
	}
	for _, list := range askQuietly[[]object](cmd, f, question{path: "configz", fields: url.Values{"kind": {string(sch.Kind)}}}) {
		for _, o := range list {
			add(o.Metadata.Name, o.Metadata.Namespace)
		}
	}
	return names
}

// recorded returns the versions of the history of the objects that a reference names, the newest first.
func (f *askFlags) recorded(cmd *cobra.Command, ref report.Ref) (list []report.Version) {
	fields := url.Values{"kind": {ref.Kind}, "namespace": {ref.Namespace}, "name": {ref.Name}}
	for _, h := range askQuietly[report.History](cmd, f, question{path: "history", fields: fields}) {
		list = append(list, h.Versions...)
	}
	slices.SortStableFunc(list, func(a, b report.Version) int { return b.At.Compare(a.At) })
	return list
}

// completeRevision completes the value of a flag by the revisions of the object that the arguments name.
func completeRevision(f *askFlags) completed {
	return func(cmd *cobra.Command, args []string, beginning string) (out []string, _ cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		namespace, _ := cmd.Flags().GetString("namespace") // without it, the default
		refs, err := candidates(args, namespace)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		seen := map[string]bool{}
		for _, ref := range refs {
			for _, v := range f.recorded(cmd, ref) {
				if v.Revision == "" || seen[v.Revision] || !strings.HasPrefix(v.Revision, beginning) {
					continue
				}
				seen[v.Revision] = true
				out = append(out, oneLine(v.Revision)+"\t"+oneLine(v.Change)+" at "+output.Clock(v.At, time.Now()))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// maxMoments is how many moments a shell shows.
const maxMoments = 20

// completeMoment completes the value of a flag by the newest moments of changes.
func completeMoment(f *askFlags) completed {
	return func(cmd *cobra.Command, _ []string, beginning string) (out []string, _ cobra.ShellCompDirective) {
		last := ""
		for _, v := range f.recorded(cmd, report.Ref{}) {
			at := v.At.Local().Format("2006-01-02T15:04:05")
			if at == last || !strings.HasPrefix(at, beginning) || len(out) == maxMoments {
				continue
			}
			last = at
			out = append(out, at+"\t"+oneLine(briefly(v.Ref)+" "+v.Change))
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// completeFlag completes the value of a flag.
func completeFlag(cmd *cobra.Command, flag string, value completed) {
	if err := cmd.RegisterFlagCompletionFunc(flag, value); err != nil {
		panic(err) // the flag exists, and has no other completion
	}
}

// completeValue completes the value of a flag, or the last one of a list, by the values that it may have.
func completeValue(cmd *cobra.Command, flag string, values func() []string) {
	completeList(cmd, flag, func(*cobra.Command, []string, string) []string { return values() })
}

// completeList is like completeValue for values that depend on the other arguments, and on the beginning of the
// last value. Values that end with = are not complete.
func completeList(cmd *cobra.Command, flag string, values func(cmd *cobra.Command, args []string, last string) []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, args []string, beginning string) (out []string, more cobra.ShellCompDirective) {
		others := beginning[:strings.LastIndex(beginning, ",")+1]
		last := beginning[len(others):]
		for _, value := range beginningWith(last, values(cmd, args, last)) {
			if strings.HasSuffix(value, "=") {
				more = cobra.ShellCompDirectiveNoSpace
			}
			out = append(out, others+value)
		}
		return out, more | cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag exists, and has no other completion
	}
}

// quiet returns a command whose complaints are not seen: a completion has no place for errors.
func (f *askFlags) quiet(cmd *cobra.Command) *cobra.Command {
	f.cfg.Cluster.hurry(completionTimeout)
	f.timeout = completionTimeout
	out := &cobra.Command{}
	out.SetContext(cmd.Context())
	out.SetErr(io.Discard)
	return out
}

// completeFilters completes the values of filters by what the proxy of the command line has.
func (f *proxyConfigFlags) completeFilters(cmd *cobra.Command, filters []string) {
	for _, filter := range filters {
		if slices.Contains([]string{"direction", "type", "status"}, filter) {
			continue // they have their values
		}
		completeList(cmd, filter, func(cmd *cobra.Command, args []string, _ string) []string {
			var c *configuration
			var err error
			switch {
			case f.file != "" && f.file != "-":
				c, err = f.saved(nil)
			case f.admin != "":
				c, err = askEnvoy(cmd.Context(), f.admin, completionTimeout)
			case len(args) == 1:
				c, err = f.given(f.quiet(cmd), args[0])
			}
			if c == nil || err != nil {
				return nil
			}
			return c.values(f.parts, filter)
		})
	}
}

// values returns the values of a filter that select resources of parts.
func (c *configuration) values(list []part, filter string) (out []string) {
	add := func(of, value string) {
		if of == filter && value != "" {
			out = append(out, oneLine(value))
		}
	}
	at := func(a *corev3.Address) {
		host, port := hostPort(a)
		add("address", host)
		add("port", number(port))
	}
	for _, p := range list {
		if !slices.Contains(p.filters, filter) {
			continue
		}
		for _, r := range c.resources[p.name] {
			add("name", r.name)
			switch m := r.message.(type) {
			case *clusterv3.Cluster:
				name := clusterName(r.name)
				add("fqdn", name.host)
				add("subset", name.subset)
				add("port", number(name.port))
			case *listenerv3.Listener:
				for _, a := range addressesOf(m) {
					at(a)
				}
			case *endpointv3.ClusterLoadAssignment:
				add("cluster", r.name)
				for _, l := range m.GetEndpoints() {
					for _, e := range l.GetLbEndpoints() {
						at(e.GetEndpoint().GetAddress())
					}
				}
			}
		}
	}
	return out
}

// completeLevel completes levels, names of loggers, and their levels.
func (f *logFlags) completeLevel(cmd *cobra.Command, args []string, last string) (out []string) {
	known := levels(f.agent)
	if i := strings.IndexAny(last, "=:"); i >= 0 {
		for _, level := range known {
			out = append(out, last[:i+1]+level)
		}
		return out
	}
	if f.asked(args) != nil {
		return known
	}
	quiet := f.quiet(cmd)
	done, err := f.connect(quiet, strings.Join(args, ""))
	if err != nil {
		return known
	}
	defer done()
	loggers, _ := f.loggers(quiet, nil) // without an answer there are none
	for name := range loggers {
		known = append(known, oneLine(name)+"=")
	}
	return known
}

// codes returns the codes of the findings that there may be.
func codes() (out []string) {
	for _, c := range analyze.Checks() {
		if c.Absent == "" {
			out = append(out, c.Code)
		}
	}
	return out
}

// complete adds the completion of the argument, and of the flag -n if there is one.
func (f *askFlags) complete(cmd *cobra.Command, argument completed) {
	cmd.ValidArgsFunction = argument
	if cmd.Flags().Lookup("namespace") != nil {
		completeFlag(cmd, "namespace", completeNamespace(f))
	}
}
