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
var errNotFound = errors.New("the file does not contain it")

// Fields returns the text of a file in which an object says what now says. Was
// and now are encodings of the object as it is in the file and as it is meant to
// be: only what differs between them changes, and comments, order and spelling of
// everything else stay. It fails if the text does not allow that, for example
// because of aliases; then [Object] replaces the whole document. The caller checks
// that the result holds the object that now is.
func Fields(data []byte, key model.Key, was, now []byte) ([]byte, error) {
	return change(data, key, func(c codec.Document, at, _ int) ([]byte, error) {
		head, body, tail := parts(c)
		text, err := merge(body, at, was, now)
		return slices.Concat(head, text, tail), err
	})
}

// Object returns the text of a file in which the document of an object is doc,
// or is gone if doc is nil. Other documents stay byte for byte. Comments before
// and behind the document stay, except those before one that goes.
func Object(data []byte, key model.Key, doc []byte) ([]byte, error) {
	return change(data, key, func(c codec.Document, at, items int) ([]byte, error) {
		head, body, tail := parts(c)
		switch {
		case at >= 0 && (doc != nil || items > 1):
			text, err := editItem(body, at, doc)
			return slices.Concat(head, text, tail), err
		case doc != nil:
			return slices.Concat(head, doc, tail), nil
		case len(tail) > 0:
			return slices.Concat(marker(c), tail), nil
		}
		return nil, nil
	})
}

// change replaces the document that holds an object. To gets the document, the
// item of the list that the object is, and the number of items.
func change(data []byte, key model.Key, to func(c codec.Document, at, items int) ([]byte, error)) ([]byte, error) {
	start := 0
	for c := range codec.Documents(data) {
		before := data[:start]
		start += len(c.Text)
		at, items, err := find(c, key)
		if errors.Is(err, errNotFound) {
			continue
		}
		var text []byte
		if err == nil {
			text, err = to(c, at, items)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", c.Base+1, err)
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
			return 0, 0, errors.New("there are several documents without a line of three dashes between them")
		}
		return at, len(list), nil
	}
	return 0, 0, errNotFound
}

// listItems returns the objects of a List document, nil for other documents.
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

// marker returns the line of three dashes that begins a chunk, if it has one.
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

// spliceItem is editItem for a block: the lines of other items stay as they are.
func spliceItem(text []byte, list, items *yaml.Node, at int, doc []byte) ([]byte, error) {
	if items.Style&yaml.FlowStyle != 0 || hasAliases(list) {
		return nil, errUneven
	}
	want := slices.Delete(slices.Clone(items.Content), at, at+1)
	m := newMerger(text)
	var item yaml.Node
	switch {
	case doc != nil:
		if err := yaml.Unmarshal(doc, &item); err != nil {
			return nil, err
		}
		want = slices.Insert(want, at, item.Content[0])
		if err := m.item(items, at, item.Content[0]); err != nil {
			return nil, err
		}
	default:
		start, end := m.block(items.Content[at].Line, items.Column)
		m.out = append(m.out, splice{start, end, ""})
	}
	out, err := m.result()
	if err != nil {
		return nil, err
	}
	var after yaml.Node
	if err := yaml.Unmarshal(out, &after); err != nil {
		return nil, err
	}
	if now := exact(after.Content[0], "items"); now == nil || !slices.EqualFunc(now.Content, want, equal) {
		return nil, errUneven
	}
	return out, nil
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

// trailingComments returns the lines from the first comment on that has only
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

// editItem returns the text of a list with one item replaced or removed. If the
// list is not written as a block, all of it is written again.
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
	if text, err := spliceItem(text, &list, items, at, doc); err == nil {
		return text, nil
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
