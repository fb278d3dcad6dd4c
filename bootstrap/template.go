// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/outrigger-mesh/outrigger/internal/aliases"
	"github.com/outrigger-mesh/outrigger/internal/template"
)

// Template is a user's template of the bootstrap.
type Template struct {
	// Path is the file of the template. The output is YAML if the name ends in .yaml or .yaml.tmpl,
	// and JSON otherwise.
	Path string
	Text []byte
}

// Output returns the name of the file for Envoy, which detects the format by the extension.
func (t Template) Output() string {
	if t.yaml() {
		return "envoy-rev.yaml"
	}
	return "envoy-rev.json"
}

func (t Template) yaml() bool {
	return strings.HasSuffix(t.Path, ".yaml") || strings.HasSuffix(t.Path, ".yaml.tmpl")
}

// RenderTemplate executes a user's template with the parameters that Istio defines. The warnings
// are sentences.
func RenderTemplate(in Input, t Template) (doc []byte, warnings []string, err error) {
	params, err := templateParams(in, t.Text)
	if err != nil {
		return nil, nil, err
	}
	if doc, err = template.Render(t.Path, t.Text, params); err != nil {
		return nil, nil, err
	}
	if err := t.check(doc); err != nil {
		return nil, nil, err
	}
	return doc, append(StatsDoubts(in.Metadata), t.doubts(doc)...), nil
}

// check rejects output that Envoy could not parse.
func (t Template) check(doc []byte) error {
	const (
		cure = "check commas, quotes, and parameters that are not set"
		// Parsing YAML takes many times its size in memory. Longer documents are not checked here.
		longest = 1 << 20
	)
	if t.yaml() && len(doc) > longest {
		return nil
	}
	if t.yaml() {
		var value map[string]any
		err := aliases.Check(doc)
		if err == nil {
			err = yaml.Unmarshal(doc, &value)
		}
		if err != nil {
			return fmt.Errorf("template %s renders YAML that cannot be read: %w; %s", t.Path, err, cure)
		}
		if len(value) == 0 {
			return fmt.Errorf("template %s does not render a YAML mapping; it must be a bootstrap of Envoy", t.Path)
		}
		return nil
	}
	var value map[string]json.RawMessage
	err := json.Unmarshal(doc, &value)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		number, text := lineAt(doc, int(syntax.Offset)-1)
		return fmt.Errorf("template %s renders JSON that cannot be read: line %d of the output, %q: %w; %s", t.Path, number, text, err, cure)
	case err != nil || len(value) == 0:
		return fmt.Errorf("template %s does not render a JSON object; it must be a bootstrap of Envoy", t.Path)
	}
	return nil
}

// removed returns words in older bootstraps that stock Envoy does not support.
func removed() []struct{ word, what string } {
	return []struct{ word, what string }{
		{"envoy.tracers.opencensus", "the OpenCensus tracer: use envoy.tracers.opentelemetry"},
		{"envoy.tracers.lightstep", "the Lightstep tracer: use envoy.tracers.opentelemetry"},
		{"istio.workload.BootstrapExtension", "an extension that only Istio's own Envoy has: leave it out"},
		{"type.googleapis.com/envoy.api.v2.", "a type of version 2 of its API: use those of version 3"},
		{"type.googleapis.com/envoy.config.trace.v2", "a type of version 2 of its API: use those of version 3"},
		{"type.googleapis.com/envoy.config.metrics.v2", "a type of version 2 of its API: use those of version 3"},
		{"http_connection_manager.v2.", "a type of version 2 of its API: use those of version 3"},
	}
}

// doubts returns warnings about settings that Envoy will reject or that look forgotten.
func (t Template) doubts(doc []byte) []string {
	var sentences []string
	add := func(at int, format string, args ...any) {
		number, _ := lineAt(doc, at)
		sentences = append(sentences, fmt.Sprintf("template %s: line %d of its output ", t.Path, number)+fmt.Sprintf(format, args...))
	}
	if at := bytes.Index(doc, []byte("<no value>")); at >= 0 {
		add(at, "has <no value>: a parameter there has no value; test it with {{ if }} first, or check its spelling")
	}
	for _, r := range removed() {
		if at := bytes.Index(doc, []byte(r.word)); at >= 0 {
			add(at, "has %q, and Envoy 1.39 refuses %s", r.word, r.what)
		}
	}
	return sentences
}

// lineAt returns the line of a document that contains the byte at offset at: its number, from 1,
// and its beginning.
func lineAt(doc []byte, at int) (number int, text string) {
	const most = 120
	at = min(max(at, 0), len(doc))
	start := bytes.LastIndexByte(doc[:at], '\n') + 1
	line, _, _ := bytes.Cut(doc[start:], []byte("\n"))
	line = bytes.TrimSpace(line[:min(len(line), most)])
	return bytes.Count(doc[:at], []byte("\n")) + 1, strings.ToValidUTF8(string(line), "")
}
