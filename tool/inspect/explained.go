// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// object prints the effect of an object.
func (v view) object(o report.Object) error {
	if o.Then != nil {
		return v.objectThen(o)
	}
	title := titled(o.Ref)
	if !o.Found {
		v.say("There is no %s, neither in a store nor in what proxies have.\n", title)
		v.problems(o.Problems)
		if len(o.Problems) > 0 {
			v.say("An object that was never valid is ignored until it is corrected.\n")
		} else {
			v.say("%s lists the existing ones.\n", listing(o.Kind))
		}
		return nil
	}
	if o.Source != "" {
		title += ", from " + o.Source
	}
	v.say("%s.\n", title)
	switch {
	case o.Pending:
		v.say("A change of it is being read and not sent yet; what follows is older.\n")
	case o.Changed.IsZero():
	case o.Started:
		v.say("It has not changed since the control plane started, %s ago.\n", age(o.Changed, v.now))
	default:
		v.say("Its last change went out %s ago.\n", age(o.Changed, v.now))
	}
	if len(o.Problems) > 0 || len(o.Lacking) == 0 && !rejectedOn(o.Proxies) {
		v.problems(o.Problems)
	}
	v.lacking(o.Lacking)
	if !o.InForce {
		v.say("\nObjects of this kind change nothing for proxies in this version: no proxy receives anything of it.\n")
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
	verb := "has"
	if o.Then != nil {
		verb = "had"
	}
	v.say("\nIt %s a part in %s:\n", verb, count(len(o.Resources), "resource", "resources"))
	rows := [][]string{{"TYPE", "NAME", "PROXIES", "HELD BACK"}}
	shown, left := cut(v.flags, o.Resources)
	for _, r := range shown {
		back := "-"
		if r.HeldBack > 0 {
			back = fmt.Sprint(r.HeldBack)
		}
		rows = append(rows, []string{strings.ToUpper(r.Type), r.Name, strconv.Itoa(r.Proxies), back})
	}
	if o.Then != nil { // what was held back is not recorded
		for i := range rows {
			rows[i] = rows[i][:3]
		}
	}
	if _, err := v.indented().columns(rows, "NAME"); err != nil {
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
		v.say("None of %s that are connected to %s receives anything of it.\n", count(o.Others, "proxy", "proxies"), cmp.Or(o.Replica, "the control plane"))
		if o.Nobody != "" {
			v.say("The reason: %s.\n", oneLine(o.Nobody))
		}
		return nil
	}
	words := []string{fmt.Sprintf("%d of %s it in force", states[report.Synced], countHave(len(o.Proxies)))}
	for _, s := range []struct {
		state report.State
		text  string
	}{{report.Stale, "not answered yet"}, {report.Rejected, "rejected it"}, {report.HeldBack, "not received it, because another one rejected it"}} {
		if n := states[s.state]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s %s", n, hasHave(n), s.text))
		}
	}
	v.say("\n%s.%s\n", strings.Join(words, ", "), others(o.Others))
	if len(o.Gone) > 0 {
		v.say("%s lost the connection, so what they have is not known: %s\n", countHave(len(o.Gone)), few(o.Gone))
	}
	if len(behind) == 0 {
		return nil
	}
	rows := [][]string{{"PROXY", "STATE", "SINCE", "WHAT"}}
	shown, left := cut(v.flags, behind)
	for _, s := range shown {
		rows = append(rows, []string{s.Proxy, string(s.State), age(s.Since, v.now), s.What})
	}
	if _, err := v.indented().columns(rows, "WHAT"); err != nil {
		return err
	}
	v.more(left)
	v.words(behind)
	return nil
}

// words prints the words of rejections without duplicates.
func (v view) words(list []report.Standing) {
	printed := map[string]bool{}
	for _, s := range list {
		if s.Reason == "" || printed[s.Reason] {
			continue
		}
		if len(printed) == 0 {
			v.say("\nRejections:\n")
		}
		printed[s.Reason] = true
		typ, _, _ := strings.Cut(s.What, " ")
		v.say("  %s, %s ago. %s\n    (%s)\n", s.By, age(s.Since, v.now), whoSays(typ, s.Reason), report.Kept(typ, s.LastGood))
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
	rows := [][]string{{"OBJECT", "PART IN"}}
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
		rows = append(rows, []string{named(p.Ref), strings.Join(words, ", ")})
	}
	if _, err := v.indented().columns(rows, ""); err != nil {
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
