// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// picker selects the objects that a command line names.
type picker struct {
	namespace string
	all       bool
	selector  string
}

func (p *picker) add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&p.all, "all-namespaces", "A", false, "objects of all namespaces")
	cmd.Flags().StringVarP(&p.selector, "selector", "l", "", "only objects with these labels: key=value, key!=value, \"key in (a,b)\", key, !key; with commas between")
}

// kinds parses the first argument: a kind, a comma-separated list of kinds, or all.
func kinds(text string) ([]schema.Schema, error) {
	if text == "all" {
		return schema.All(), nil
	}
	var list []schema.Schema
	for name := range strings.SplitSeq(text, ",") {
		sch, ok := schema.Named(name)
		if !ok {
			return nil, &ExitError{exitUsage, fmt.Errorf("kind %q is unknown: write one of %s", name, kindsForPeople())}
		}
		list = append(list, sch)
	}
	return list, nil
}

// kindsOf returns the kinds that the arguments name. It is used before the store is open.
func kindsOf(args []string) ([]model.Kind, error) {
	var list []model.Kind
	for i, arg := range args {
		name, _, named := strings.Cut(arg, "/")
		if i > 0 && !named {
			break // find reports the error
		}
		schemas, err := kinds(name)
		if err != nil {
			return nil, err
		}
		for _, s := range schemas {
			list = append(list, s.Kind)
		}
		if !named {
			break // names follow
		}
	}
	return list, nil
}

// kindsIn returns the kinds of objects.
func kindsIn(objects []*model.Config) []model.Kind {
	seen := map[model.Kind]bool{}
	for _, c := range objects {
		seen[c.Kind] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

func kindsForPeople() string {
	var names []string
	for _, s := range schema.All() {
		name := strings.ToLower(s.Name)
		if string(s.Kind) != s.Name {
			name = s.Plural + "." + s.Group
		}
		if s.Short != "" && s.Short != name {
			name += " (" + s.Short + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// find returns the objects selected by KIND NAME..., KIND, or KIND/NAME....
func (p *picker) find(s config.Reader, args []string) (found []*model.Config, missing []model.Key, err error) {
	selector, err := labels.Parse(p.selector)
	if err != nil {
		return nil, nil, &ExitError{exitUsage, fmt.Errorf("-l %s: %w", p.selector, err)}
	}
	if strings.Contains(args[0], "/") {
		for _, arg := range args {
			kind, name, ok := strings.Cut(arg, "/")
			if !ok {
				return nil, nil, &ExitError{exitUsage, fmt.Errorf("%q is not KIND/NAME, unlike the first one", arg)}
			}
			list, absent, err := p.find(s, []string{kind, name})
			if err != nil {
				return nil, nil, err
			}
			found, missing = append(found, list...), append(missing, absent...)
		}
		return found, missing, nil
	}
	schemas, err := kinds(args[0])
	if err != nil {
		return nil, nil, err
	}
	for _, sch := range schemas {
		namespace := p.where(sch)
		if len(args) == 1 {
			for _, c := range s.List(sch.Kind, namespace) {
				if selector.Matches(labels.Set(c.Labels)) {
					found = append(found, c)
				}
			}
			continue
		}
		if p.all && !sch.Cluster {
			return nil, nil, &ExitError{exitUsage, fmt.Errorf("-A and names exclude each other: name the namespace with -n")}
		}
		for _, name := range args[1:] {
			key := model.Key{Kind: sch.Kind, Namespace: namespace, Name: name}
			if c := s.Get(key); c != nil {
				found = append(found, c)
			} else {
				missing = append(missing, key)
			}
		}
	}
	return found, missing, nil
}

// whyMissing returns the reason why the store does not return a requested object: it does not exist
// or is not valid.
func whyMissing(s config.Reader, key model.Key) error {
	err := config.ErrNotFound
	for _, p := range s.Problems() {
		switch {
		case p.Warning:
		case p.Object == key:
			return fmt.Errorf("it exists and is invalid (%s: %s); a control plane that has read it before keeps its last valid version in force", p.Source, p.Reason)
		case p.Object.Name == "" && errors.Is(err, config.ErrNotFound):
			err = fmt.Errorf("it does not exist, or cannot be read (%s: %s)", p.Source, p.Reason)
		}
	}
	return err
}

// lacking reports the objects that were named and are missing, those of a list that are invalid, and whether
// there is none at all.
func (p *picker) lacking(r *outcome, s config.Reader, of []model.Kind, args []string, found []*model.Config, missing []model.Key) {
	for _, key := range missing {
		r.fail("%s: %v", display(key), whyMissing(s, key))
	}
	if len(args) == 1 && !strings.Contains(args[0], "/") && p.selector == "" {
		for _, problem := range p.notShown(s, of, found) {
			if problem.Object.Name == "" {
				r.fail("%s: %s; the list may lack its objects", problem.Source, problem.Reason)
			} else {
				r.fail("%s: %v", display(problem.Object), whyMissing(s, problem.Object))
			}
		}
	}
	if len(found) == 0 && len(missing) == 0 && r.failed == 0 {
		_, _ = fmt.Fprintln(r.out, "no objects found") // the terminal may be closed
	}
}

// notShown returns the problems of invalid objects that a list of the kinds would otherwise
// contain, and of files that cannot be read, which may have more.
func (p *picker) notShown(s config.Reader, of []model.Kind, found []*model.Config) (list []model.Problem) {
	shown := map[model.Key]bool{}
	for _, c := range found {
		shown[c.Key] = true
	}
	for _, problem := range s.Problems() {
		sch, ok := schema.Of(problem.Object.Kind)
		if !problem.Warning && problem.Object.Name == "" {
			list = append(list, problem)
		}
		if problem.Warning || problem.Object.Name == "" || shown[problem.Object] || !ok || !slices.Contains(of, sch.Kind) {
			continue
		}
		if namespace := p.where(sch); namespace == "" || namespace == problem.Object.Namespace {
			list = append(list, problem)
		}
	}
	return list
}

// where returns the namespace to search; "" means all.
func (p *picker) where(sch schema.Schema) string {
	switch {
	case sch.Cluster, p.all:
		return ""
	case p.namespace == "":
		return schema.DefaultNamespace
	}
	return p.namespace
}
