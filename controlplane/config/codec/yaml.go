// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"go.yaml.in/yaml/v3"
)

const (
	// maxDepth bounds how deep YAML may nest. No kind comes near it.
	maxDepth = 100
	// maxAliased bounds what the aliases of one document expand to, in bytes, so
	// that a few lines cannot fill the memory.
	maxAliased = 2 << 20
	// nodeSize is what a node counts for in addition to its text.
	nodeSize = 20
)

// fault is one thing that is wrong at one line of the file.
type fault struct {
	line int
	text string
}

// Document is a part of a file that parses on its own.
type Document struct {
	// Base is the number of lines in front of it.
	Base int
	Text []byte
}

// Documents cuts a file at the lines that begin a YAML document, so
// that a syntax error in one document does not hide the others. A "---" at
// the start of a line is a document marker wherever it stands.
func Documents(data []byte) iter.Seq[Document] {
	return func(yield func(Document) bool) {
		start, base, line := 0, 0, 0
		for at := 0; at < len(data); line++ {
			end := len(data)
			if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
				end = at + i + 1
			}
			if at > start && StartsDocument(data[at:end]) {
				if !yield(Document{Base: base, Text: data[start:at]}) {
					return
				}
				start, base = at, line
			}
			at = end
		}
		yield(Document{Base: base, Text: data[start:]})
	}
}

// countDocuments returns how many documents of a file are not blank.
func countDocuments(data []byte) (n int) {
	for c := range Documents(data) {
		if !c.blank() {
			n++
		}
	}
	return n
}

// marks counts the characters that may begin a node: no text has more nodes
// than twice as many.
func (c Document) marks() (n int) {
	for _, mark := range []string{",", "[", "{", ":", "-", "?", "\n"} {
		n += bytes.Count(c.Text, []byte(mark))
	}
	return n
}

func StartsDocument(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0)
}

// blank reports whether a chunk holds only comments, directives and markers.
func (c Document) blank() bool {
	for line := range bytes.Lines(c.Text) {
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("---")))
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}

// parseWork is the state that the chunks of one file share.
type parseWork struct {
	// search is what is left for the search for broken lines, in bytes.
	search int
	// unlisted counts faults that are not listed.
	unlisted int
}

// parse returns the documents of a chunk. Line numbers in the nodes are those
// of the whole file, aliases and merge keys are resolved, and keys are
// unique.
func (c Document) parse(w *parseWork) ([]*yaml.Node, []fault) {
	if c.blank() {
		return nil, nil
	}
	if len(c.Text) > maxMarks && c.marks() > maxMarks {
		return nil, []fault{{c.Base + 1, fmt.Sprintf("the document has more than %d items, fields and lines: split it into several documents", maxMarks)}}
	}
	var (
		docs   []*yaml.Node
		faults []fault
	)
	add := func(root *yaml.Node) {
		r := &resolver{base: c.Base, sizes: map[*yaml.Node]int{}}
		r.resolve(root, 0)
		faults = append(faults, r.faults...)
		w.unlisted += r.unlisted
		if len(r.faults) == 0 && !isNull(root) {
			docs = append(docs, root)
		}
	}
	if n := jsonNode(c.Text); n != nil {
		add(n)
		return docs, faults
	}
	dec := yaml.NewDecoder(bytes.NewReader(c.Text))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs, faults
		}
		if err != nil {
			return docs, append(faults, c.syntaxFault(err, w))
		}
		if len(doc.Content) > 0 {
			add(doc.Content[0])
		}
	}
}

// Nodes returns the documents of a chunk that can be read, like [Decode] reads
// them.
func (c Document) Nodes() []*yaml.Node {
	docs, _ := c.parse(&parseWork{})
	return docs
}

var syntaxLine = regexp.MustCompile("^line ([0-9]+): (.*)$")

// syntaxFault rewrites an error of the YAML parser, whose line is often that
// of the mapping around the mistake.
func (c Document) syntaxFault(err error, w *parseWork) fault {
	line, text := 1, strings.TrimPrefix(err.Error(), "yaml: ")
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			line, text = n, m[2]
		}
	}
	if n := c.brokenLine(w); n > 0 {
		line = n
	}
	if strings.Contains(text, "cannot start any token") {
		text += " (is it indented with a tab? YAML requires spaces)"
	}
	return fault{line: c.Base + line, text: "this is not YAML: " + text}
}

// mostSearched bounds the search for the broken lines of a file, which parses a
// document once for each of its lines; in bytes.
const mostSearched = 2 << 20

// brokenLine returns the line behind the longest part that is YAML, 0 when
// there is not enough left of w.search to find it.
func (c Document) brokenLine(w *parseWork) int {
	lines := bytes.SplitAfter(c.Text, []byte("\n"))
	if len(lines)*len(c.Text) > w.search {
		return 0
	}
	w.search -= len(lines) * len(c.Text)
	end := len(c.Text)
	for n := len(lines); n > 0; n-- {
		end -= len(lines[n-1])
		dec, err := yaml.NewDecoder(bytes.NewReader(c.Text[:end])), error(nil)
		for err == nil {
			var doc yaml.Node
			err = dec.Decode(&doc)
		}
		if errors.Is(err, io.EOF) {
			return n
		}
	}
	return 0
}

// resolver replaces aliases and merge keys in a node tree, makes the line
// numbers those of the file, and refuses what cannot be read safely.
type resolver struct {
	base   int
	faults []fault
	// sizes holds the expanded size of each anchored node, 0 while it is
	// being resolved.
	sizes   map[*yaml.Node]int
	aliased int
	stopped bool
	// unlisted counts the faults that came after MaxListed.
	unlisted int
}

func (r *resolver) errorf(n *yaml.Node, format string, args ...any) {
	if len(r.faults) >= field.MaxListed {
		r.unlisted++
		return
	}
	r.faults = append(r.faults, fault{line: n.Line, text: fmt.Sprintf(format, args...)})
}

// resolve returns the number of bytes that n expands to.
func (r *resolver) resolve(n *yaml.Node, depth int) int {
	n.Line += r.base
	if depth > maxDepth {
		r.errorf(n, "the YAML nests deeper than %d levels", maxDepth)
		r.stopped = true
	}
	if r.stopped {
		return 1
	}
	if n.Anchor != "" {
		r.sizes[n] = 0
	}
	size := nodeSize + len(n.Value)
	for i, child := range n.Content {
		if child.Kind == yaml.AliasNode {
			n.Content[i] = r.alias(child)
			size += r.sizes[child.Alias]
			continue
		}
		size += r.resolve(child, depth+1)
	}
	if n.Kind == yaml.MappingNode && !r.stopped {
		r.mapping(n)
	}
	if n.Anchor != "" {
		r.sizes[n] = size
	}
	return size
}

// alias returns what an alias stands for.
func (r *resolver) alias(n *yaml.Node) *yaml.Node {
	n.Line += r.base
	size := r.sizes[n.Alias]
	r.aliased += size
	switch {
	case r.stopped:
	case size == 0:
		r.errorf(n, "the alias *%s refers to a node that contains it", n.Value)
		r.stopped = true
	case r.aliased > maxAliased:
		r.errorf(n, "the aliases of this document expand to more than %d MiB: write the text out", maxAliased>>20)
		r.stopped = true
	default:
		return n.Alias
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: n.Line}
}

// mapping refuses duplicate keys and puts merged keys ("<<") in place: keys
// that are written out win over merged ones.
func (r *resolver) mapping(n *yaml.Node) {
	seen := make(map[string]int, len(n.Content)/2)
	var content, merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			r.errorf(key, "a key must be a plain word, not a list or mapping")
			continue
		}
		if key.ShortTag() == "!!merge" {
			merged = append(merged, value)
			continue
		}
		if first, ok := seen[key.Value]; ok {
			r.errorf(key, "the key %s is a duplicate (first on line %d): remove one of them", field.Quote(key.Value), first)
			continue
		}
		seen[key.Value] = key.Line
		content = append(content, key, value)
	}
	for len(merged) > 0 {
		m := merged[0]
		merged = merged[1:]
		switch m.Kind {
		case yaml.SequenceNode:
			merged = append(merged, m.Content...)
		case yaml.MappingNode:
			for i := 0; i+1 < len(m.Content); i += 2 {
				if _, ok := seen[m.Content[i].Value]; !ok {
					seen[m.Content[i].Value] = m.Content[i].Line
					content = append(content, m.Content[i], m.Content[i+1])
				}
			}
		default:
			r.errorf(m, "<< must name a mapping or a list of mappings")
		}
	}
	n.Content = content
}

// Pairs calls fn for each key and value of a mapping.
func Pairs(n *yaml.Node, fn func(key, value *yaml.Node)) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		fn(n.Content[i], n.Content[i+1])
	}
}

func isNull(n *yaml.Node) bool {
	return n.Kind == 0 || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// shape names what a node is, for messages.
func shape(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "the number " + field.Clip(n.Value, field.MaxKeyText)
	case "!!bool":
		return "the boolean " + n.Value
	case "!!null":
		return "empty"
	}
	return "the text " + field.Quote(n.Value)
}
