// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
)

// suppression is a value of --suppress.
type suppression struct{ code, kind, namespace, name string }

// parseSuppression parses CODE, CODE=KIND/NAMESPACE/NAME, or the form of istioctl, "CODE=KIND
// NAME.NAMESPACE".
func parseSuppression(text string) (suppression, error) {
	code, object, named := strings.Cut(text, "=")
	s := suppression{code, "*", "*", "*"}
	if !analyze.Known(code) {
		return s, fmt.Errorf("--suppress %s: the code is unknown: outrigger analyze -L lists the codes", text)
	}
	parts := strings.Split(object, "/")
	switch kind, rest, old := strings.Cut(object, " "); {
	case !named:
	case old:
		s.kind, s.name = kind, rest
		if i := strings.LastIndexByte(rest, '.'); i >= 0 {
			s.name, s.namespace = rest[:i], rest[i+1:]
		}
	case len(parts) == 2: // a kind without namespaces
		s.kind, s.name = parts[0], parts[1]
	case len(parts) == 3:
		s.kind, s.namespace, s.name = parts[0], parts[1], parts[2]
	default:
		return s, fmt.Errorf("--suppress %s: write CODE, or CODE=KIND/NAMESPACE/NAME", text)
	}
	for _, pattern := range []string{s.kind, s.namespace, s.name} {
		if _, err := path.Match(pattern, ""); err != nil {
			return s, fmt.Errorf("--suppress %s: %q is not a pattern: write a name, * for any", text, pattern)
		}
	}
	return s, nil
}

// matches reports whether a finding is suppressed.
func (s suppression) matches(f analyze.Finding) bool {
	if s.code != f.Code {
		return false
	}
	for _, of := range [][2]string{{s.kind, f.Object.Kind}, {s.namespace, f.Object.Namespace}, {s.name, f.Object.Name}} {
		if ok, err := path.Match(strings.ToLower(of[0]), strings.ToLower(of[1])); err != nil || !ok {
			return false
		}
	}
	return true
}

// print prints findings, each with a line for its object, and what is wrong and the cure behind it.
func (f *analyzeFlags) print(out io.Writer, r analyze.Result) {
	counts := map[analyze.Severity]int{}
	for _, n := range r.Findings {
		counts[n.Severity]++
		_, _ = io.WriteString(out, n.Text(f.width())) // the terminal may be closed
	}
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) } // the terminal may be closed
	if len(r.Findings) > 0 {
		say("\n")
	}
	if r.Unlisted > 0 {
		say("%s not listed: correct the others first\n", count(r.Unlisted, "finding is", "findings are"))
	}
	for _, text := range r.Unchecked {
		say("%s", analyze.Wrap("Not checked: "+text+".", "", f.width()))
	}
	skipped := ""
	if r.Skipped > 0 {
		skipped = "; " + count(r.Skipped, "other", "others") + " skipped"
	}
	say("%s, %s, %d info in %s%s\n", count(counts[analyze.Error], "error", "errors"), count(counts[analyze.Warning], "warning", "warnings"), counts[analyze.Info], count(r.Objects, "object", "objects"), skipped)
}

// printCodes prints what each code means, a line for each.
func (f *analyzeFlags) printCodes(out io.Writer) error {
	list := []analyze.Explanation{}
	for _, c := range analyze.Checks() {
		list = append(list, analyze.Explanation{Code: c.Code, Name: c.Name, Severity: c.Severity, When: c.About, NotReported: c.Absent})
	}
	if !f.forReaders() {
		return f.write(out, list)
	}
	for _, e := range list {
		severity, text := string(e.Severity), e.When
		if e.NotReported != "" {
			severity, text = "-", "not reported: "+e.NotReported
		}
		if _, err := fmt.Fprintf(out, "%-7s  %-7s  %s: %s\n", e.Code, severity, e.Name, text); err != nil {
			return err
		}
	}
	return nil
}
