// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
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
func completeProxy(f *askFlags) completed {
	return func(cmd *cobra.Command, args []string, beginning string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
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

// completeObject completes KIND/NAME.NAMESPACE, or KIND and then NAME. With proxies it also completes
// codes of findings and the names of proxies; without, what else has a history.
func completeObject(f *askFlags, proxies bool) completed {
	return func(cmd *cobra.Command, args []string, beginning string) ([]string, cobra.ShellCompDirective) {
		kind, name, slash := strings.Cut(beginning, "/")
		switch {
		case len(args) > 1 || len(args) == 1 && strings.Contains(args[0], "/"):
			return nil, cobra.ShellCompDirectiveNoFileComp
		case len(args) == 1:
			return beginningWith(beginning, f.objectNames(cmd, args[0], false)), cobra.ShellCompDirectiveNoFileComp
		case slash:
			var out []string
			for _, one := range beginningWith(name, f.objectNames(cmd, kind, true)) {
				out = append(out, kind+"/"+one)
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		}
		var kinds []string
		for _, s := range schema.All() {
			if s.Short != "" {
				kinds = append(kinds, s.Short+"/")
			}
			kinds = append(kinds, kindNamed(string(s.Kind))+"/")
		}
		if !proxies {
			kinds = append(kinds, "service", report.MeshName)
		}
		out := beginningWith(beginning, kinds)
		if proxies {
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
func (f *askFlags) objectNames(cmd *cobra.Command, kind string, within bool) (names []string) {
	sch, ok := schema.Named(kind)
	if !ok {
		return nil
	}
	type object struct {
		Metadata struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
	}
	for _, list := range askQuietly[[]object](cmd, f, question{path: "configz", fields: url.Values{"kind": {string(sch.Kind)}}}) {
		for _, o := range list {
			name := oneLine(o.Metadata.Name)
			if within && o.Metadata.Namespace != "" {
				name += "." + oneLine(o.Metadata.Namespace)
			}
			names = append(names, name)
		}
	}
	return names
}

// completeValue completes the value of a flag, or the last one of a list, by the values that it may have.
func completeValue(cmd *cobra.Command, flag string, values func() []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, beginning string) (out []string, _ cobra.ShellCompDirective) {
		others := beginning[:strings.LastIndex(beginning, ",")+1]
		for _, value := range beginningWith(beginning[len(others):], values()) {
			out = append(out, others+value)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag exists, and has no other completion
	}
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
		if err := cmd.RegisterFlagCompletionFunc("namespace", completeNamespace(f)); err != nil {
			panic(err) // the flag exists, and has no other completion
		}
	}
}
