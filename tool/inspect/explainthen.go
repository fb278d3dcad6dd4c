// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// notRecorded says what no history has.
const notRecorded = "\nIt is not recorded which proxies were connected then, and which of them acknowledged or rejected it.\n"

// objectThen prints what an object was at a time, and its effect on the proxies that are connected now.
func (v view) objectThen(o report.Object) error {
	then := *o.Then
	if then.Version == nil {
		v.say("There was no %s at %s.\n", titled(o.Ref), v.clock(then.At))
		if then.Next != nil {
			v.say("It was created at %s%s.\n", v.clock(then.Next.At), revisionText(*then.Next))
		} else {
			v.say("The history, which begins at %s, has no later version of it: %s lists the existing ones.\n", v.clock(then.Begins), listing(o.Kind))
		}
		return nil
	}
	one := *then.Version
	title := titled(o.Ref)
	if o.Source != "" {
		title += ", from " + o.Source
	}
	v.say("%s, at %s.\n", title, v.clock(then.At))
	until := "it has not changed since"
	if next := then.Next; next != nil {
		until = fmt.Sprintf("%s at %s%s", next.Change, v.clock(next.At), revisionText(*next))
	}
	v.say("Revision %s, %s at %s; %s.\n", one.Revision[:min(revisionWidth, len(one.Revision))], one.Change, v.clock(one.At), until)
	if one.Endpoints != nil {
		v.say("Requests were received at %s.\n", count(*one.Endpoints, "address", "addresses"))
	}
	if one.Object != nil {
		text, err := yaml.JSONToYAML(one.Object)
		if err != nil {
			return err
		}
		v.say("\n")
		for line := range strings.Lines(string(text)) {
			_, _ = fmt.Fprint(columns.Raw(v.out), "  ", line) // the terminal may be closed
		}
	}
	switch {
	case isMesh(o.Ref):
		return nil
	case then.NoEffect != "":
		v.say("\nIts effect then cannot be computed: %s\n", localTimes(oneLine(then.NoEffect), v.now))
		return nil
	case !o.InForce:
		v.say("\nObjects of this kind change nothing for proxies in this version.\n")
		return nil
	case len(o.Problems) > 0:
		v.problems(o.Problems)
	}
	if err := v.resources(o); err != nil {
		return err
	}
	v.proxiesThen(o)
	v.unrecorded(then.Unrecorded)
	v.say(notRecorded)
	return nil
}

// proxiesThen prints which of the proxies that are connected now would have had an object.
func (v view) proxiesThen(o report.Object) {
	all := len(o.Proxies) + o.Others
	if len(o.Proxies) == 0 {
		v.say("None of %s that are connected to %s now would have received anything of it.\n", count(all, "proxy", "proxies"), cmp.Or(o.Replica, "the control plane"))
		if o.Nobody != "" {
			v.say("The reason: %s.\n", oneLine(o.Nobody))
		}
		return
	}
	v.say("\nOf %s connected now, %d would have received it:\n", count(all, "proxy", "proxies"), len(o.Proxies))
	shown, left := cut(v.flags, o.Proxies)
	for _, s := range shown {
		v.say("  %s\n", s.Proxy)
	}
	v.more(left)
}

// revisionText returns the revision and the source of a version for the end of a sentence.
func revisionText(one report.Version) string {
	if one.Revision == "" {
		return ""
	}
	return strings.TrimSuffix(", revision "+one.Revision[:min(revisionWidth, len(one.Revision))]+", from "+one.Source, ", from ")
}

// decidedThen prints the objects that would have determined the configuration of a proxy at a time.
func (v view) decidedThen(d report.Decided) error {
	v.say("%s, as it is connected now, with what was in force at %s:\n", d.Name, v.clock(d.Then.At))
	if err := v.decided(d); err != nil {
		return err
	}
	v.unrecorded(d.Then.Unrecorded)
	v.say(notRecorded)
	return nil
}
