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

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// Limits of the table, in characters. The longest list of types is that of all types.
const (
	tableWidth = 80
	leastWidth = 20 // also for narrower terminals
	typesWidth = len("CDS EDS LDS RDS VHDS ECDS SDS NDS PCDS")
)

// table prints all proxies.
func (v view) table(answers []answer[report.Replica]) error {
	proxies := proxiesIn(answers)
	if len(proxies) > 0 {
		if err := v.statusTable(proxies); err != nil {
			return err
		}
		v.say("\n")
	}
	v.summary(proxies, answers)
	v.asked(answers)
	v.findings(answers)
	v.rejected(proxies)
	return nil
}

// proxiesIn returns the proxies in answers by name.
func proxiesIn(answers []answer[report.Replica]) (proxies []report.Proxy) {
	for _, a := range answers {
		proxies = append(proxies, a.value.Proxies...)
	}
	slices.SortStableFunc(proxies, func(a, b report.Proxy) int { return strings.Compare(a.Name, b.Name) })
	return proxies
}

// statusTable prints the rows of proxies, in lines that fit the terminal. It shortens names that are
// too long.
func (v view) statusTable(proxies []report.Proxy) error {
	table := v.tableOf(proxies)
	rows := [][]string{table.header}
	for _, p := range proxies {
		rows = append(rows, table.rows(p)...)
	}
	shortened, err := v.columns(rows, table.header[0])
	if err == nil && shortened {
		v.say("\n… stands for a part of a name: -o wide shows names in full.\n")
	}
	return err
}

// statusTable is the form of a table of proxies.
type statusTable struct {
	header []string
	state  int // the column with the first state
	rows   func(report.Proxy) [][]string
}

// tableOf returns the table of proxies: a row for each proxy and state, or in the wide form a row for each
// proxy with a column for each type.
func (v view) tableOf(proxies []report.Proxy) statusTable {
	if v.flags.output != outWide {
		return statusTable{[]string{"NAME", "STATE", "SINCE", "TYPES"}, 1, v.rows}
	}
	types := shownTypes(proxies)
	header := slices.Concat([]string{"NAME", "CLUSTER"}, strings.Split(strings.ToUpper(strings.Join(types, " ")), " "), []string{"ISTIOD", "VERSION", "ENVOY"})
	return statusTable{header, 2, func(p report.Proxy) [][]string {
		cells := []string{p.Name, p.Cluster}
		for _, name := range types {
			cells = append(cells, v.cell(p, name))
		}
		return [][]string{append(cells, p.Replica, p.Agent, p.Envoy)}
	}}
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
		types[report.NotSent], since[report.NotSent] = []string{"-"}, p.Connected
	}
	states := slices.SortedFunc(maps.Keys(types), func(a, b report.State) int {
		return cmp.Or(cmp.Compare(severity(b), severity(a)), cmp.Compare(a, b))
	})
	for _, s := range states {
		rows = append(rows, []string{oneLine(p.Name), oneLine(string(s)), age(since[s], v.now), columns.Shorten(strings.Join(types[s], " "), typesWidth)})
	}
	return rows
}

// shownTypes returns the types shown in the table, named like istioctl's columns: four types that
// every Envoy requests, and all others that were sent to any of the proxies.
func shownTypes(proxies []report.Proxy) []string {
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
	if i < 0 || p.Types[i].Since.IsZero() {
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
	return slices.Index([]report.State{report.NotSent, report.Synced, report.Stale, report.HeldBack, report.Rejected, report.Gone}, s)
}
