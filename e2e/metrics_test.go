// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

//go:generate go test -run ^TestMetricsDocument$ . -update

var update = flag.Bool("update", false, "write generated files")

// metricName is what the names of our metrics look like.
const metricName = `(?:istio_agent|outrigger_agent|outrigger_control|istio_cni|pilot|citadel|galley|sidecar_injection|auto_registration)_[a-z0-9_]+|istio_build`

// TestMetricsDocument compares docs/reference/metrics.md with the code: the tables between its
// markers are generated, all else is written by hand.
func TestMetricsDocument(t *testing.T) {
	t.Parallel()
	metrics, text := codeMetrics(t)
	checkMetrics(t, metrics, text)
	file := filepath.Join(root, "docs", "reference", "metrics.md")
	doc := document(t, "docs", "reference", "metrics.md")
	want := doc
	for _, program := range []string{"outrigger-agent", "outrigger-cni", "outrigger-control"} {
		begin, end := "<!-- "+program+": made by make generate -->\n", "<!-- end -->\n"
		head, rest, found := strings.Cut(want, begin)
		_, tail, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s has no lines %q and %q", file, begin, end)
		}
		want = head + begin + metricTable(metrics, program) + end + tail
	}
	if *update && want != doc {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		doc = want
	}
	if doc != want {
		t.Errorf("%s differs from the code: run make generate", file)
	}
	checkLabelValues(t, metrics, doc)
}

// codeMetrics returns the metrics of all programs, and the source text that contains them.
func codeMetrics(t *testing.T) (metrics []metric, text string) {
	t.Helper()
	var code strings.Builder
	packages := map[string][]source{}
	for _, s := range sources(t) {
		if !s.isTest() && !below(s.path, "e2e", "bootstrap", "examples") {
			code.Write(s.text)
			packages[filepath.Dir(s.path)] = append(packages[filepath.Dir(s.path)], s)
		}
	}
	for dir, files := range packages {
		found, err := readMetrics(files)
		if err != nil {
			t.Fatalf("%s: %v: write it so that e2e/metrics_read_test.go can follow", dir, err)
		}
		metrics = append(metrics, found...)
	}
	slices.SortFunc(metrics, func(a, b metric) int { return strings.Compare(a.part+" "+a.name, b.part+" "+b.name) })
	return metrics, code.String()
}

var goodHelp = regexp.MustCompile(`^(?:[A-Z1]|xDS )[^\n|]+\.$`)

// checkMetrics checks that no metric is missing or duplicate, and that each has a description.
func checkMetrics(t *testing.T, metrics []metric, text string) {
	t.Helper()
	var names []string
	of := map[string]bool{} // programs and their metrics
	for _, m := range metrics {
		if of[m.program()+" "+m.name] {
			t.Errorf("%s is made twice", m.name)
		}
		of[m.program()+" "+m.name] = true
		names = append(names, m.name)
		if !goodHelp.MatchString(m.help) || len(strings.Fields(m.help)) < 3 {
			t.Errorf("the Help of %s is not a sentence: %q", m.name, m.help)
		}
		if !regexp.MustCompile("^(?:" + metricName + ")$").MatchString(m.name) {
			t.Errorf("%s is not a name as they should be", m.name)
		}
	}
	inCode := all(regexp.MustCompile(`"(`+metricName+`)"`), text)
	if len(inCode) < 50 {
		t.Fatalf("only %d metrics were found in the code", len(inCode))
	}
	for _, name := range difference(inCode, names) {
		t.Errorf("%s is in the code, but no metric of this name was found: is it made in another way than the others?", name)
	}
}

// program returns the program that makes a metric.
func (m metric) program() string {
	switch {
	case below(m.part, "controlplane", "cmd/outrigger-control"):
		return "outrigger-control"
	case below(m.part, "cni"):
		return "outrigger-cni"
	}
	return "outrigger-agent"
}

// metricTable is the table of one program.
func metricTable(metrics []metric, program string) string {
	var b strings.Builder
	b.WriteString("| name | type | labels | part | meaning |\n|---|---|---|---|---|\n")
	for _, m := range metrics {
		if m.program() != program {
			continue
		}
		meaning := m.help
		if m.buckets != "" {
			meaning += " Buckets: " + m.buckets + "."
		}
		labels := slices.Clone(m.constant)
		for _, label := range m.labels {
			labels = append(labels, "`"+label+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` | %s |\n", m.name, m.kind, strings.Join(labels, ", "), m.part, meaning)
	}
	return b.String()
}

// checkLabelValues checks that the table of values has each label of each metric, and no others.
func checkLabelValues(t *testing.T, metrics []metric, doc string) {
	t.Helper()
	_, section, _ := strings.Cut(doc, "\n## Values of labels\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var listed, made []string
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		quoted := regexp.MustCompile("`([a-z0-9_]+)`")
		for _, name := range all(quoted, cells[2]) {
			for _, label := range all(quoted, cells[1]) {
				listed = append(listed, name+"{"+label+"}")
			}
		}
	}
	for _, m := range metrics {
		for _, label := range m.labels {
			made = append(made, m.name+"{"+label+"}")
		}
	}
	for _, entry := range difference(made, listed) {
		t.Errorf("docs/reference/metrics.md does not say which values %s has: add it to Values of labels", entry)
	}
	for _, entry := range difference(listed, made) {
		t.Errorf("docs/reference/metrics.md says which values %s has, which nothing makes", entry)
	}
}
