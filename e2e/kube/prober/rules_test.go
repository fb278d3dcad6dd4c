// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package prober

import (
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// TestRules reads the alerts with the code of Prometheus. Each metric that they name is in the list
// of metrics.
func TestRules(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_0-9]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(document), -1) {
		kinds[row[1]] = row[2]
	}
	promql := parser.NewParser(parser.Options{})
	groups, errs := rulefmt.ParseFile("../../../packaging/prometheus/outrigger.rules.yaml", false, model.UTF8Validation, promql, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	names, metrics := map[string]bool{}, 0
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if names[rule.Alert] || rule.Alert == "" || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" || rule.Annotations["cure"] == "" {
				t.Errorf("alert %q needs a name of its own, a severity, a summary and a cure", rule.Alert)
			}
			names[rule.Alert] = true
			expr, err := promql.ParseExpr(rule.Expr)
			if err != nil {
				t.Fatal(err)
			}
			parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
				selector, ok := node.(*parser.VectorSelector)
				if !ok {
					return nil
				}
				metrics++
				name, kind := selector.Name, "histogram"
				if bare, found := strings.CutSuffix(name, "_bucket"); found {
					name = bare
				} else if kind = kinds[name]; kind == "histogram" {
					t.Errorf("alert %s reads the histogram %s without _bucket", rule.Alert, name)
				}
				if kinds[name] != kind || kind == "" {
					t.Errorf("alert %s reads %s, which docs/reference/metrics.md does not have", rule.Alert, selector.Name)
				}
				return nil
			})
		}
	}
	if metrics < 15 {
		t.Errorf("the alerts read %d metrics", metrics)
	}
}
