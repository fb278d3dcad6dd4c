// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// whatIf prints what a change would do.
func (v view) whatIf(w report.WhatIf) error {
	for _, o := range w.Objects {
		v.say("%s %s\n", named(o.Ref), o.Action)
	}
	if w.Skipped > 0 {
		v.say("%s for others skipped\n", count(w.Skipped, "object", "objects"))
	}
	v.statuses(w)
	v.say("\n%s of %d would receive other configuration\n", count(len(w.Proxies), "proxy", "proxies"), w.All)
	if len(w.Proxies) > 0 {
		if err := v.affected(w.Proxies); err != nil {
			return err
		}
	}
	if len(w.Proxies) > 0 {
		v.flips(w)
	}
	for _, list := range []struct {
		title    string
		problems []report.Problem
	}{{"would appear", w.Problems}, {"would disappear", w.Solved}} {
		if len(list.problems) == 0 {
			continue
		}
		v.say("\n%s %s:\n", count(len(list.problems), "problem", "problems"), list.title)
		shown, left := cut(v.flags, list.problems)
		for _, p := range shown {
			v.say("  %s: %s\n", named(p.Object), oneLine(p.Reason))
		}
		v.more(left)
	}
	accepted := 0
	for _, e := range w.Verdicts {
		if e.Error == "" {
			accepted += e.Alike
		}
	}
	refusals, left := cut(v.flags, refusals(w.Verdicts))
	for _, r := range refusals {
		v.say("\nENVOY REFUSES the configuration of %s: %s\n", count(r.proxies, "proxy", "proxies")+" such as "+strings.Join(r.named, ", "), r.reason)
	}
	v.more(left)
	if accepted > 0 {
		v.say("\nEnvoy accepts the configuration of %s\n", count(accepted, "proxy", "proxies"))
	}
	if w.Unvalidated > 0 {
		v.say("The configuration of %s was not validated: only %d different ones are\n", count(w.Unvalidated, "proxy", "proxies"), maxValidated)
	}
	return nil
}

// maxRefusing is how many proxies are named behind one refusal.
const maxRefusing = 3

// refusal is what Envoy says about the configuration of some proxies, the first of which are named.
type refusal struct {
	reason  string
	proxies int
	named   []string
}

// placeOf matches what differs between the same refusals for different proxies.
var placeOf = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+|\[?[0-9a-f]*:[0-9a-f:]*:[0-9a-f]+\]?`)

// refusals returns the refusals among verdicts, each once for all proxies that differ in addresses only.
func refusals(verdicts []report.Verdict) (list []refusal) {
	places := map[string]int{}
	for _, e := range verdicts {
		if e.Error == "" {
			continue
		}
		key := placeOf.ReplaceAllString(e.Error, "")
		at, known := places[key]
		if !known {
			at, places[key] = len(list), len(list)
			list = append(list, refusal{reason: e.Error})
		}
		r := &list[at]
		if r.proxies += e.Alike; len(r.named) < maxRefusing {
			r.named = append(r.named, e.Proxy)
		}
	}
	return list
}

// narrowWidth is the width of terminals below which one column has the resources that are added, changed
// and removed.
const narrowWidth = 60

// affected prints a row for each proxy and type.
func (v view) affected(proxies []report.Affected) error {
	v.say("\n")
	shown, left := cut(v.flags, proxies)
	number := strconv.Itoa
	rows := [][]string{{"PROXY", "TYPE", "ADDED", "CHANGED", "REMOVED", "BYTES"}}
	narrow := v.flags.width() < narrowWidth
	if narrow {
		rows = [][]string{{"PROXY", "TYPE", "CHANGES", "BYTES"}}
	}
	for _, p := range shown {
		for _, t := range p.Types {
			row := []string{p.Proxy, strings.ToUpper(t.Type), number(t.Added), number(t.Changed), number(t.Removed), number(t.Bytes)}
			if narrow {
				row = []string{row[0], row[1], fmt.Sprintf("+%d ~%d -%d", t.Added, t.Changed, t.Removed), row[5]}
			}
			rows = append(rows, row)
		}
	}
	if _, err := v.columns(rows, "PROXY"); err != nil {
		return err
	}
	v.more(left)
	for _, p := range shown {
		if len(p.Drained) > 0 {
			v.say("\n%s: all connections of these listeners would close: %s\n", p.Proxy, fewOf(p.Drained, p.DrainedAll))
		}
		if len(p.ChainsDrained) > 0 {
			v.say("\n%s: connections of changed filter chains would close: %s\n", p.Proxy, fewOf(p.ChainsDrained, p.ChainsDrainedAll))
		}
	}
	return nil
}

// flips prints the requests whose result would change.
func (v view) flips(w report.WhatIf) {
	v.say("\n%s tried, %s\n", count(w.Requests, "request", "requests"), count(len(w.Flips), "result would change", "results would change"))
	shown, left := cut(v.flags, w.Flips)
	for _, x := range shown {
		what := strings.TrimSpace(x.Method + " " + x.Host + x.Path)
		if x.Port > 0 {
			what = strings.TrimSpace(fmt.Sprintf("%s %s:%d%s", x.Method, x.Host, x.Port, x.Path))
		}
		if x.Method == "" {
			what = "a connection to " + what
		}
		denied := x.Routed == "" && x.Before == "denied" // now
		title := "Changes"
		switch {
		case x.Routed == "" && x.Fails:
			title = "Now denied"
		case denied:
			title = "Now allowed"
		case x.Fails:
			title = "Now fails"
		}
		v.say("\n")
		for i, line := range broken(oneLine(title+": "+what), v.flags.width()-2) {
			v.say("%s%s\n", strings.Repeat(" ", min(2*i, 2)), line)
		}
		for _, with := range x.With() {
			v.whole("with", with)
		}
		if x.Routed == "" {
			v.whole("from", few(x.Clients))
		}
		why := x.Reason
		switch {
		case x.Rule != nil:
			why = "by " + ruleText(*x.Rule)
		case x.By == "no-rule":
			why = "as no rule that allows requests matches"
		}
		switch {
		case x.Routed == "" && x.Fails:
			v.whole("denied", why)
		case denied && x.After == "allowed":
			v.whole("before", "denied, "+why)
		default:
			v.whole("before", x.Before)
			v.whole("after", x.After)
		}
		proxies := x.Proxy
		if x.Proxies > 1 {
			proxies = count(x.Proxies, "proxy", "proxies") + " such as " + proxies
		}
		switch {
		case x.Routed != "" && x.Method == "":
			proxies += ", listener " + x.Routed
		case x.Routed != "":
			proxies += ", routes " + x.Routed
		}
		v.whole("at", proxies)
		if x.Others > 0 {
			v.whole("also", count(x.Others, "request", "requests")+" with more attributes")
		}
	}
	v.more(left)
	v.say("\nRequests that no rule or route names were not tried\n")
	for _, text := range w.Untried {
		v.say("%s\n", text)
	}
}

// whole is field for a value of which no part is left out: two values may differ in the middle.
func (v view) whole(name, value string) {
	const indent = 11
	for _, line := range broken(oneLine(value), v.flags.width()-indent) {
		v.line(name, line)
		name = ""
	}
}

// broken returns a text as lines of at most width characters, which end with a space or a mark if
// possible.
func broken(text string, width int) (lines []string) {
	rest := []rune(text)
	for len(rest) > width {
		end := width
		for i := width; i > width/2; i-- {
			if strings.ContainsRune(" |/.,:;=", rest[i-1]) {
				end = i
				break
			}
		}
		lines, rest = append(lines, strings.TrimRight(string(rest[:end]), " ")), rest[end:]
	}
	return append(lines, string(rest))
}
