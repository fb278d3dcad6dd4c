// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package edit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// errNotFound means that no document of a file is that of an object.
var errNotFound = errors.New("the file does not hold it")

// Object gives the text of a file in which the document of an object is
// another one, or gone when doc is nil. Other documents stay byte for byte; of
// the document itself, comments before and behind it stay, but not those
// before one that goes. An item of a list is replaced within the list, which
// is then written anew.
func Object(data []byte, key model.Key, doc []byte) ([]byte, error) {
	start := 0
	for c := range codec.Documents(data) {
		before := data[:start]
		start += len(c.Text)
		at, items, err := find(c, key)
		if errors.Is(err, errNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", c.Base+1, err)
		}
		head, body, tail := parts(c)
		var text []byte
		switch {
		case at >= 0 && (doc != nil || items > 1):
			if text, err = editItem(body, at, doc); err != nil {
				return nil, fmt.Errorf("line %d: %w", c.Base+1, err)
			}
			text = slices.Concat(head, text, tail)
		case doc != nil:
			text = slices.Concat(head, doc, tail)
		case len(tail) > 0:
			text = slices.Concat(marker(c), tail)
		}
		return slices.Concat(before, text, data[start:]), nil
	}
	return nil, errNotFound
}

// find says where a chunk holds an object: as its only document, then item is
// -1, or as an item of a list with some items.
func find(c codec.Document, key model.Key) (item, items int, err error) {
	docs := c.Nodes()
	for _, doc := range docs {
		list := listItems(doc)
		at := slices.IndexFunc(list, func(n *yaml.Node) bool { return codec.KeyOf(n) == key })
		if at < 0 && (list != nil || codec.KeyOf(doc) != key) {
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
	codec.Pairs(doc, func(key, value *yaml.Node) {
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

// marker gives the line of three dashes that begins a chunk, if it has one.
func marker(c codec.Document) []byte {
	line, _, _ := bytes.Cut(c.Text, []byte("\n"))
	if !codec.StartsDocument(line) {
		return nil
	}
	if rest := bytes.TrimSpace(line[len("---"):]); len(rest) > 0 && rest[0] != '#' {
		return []byte("---\n") // the document begins on the line
	}
	return slices.Concat(line, []byte("\n"))
}

// parts cuts a chunk into what stands before its content, with the marker, the
// content, and the comments behind it.
func parts(c codec.Document) (head, body, tail []byte) {
	head, body = marker(c), c.Text
	if codec.StartsDocument(body) {
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
	codec.Pairs(list.Content[0], func(key, value *yaml.Node) {
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
