// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// errNotFound means that no document of a file is that of an object.
var errNotFound = errors.New("the file does not hold it")

// editObject gives the text of a file in which the document of an object is
// another one, or gone when doc is nil. Other documents stay byte for byte; of
// the document itself, comments before and behind it stay, but not those
// before one that goes. An item of a list is replaced within the list, which
// is then written anew.
func editObject(data []byte, key model.Key, doc []byte) ([]byte, error) {
	start := 0
	for c := range splitDocuments(data) {
		before := data[:start]
		start += len(c.text)
		at, items, err := c.find(key)
		if errors.Is(err, errNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", c.base+1, err)
		}
		head, body, tail := c.parts()
		var text []byte
		switch {
		case at >= 0 && (doc != nil || items > 1):
			if text, err = editItem(body, at, doc); err != nil {
				return nil, fmt.Errorf("line %d: %w", c.base+1, err)
			}
			text = slices.Concat(head, text, tail)
		case doc != nil:
			text = slices.Concat(head, doc, tail)
		case len(tail) > 0:
			text = slices.Concat(c.marker(), tail)
		}
		return slices.Concat(before, text, data[start:]), nil
	}
	return nil, errNotFound
}

// find says where a chunk holds an object: as its only document, then item is
// -1, or as an item of a list with some items.
func (c chunk) find(key model.Key) (item, items int, err error) {
	docs, _ := c.parse(&parseWork{})
	for _, doc := range docs {
		list := listItems(doc)
		at := slices.IndexFunc(list, func(n *yaml.Node) bool { return nodeKey(n) == key })
		if at < 0 && (list != nil || nodeKey(doc) != key) {
			continue
		}
		if len(docs) > 1 {
			return 0, 0, errors.New("several documents stand here without a line of three dashes between them")
		}
		return at, len(list), nil
	}
	return 0, 0, errNotFound
}

// listItems gives the objects of a List document, nil for other documents.
func listItems(doc *yaml.Node) []*yaml.Node {
	kind, items := "", (*yaml.Node)(nil)
	pairs(doc, func(key, value *yaml.Node) {
		switch key.Value {
		case "kind":
			kind = value.Value
		case "items":
			items = value
		}
	})
	if items == nil || items.Kind != yaml.SequenceNode || !strings.HasSuffix(kind, "List") {
		return nil
	}
	return items.Content
}

// nodeKey gives the key of an object, empty when it has none.
func nodeKey(n *yaml.Node) model.Key {
	if n.Kind != yaml.MappingNode {
		return model.Key{}
	}
	b := &builder{}
	h := b.head(n)
	schema, ok := SchemaFor(h.apiVersion, h.kind)
	if !ok {
		return model.Key{}
	}
	m := b.metadata(h.metadata, n, schema.Cluster, DefaultNamespace)
	if m.name == "" {
		return model.Key{}
	}
	return model.Key{Kind: schema.Kind, Namespace: m.namespace, Name: m.name}
}

// marker gives the line of three dashes that begins a chunk, if it has one.
func (c chunk) marker() []byte {
	line, _, _ := bytes.Cut(c.text, []byte("\n"))
	if !startsDocument(line) {
		return nil
	}
	if rest := bytes.TrimSpace(line[len("---"):]); len(rest) > 0 && rest[0] != '#' {
		return []byte("---\n") // the document begins on the line
	}
	return slices.Concat(line, []byte("\n"))
}

// parts cuts a chunk into what stands before its content, with the marker, the
// content, and the comments behind it.
func (c chunk) parts() (head, body, tail []byte) {
	head, body = c.marker(), c.text
	if startsDocument(body) {
		line, rest, _ := bytes.Cut(body, []byte("\n"))
		if len(head) == len(line)+1 {
			body = rest
		} else {
			body = body[len("---"):]
		}
	}
	for line := range bytes.Lines(body) {
		if !isComment(line) {
			break
		}
		head = append(head, line...)
		body = body[len(line):]
	}
	tail = trailingComments(body)
	return head, body[:len(body)-len(tail)], tail
}

// trailingComments gives the lines from the first comment on that has only
// comments and empty lines behind it. Comments begin at the start of a line
// here: others may be text.
func trailingComments(text []byte) []byte {
	at, start := 0, -1
	for line := range bytes.Lines(text) {
		switch {
		case line[0] == '#' && start < 0:
			start = at
		case line[0] != '#' && len(bytes.TrimSpace(line)) > 0:
			start = -1
		}
		at += len(line)
	}
	if start < 0 {
		return nil
	}
	return text[start:]
}

func isComment(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) == 0 || line[0] == '#'
}

// editItem gives the text of a list with one item replaced or removed.
func editItem(text []byte, at int, doc []byte) ([]byte, error) {
	var list, item yaml.Node
	if err := yaml.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	var items *yaml.Node
	pairs(list.Content[0], func(key, value *yaml.Node) {
		if key.Value == "items" {
			items = value
		}
	})
	if items == nil || items.Kind != yaml.SequenceNode || at >= len(items.Content) {
		return nil, errors.New("this list is written with aliases")
	}
	if doc == nil {
		items.Content = slices.Delete(items.Content, at, at+1)
	} else {
		if err := yaml.Unmarshal(doc, &item); err != nil {
			return nil, err
		}
		was := items.Content[at]
		items.Content[at] = item.Content[0]
		items.Content[at].HeadComment, items.Content[at].FootComment = was.HeadComment, was.FootComment
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err := e.Encode(&list)
	return b.Bytes(), errors.Join(err, e.Close())
}

// onlyMarkers reports whether a file holds nothing that a person would miss.
func onlyMarkers(data []byte) bool {
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 && string(line) != "---" {
			return false
		}
	}
	return true
}

// checkEdit says why a change of a file is not just that of one object; there
// tells whether the object is meant to be in it.
func checkEdit(before, after content, key model.Key, there bool) error {
	faults := func(c content) (n int) {
		for _, p := range c.problems {
			if !p.Warning && p.Object != key {
				n++
			}
		}
		return n
	}
	if faults(before) != faults(after) {
		return fmt.Errorf("it would have %d problems instead of %d", faults(after), faults(before))
	}
	now := map[model.Key]string{}
	for _, c := range after.objects {
		now[c.Key] = c.ResourceVersion
	}
	others := 0
	for _, c := range before.objects {
		if c.Key == key {
			continue
		}
		others++
		if now[c.Key] != c.ResourceVersion {
			return fmt.Errorf("%s would change", c.Key)
		}
	}
	_, found := now[key]
	delete(now, key)
	if len(now) != others {
		return errors.New("other objects would appear")
	}
	if found != there {
		return fmt.Errorf("the file holds it: %v, when it should be %v", found, there)
	}
	return nil
}
