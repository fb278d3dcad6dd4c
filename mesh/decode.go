// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/outrigger-mesh/outrigger/internal/aliases"
)

// decode parses a mesh file strictly: unknown and duplicate fields and values of the wrong type are
// problems. It does not set defaults.
func decode(data []byte) (*meshFile, []Problem) {
	if err := aliases.Check(data); err != nil {
		return nil, []Problem{syntaxProblem(err)}
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := d.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, []Problem{{Text: "the mesh file is empty: it needs a list of workloads"}}
		}
		return nil, []Problem{syntaxProblem(err)}
	}
	r := &reader{}
	var rest yaml.Node
	switch err := d.Decode(&rest); {
	case err == nil:
		r.add(rest.Line, "a second YAML document: a mesh file contains one, so remove the line ---")
	case !errors.Is(err, io.EOF):
		r.problems = append(r.problems, syntaxProblem(err))
	}
	m := &meshFile{lines: map[string]int{}}
	r.mesh(doc.Content[0], m)
	return m, r.problems
}

// yamlLine matches the line number in an error of the YAML parser.
var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)`)

func syntaxProblem(err error) Problem {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1]) // digits, according to the expression
		return Problem{Line: line, Text: "not valid YAML: " + m[2]}
	}
	return Problem{Text: "not valid YAML: " + err.Error()}
}

// reader walks a YAML tree and collects problems.
type reader struct{ problems []Problem }

func (r *reader) add(line int, format string, args ...any) {
	r.problems = append(r.problems, Problem{Line: line, Text: fmt.Sprintf(format, args...)})
}

// field defines how to read one field of an object.
type field struct {
	name string
	read func(n *yaml.Node)
}

func (r *reader) mesh(n *yaml.Node, m *meshFile) {
	r.object(n, "the mesh", []field{
		{"config", func(n *yaml.Node) { m.lines["config"] = n.Line; m.configDir = r.text(n, "config") }},
		{"trustDomain", func(n *yaml.Node) { m.lines["trustDomain"] = n.Line; m.trustDomain = r.text(n, "trustDomain") }},
		{"network", func(n *yaml.Node) { m.network = r.prefix(n) }},
		{"mesh", func(n *yaml.Node) {
			m.settings, m.settingLines = r.settings(n)
		}},
		{"workloads", func(n *yaml.Node) {
			r.list(n, "workloads", func(i int, n *yaml.Node) {
				m.workloads = append(m.workloads, r.workload(i, n))
			})
		}},
	})
}

func (r *reader) workload(i int, n *yaml.Node) *workload {
	w := &workload{line: n.Line, lines: map[string]int{}}
	where := fmt.Sprintf("workloads[%d]", i)
	if name := valueOf(n, "name"); name != nil && name.Value != "" {
		where = fmt.Sprintf("workload %q", name.Value)
	}
	w.where = where
	text := func(name string, to *string) field {
		return field{name, func(n *yaml.Node) { w.lines[name] = n.Line; *to = r.text(n, where+": "+name) }}
	}
	number := func(name string, to *int) field {
		return field{name, func(n *yaml.Node) { w.lines[name] = n.Line; *to = r.port(n, where+": "+name) }}
	}
	r.object(n, where, []field{
		text("name", &w.name),
		text("namespace", &w.namespace),
		text("service", &w.service),
		text("serviceAccount", &w.serviceAccount),
		{"labels", func(n *yaml.Node) {
			w.lines["labels"] = n.Line
			w.labels = map[string]string{}
			for _, v := range r.variables(n, where+": labels") {
				w.labels[v.name] = v.value
			}
		}},
		{"command", func(n *yaml.Node) {
			w.lines["command"] = n.Line
			if follow(n).Kind == yaml.SequenceNode {
				w.command = []string{}
			}
			r.list(n, where+": command", func(j int, n *yaml.Node) {
				w.command = append(w.command, r.text(n, fmt.Sprintf("%s: command[%d]", where, j)))
			})
		}},
		{"env", func(n *yaml.Node) { w.lines["env"] = n.Line; w.env = r.variables(n, where+": env") }},
		text("dir", &w.dir),
		number("port", &w.port),
		number("servicePort", &w.servicePort),
		text("protocol", &w.protocol),
		{"address", func(n *yaml.Node) { w.lines["address"] = n.Line; w.address = r.address(n, where) }},
		{"ready", func(n *yaml.Node) {
			r.object(n, where+": ready", []field{text("path", &w.readyPath)})
		}},
	})
	return w
}

// valueOf returns the value of a field, or nil.
func valueOf(n *yaml.Node, name string) *yaml.Node {
	n = follow(n)
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return follow(n.Content[i+1])
		}
	}
	return nil
}

// follow returns the node that an alias refers to.
func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// object reads a mapping with known fields.
func (r *reader) object(n *yaml.Node, where string, fields []field) {
	known := make(map[string]func(*yaml.Node), len(fields))
	names := make([]string, len(fields))
	for i, f := range fields {
		known[f.name], names[i] = f.read, f.name
	}
	r.pairs(n, where, func(k, v *yaml.Node) {
		if read, ok := known[k.Value]; ok {
			read(v)
			return
		}
		r.add(k.Line, "%s: unknown field %q; %s", where, k.Value, suggest(k.Value, names))
	})
}

// pairs calls f for each pair of a mapping and reports duplicate keys.
func (r *reader) pairs(n *yaml.Node, where string, f func(k, v *yaml.Node)) {
	n = follow(n)
	if n.Kind != yaml.MappingNode {
		r.add(n.Line, "%s: must be a mapping of fields, not %s", where, describe(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if line, ok := seen[k.Value]; ok {
			r.add(k.Line, "%s: field %q is a duplicate of that on line %d: remove one", where, k.Value, line)
			continue
		}
		seen[k.Value] = k.Line
		f(k, n.Content[i+1])
	}
}

func (r *reader) list(n *yaml.Node, where string, f func(i int, n *yaml.Node)) {
	n = follow(n)
	if n.Kind != yaml.SequenceNode {
		r.add(n.Line, "%s: must be a list, not %s", where, describe(n))
		return
	}
	for i, item := range n.Content {
		f(i, follow(item))
	}
}

// text reads a scalar as written: 1, true and "1" need no quotes.
func (r *reader) text(n *yaml.Node, where string) string {
	n = follow(n)
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		r.add(n.Line, "%s: must be a text, not %s", where, describe(n))
		return ""
	}
	return n.Value
}

func (r *reader) port(n *yaml.Node, where string) int {
	n = follow(n)
	p, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || p < 1 || p > 65535 {
		r.add(n.Line, "%s: must be a port from 1 to 65535, not %s", where, describe(n))
		return -1
	}
	return p
}

func (r *reader) address(n *yaml.Node, where string) netip.Addr {
	a, err := netip.ParseAddr(r.text(n, where+": address"))
	if err != nil || !a.Is4() || !a.IsLoopback() {
		r.add(n.Line, "%s: address: must be an address of 127.0.0.0/8, for example 127.1.0.9, not %s", where, describe(n))
		return netip.Addr{}
	}
	return a
}

func (r *reader) prefix(n *yaml.Node) netip.Prefix {
	p, err := netip.ParsePrefix(r.text(n, "network"))
	if err != nil || !p.Addr().Is4() || !p.Addr().IsLoopback() || p.Bits() < 8 || p.Bits() > 29 {
		r.add(n.Line, "network: must be a part of 127.0.0.0/8 between /8 and /29, for example 127.2.0.0/24, not %s", describe(n))
		return netip.Prefix{}
	}
	return p.Masked()
}

// variables reads a mapping of names to strings and keeps its order.
func (r *reader) variables(n *yaml.Node, where string) []variable {
	var vars []variable
	r.pairs(n, where, func(k, v *yaml.Node) {
		vars = append(vars, variable{k.Value, r.text(v, where+": "+k.Value)})
	})
	return vars
}

// settings reads the MeshConfig and the lines of its fields.
func (r *reader) settings(n *yaml.Node) (m map[string]any, lines map[string]int) {
	m = map[string]any{}
	if err := n.Decode(&m); err != nil {
		r.add(n.Line, "mesh: must be a mapping of fields of Istio's MeshConfig: %v", err)
		return nil, nil
	}
	if port := valueOf(n, proxyPortSetting); port != nil {
		delete(m, proxyPortSetting)
		if p := r.port(port, "mesh: "+proxyPortSetting); p > 0 {
			m[proxyPortSetting] = p
		}
	}
	return m, r.checkSettings(n, m)
}

// describe describes a value for an error message.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == "!!null":
		return "nothing"
	}
	return strconv.Quote(n.Value)
}
