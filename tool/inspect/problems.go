// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// conditionCode is the code of findings that repeat a condition in the status of an object.
const conditionCode = "IST0171"

// problems finds what is wrong with objects and control planes, for status, up and the dashboard. It
// analyzes again only what has changed.
type problems struct {
	of    string // what was analyzed last
	found analyze.Result
}

// known is the problems that are known, and why those of objects may be missing.
type known struct {
	list []analyze.Finding
	err  error
}

// serious reports whether there is an error among them.
func (k known) serious() bool {
	return slices.ContainsFunc(k.list, func(f analyze.Finding) bool { return f.Severity == analyze.Error })
}

// find returns the errors and warnings of the analysis, and the faults of control planes, errors first.
// With an error, those of objects are the ones of the last analysis.
func (p *problems) find(ctx context.Context, f *askFlags, answers []answer[report.Replica]) known {
	at := slices.IndexFunc(answers, answered)
	if at < 0 {
		return known{p.list(answers), nil} // complain names them
	}
	r := answers[at].value
	of := fmt.Sprint(answers[at].address, r.Snapshot, r.ProblemsHash, len(r.Proxies), len(r.Gone))
	if of == p.of {
		return known{p.list(answers), nil}
	}
	one := analyzeFlags{askFlags: *f}
	one.controls = []string{answers[at].address}
	found, err := one.ask(ctx, nil)
	if err != nil {
		p.of = ""
		return known{p.list(answers), err}
	}
	p.of, p.found = of, found
	return known{p.list(answers), nil}
}

// answered reports whether an answer is of now.
func answered(a answer[report.Replica]) bool { return a.err == nil && a.stale == nil }

// list returns the problems as of the last analysis.
func (p *problems) list(answers []answer[report.Replica]) (list []analyze.Finding) {
	for _, a := range answers {
		for _, text := range a.value.Faults {
			list = append(list, analyze.Finding{Severity: analyze.Error, Source: "control plane " + cmp.Or(a.value.Name, a.address), Message: text + "."})
		}
	}
	list = append(list, slices.DeleteFunc(slices.Clone(p.found.Findings), func(f analyze.Finding) bool {
		return f.Severity == analyze.Info || f.Code == conditionCode
	})...)
	slices.SortStableFunc(list, func(a, b analyze.Finding) int { return cmp.Compare(a.Severity.Rank(), b.Severity.Rank()) })
	return list
}

// findings prints problems, or why those of objects are not known.
func (v view) findings(answers []answer[report.Replica]) {
	list, unknown := v.wrong.list, v.wrong.err
	if unknown != nil {
		most := 0
		for _, a := range answers {
			most = max(most, a.value.Problems)
		}
		v.say("What analyze finds is not known: %s. The control plane knows of %s.\n", oneLine(unknown.Error()), count(most, "problem with objects", "problems with objects"))
	}
	errors := 0
	for _, f := range list {
		if f.Severity == analyze.Error {
			errors++
		}
	}
	switch {
	case len(list) > 0:
		v.say("\n%s, %s:\n", count(errors, "error", "errors"), count(len(list)-errors, "warning", "warnings"))
	case unknown == nil && slices.ContainsFunc(answers, answered) && !slices.ContainsFunc(proxiesIn(answers), refusing):
		v.say("No problem with objects is known.\n")
	}
	shown, left := cut(v.flags, list)
	for _, f := range shown {
		what := oneLine(f.Source)
		if f.Object.Name != "" {
			what = causeText(report.Cause{Ref: report.Ref(f.Object), Source: f.Source})
		}
		text := oneLine(f.Message + " " + f.Cure)
		if f.Code != "" {
			text += " (" + f.Code + ")"
		}
		v.say("  %s: %s: %s\n", strings.ToLower(string(f.Severity)), what, text)
	}
	v.more(left)
}

// denyList prints the state of a control plane's deny list.
func (v view) denyList(r report.Replica) {
	l := r.DenyList
	if l == nil {
		return
	}
	if !l.Since.IsZero() {
		what := "without entries"
		if l.Entries > 0 {
			what = fmt.Sprintf("%s, %s, version %s", count(l.Entries, "entry", "entries"), count(l.Serials, "serial number", "serial numbers"), oneLine(l.Version))
		}
		v.say("Deny list %s, sent %s ago: acknowledged by %d of %s.\n", what, age(l.Since, v.now), l.Acknowledged, count(l.Acknowledged+len(l.Missing), "proxy", "proxies"))
	}
	if len(l.Missing) > 0 {
		v.say("  Not acknowledged, so not in force, by: %s\n", few(l.Missing))
	}
	if len(l.Ignoring) > 0 {
		v.say("  Serial numbers are ignored by: %s (they need Envoy 1.37 or newer)\n", few(l.Ignoring))
	}
}
