// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshsettings

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is what was read of the mesh config or of the networks.
type document struct {
	from string // file or ConfigMap
	text []byte
}

// place returns where a field is written, as "file:line": in the last document
// that has it. Without such a document it returns where the last one is from.
func place(docs []document, path string) string {
	for i := len(docs) - 1; i >= 0; i-- {
		var root yaml.Node
		if yaml.Unmarshal(docs[i].text, &root) != nil || len(root.Content) == 0 {
			continue
		}
		if line := lineOf(root.Content[0], path); line > 0 {
			return docs[i].from + ":" + strconv.Itoa(line)
		}
	}
	return lastOf(docs)
}

// lastOf returns where the last document is from; "" without any.
func lastOf(docs []document) string {
	if len(docs) == 0 {
		return ""
	}
	return docs[len(docs)-1].from
}

// lineOf returns the line of a field below a node, 0 without one. The path has the
// form of [meshconfig.Unknown]; the names of map entries in it may have dots.
func lineOf(n *yaml.Node, path string) int {
	switch n.Kind {
	case yaml.AliasNode:
		return lineOf(n.Alias, path)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			if line := lineOf(item, path); line > 0 {
				return line
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if fold(key.Value) == fold(path) {
				return key.Line
			}
			rest, ok := strings.CutPrefix(path, key.Value+".")
			if !ok {
				rest, ok = strings.CutPrefix(path, key.Value+"[].")
			}
			if !ok {
				continue
			}
			if line := lineOf(value, rest); line > 0 {
				return line
			}
		}
	}
	return 0
}

// fold returns the name of a field without what spellings differ in.
func fold(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }
