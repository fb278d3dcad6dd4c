// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// Limits of the table, in characters. The longest list of types is that of all types.
const (
	tableWidth = 80
	leastWidth = 60 // also for narrower terminals
	typesWidth = len("CDS EDS LDS RDS VHDS ECDS SDS NDS PCDS")
)

// table prints all proxies.
func (v view) table(answers []answer[report.Replica]) error {
	var proxies []report.Proxy
	for _, a := range answers {
		proxies = append(proxies, a.value.Proxies...)
	}
	slices.SortStableFunc(proxies, func(a, b report.Proxy) int { return strings.Compare(a.Name, b.Name) })
	if len(proxies) > 0 {
		show := v.narrow
		if v.flags.output == outWide {
			show = v.wide
		}
		if err := show(proxies); err != nil {
			return err
		}
		v.say("\n")
	}
	v.summary(proxies)
	v.asked(answers)
	v.rejected(proxies)
	return nil
}

// narrow prints a row for each proxy and state, in lines that fit the terminal. It
// shortens names that are too long.
func (v view) narrow(proxies []report.Proxy) error {
	rows := [][]string{{"NAME", "STATE", "SINCE", "TYPES"}}
	for _, p := range proxies {
		rows = append(rows, v.rows(p)...)
	}
	width := v.flags.width()
	for column := 1; column < 4; column++ {
		longest := 0
		for _, r := range rows {
			longest = max(longest, utf8.RuneCountInString(r[column]))
		}
		width -= gap + longest
	}
	w, shortened := v.tabs(), false
	for _, r := range rows {
		name := shorten(r[0], width)
		shortened = shortened || name != r[0]
		_, _ = fmt.Fprintln(w, name+"\t"+strings.Join(r[1:], "\t")) // Flush returns the error
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if shortened {
		v.say("\n… stands for a part of a name: -o wide shows names in full.\n")
	}
	return nil
}

// rows returns the rows of a proxy in the narrow table, the worst state first. Types that were not
// sent are left out, unless the proxy has no others or should have asked for them.
func (v view) rows(p report.Proxy) (rows [][]string) {
	types := map[report.State][]string{}
	since := map[report.State]time.Time{} // when the last of the types came into the state
	for _, t := range p.Types {
		if t.State == report.NotSent && worst(p) != report.NotSent && !(t.Name == "lds" && starting(p)) {
			continue
		}
		types[t.State] = append(types[t.State], strings.ToUpper(oneLine(t.Name)))
		if t.Since.After(since[t.State]) {
			since[t.State] = t.Since
		}
	}
	if len(types) == 0 {
		types[report.NotSent] = []string{"-"}
	}
	states := slices.SortedFunc(maps.Keys(types), func(a, b report.State) int {
		return cmp.Or(cmp.Compare(severity(b), severity(a)), cmp.Compare(a, b))
	})
	for _, s := range states {
		rows = append(rows, []string{oneLine(p.Name), oneLine(string(s)), age(since[s], v.now), shorten(strings.Join(types[s], " "), min(typesWidth, v.flags.width()/2-2))})
	}
	return rows
}

// shorten replaces the middle of a text that has more than n characters. More is left of its end,
// which distinguishes the pods of a deployment.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	n = max(n, 3) - 1 // without the ellipsis
	return string(r[:n/3]) + "…" + string(r[len(r)-(n-n/3):])
}

// wide prints a row for each proxy with a column for each type.
func (v view) wide(proxies []report.Proxy) error {
	types, w := columns(proxies), v.tabs()
	_, _ = fmt.Fprintf(w, "NAME\tCLUSTER\t%s\tISTIOD\tVERSION\tENVOY\n", strings.ToUpper(strings.Join(types, "\t"))) // Flush returns the error
	for _, p := range proxies {
		cells := []string{oneLine(p.Name), cmp.Or(oneLine(p.Cluster), "-")}
		for _, name := range types {
			cells = append(cells, v.cell(p, name))
		}
		cells = append(cells, cmp.Or(oneLine(p.Replica), "-"), cmp.Or(oneLine(p.Agent), "-"), cmp.Or(oneLine(p.Envoy), "-"))
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) // see above
	}
	return w.Flush()
}

// columns returns the types shown in the table, named like istioctl's columns: four types that
// every Envoy requests, and all others that were sent to any of the proxies.
func columns(proxies []report.Proxy) []string {
	list := []string{"cds", "lds", "eds", "rds"}
	for _, p := range proxies {
		for _, t := range p.Types {
			if t.State != report.NotSent && !slices.Contains(list, t.Name) {
				list = append(list, t.Name)
			}
		}
	}
	return list
}

// cell returns the state of a type on a proxy.
func (v view) cell(p report.Proxy, name string) string {
	i := slices.IndexFunc(p.Types, func(t report.Type) bool { return t.Name == name })
	if i < 0 || p.Types[i].State == report.NotSent {
		return string(report.NotSent)
	}
	return fmt.Sprintf("%s (%s)", plain(string(p.Types[i].State)), age(p.Types[i].Since, v.now))
}

// worst returns the most important state of a proxy.
func worst(p report.Proxy) report.State {
	w := report.NotSent
	for _, t := range p.Types {
		if severity(t.State) > severity(w) {
			w = t.State
		}
	}
	return w
}

// severity returns the position of a state among all, the worst last, or -1 for an unknown one.
func severity(s report.State) int {
	return slices.Index([]report.State{report.NotSent, report.Synced, report.Stale, report.HeldBack, report.Rejected}, s)
}
