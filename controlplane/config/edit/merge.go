// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package edit

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
)

// errUneven means that the text cannot be changed field by field.
var errUneven = errors.New("the text cannot be changed field by field")

// splice is one change of a text: the bytes from start to end become text.
type splice struct {
	start, end int
	text       string
}

// merger changes a text of YAML so that it says what another document says.
type merger struct {
	text  []byte
	lines []int // where each line begins, and the end of the text
	out   []splice
}

// merge returns body, which holds an object, with the differences between two
// encodings of the object, was and now. What does not differ stays byte for byte,
// with its comments. At is the item of the list that the object is; -1 if it is
// the whole document. The caller checks that the result means what now means.
func merge(body []byte, at int, was, now []byte) ([]byte, error) {
	var doc, before, after yaml.Node
	if err := errors.Join(yaml.Unmarshal(body, &doc), yaml.Unmarshal(was, &before), yaml.Unmarshal(now, &after)); err != nil {
		return nil, err
	}
	if doc.Kind != yaml.DocumentNode || hasAliases(&doc) {
		return nil, errUneven
	}
	root := doc.Content[0]
	if at >= 0 {
		items := exact(root, "items")
		if items == nil || items.Kind != yaml.SequenceNode || at >= len(items.Content) {
			return nil, errUneven
		}
		root = items.Content[at]
	}
	m := newMerger(body)
	if err := m.mapping(root, before.Content[0], after.Content[0]); err != nil {
		return nil, err
	}
	return m.result()
}

func newMerger(text []byte) *merger {
	m := &merger{text: text}
	start := 0
	for line := range bytes.Lines(text) {
		m.lines = append(m.lines, start)
		start += len(line)
	}
	m.lines = append(m.lines, start)
	return m
}

// result returns the text with all changes. New lines end like the others.
func (m *merger) result() ([]byte, error) {
	slices.SortStableFunc(m.out, func(a, b splice) int { return a.start - b.start })
	crlf := bytes.Contains(m.text, []byte("\r\n"))
	var b bytes.Buffer
	done := 0
	for _, s := range m.out {
		if s.start < done {
			return nil, errUneven
		}
		b.Write(m.text[done:s.start])
		if crlf {
			s.text = strings.ReplaceAll(s.text, "\n", "\r\n")
		}
		b.WriteString(s.text)
		done = s.end
	}
	b.Write(m.text[done:])
	return b.Bytes(), nil
}

func hasAliases(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Anchor != "" || n.Tag == "!!merge" || slices.ContainsFunc(n.Content, hasAliases)
}

// exact returns the value of a key; nil without it.
func exact(n *yaml.Node, name string) (v *yaml.Node) {
	codec.Pairs(n, func(key, value *yaml.Node) {
		if key.Value == name {
			v = value
		}
	})
	return v
}

// entry returns the key and the value of a name; nil without it. The spelling of
// the key may differ as that of a field of protobuf does: failoverPriority and
// failover_priority are the same.
func entry(n *yaml.Node, name string) (key, v *yaml.Node) {
	codec.Pairs(n, func(k, value *yaml.Node) {
		if k.Value == name || fold(k.Value) == fold(name) && (key == nil || key.Value != name) {
			key, v = k, value
		}
	})
	return key, v
}

func fold(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }

func equal(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.ShortTag() == b.ShortTag() && a.Value == b.Value && slices.EqualFunc(a.Content, b.Content, equal)
}

// change makes the value n of an entry, which was encoded as was, say now.
func (m *merger) change(key, n, was, now *yaml.Node) error {
	var err error
	switch {
	case equal(was, now):
		return nil
	case n.Kind == yaml.MappingNode && was.Kind == yaml.MappingNode && now.Kind == yaml.MappingNode && len(now.Content) > 0:
		err = m.attempt(func() error { return m.mapping(n, was, now) })
	case n.Kind == yaml.SequenceNode && was.Kind == yaml.SequenceNode && now.Kind == yaml.SequenceNode && len(n.Content) == len(was.Content) && len(now.Content) > 0:
		err = m.attempt(func() error { return m.sequence(n, was, now) })
	case n.Kind == yaml.ScalarNode && now.Kind == yaml.ScalarNode:
		err = m.scalar(n, now)
	default:
		err = errUneven
	}
	if !errors.Is(err, errUneven) {
		return err
	}
	if n.Style&yaml.FlowStyle != 0 && now.Kind != yaml.ScalarNode {
		return m.flow(n, now)
	}
	if key == nil {
		return errUneven
	}
	return m.whole(key, now)
}

// attempt runs a change and takes it back if it fails.
func (m *merger) attempt(change func() error) error {
	n := len(m.out)
	err := change()
	if err != nil {
		m.out = m.out[:n]
	}
	return err
}

// mapping changes the entries that differ.
func (m *merger) mapping(n, was, now *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return errUneven
	}
	var added []*yaml.Node
	for i := 0; i+1 < len(now.Content); i += 2 {
		name, v := now.Content[i], now.Content[i+1]
		before := exact(was, name.Value)
		if before != nil && equal(before, v) {
			continue
		}
		key, old := entry(n, name.Value)
		switch {
		case old == nil:
			added = append(added, name, v)
		case before == nil:
			before = &yaml.Node{}
			fallthrough
		default:
			if n.Style&yaml.FlowStyle != 0 {
				key = nil
			}
			if err := m.change(key, old, before, v); err != nil {
				return err
			}
		}
	}
	for i := 0; i+1 < len(was.Content); i += 2 {
		name := was.Content[i].Value
		if exact(now, name) != nil {
			continue
		}
		if key, old := entry(n, name); old != nil {
			if err := m.remove(n, key); err != nil {
				return err
			}
		}
	}
	if len(added) == 0 {
		return nil
	}
	return m.insert(n, added)
}

// sequence changes the items that differ: equal ones at both ends stay, those
// between them are changed in pairs, and the rest is added or removed.
func (m *merger) sequence(n, was, now *yaml.Node) error {
	a, b := was.Content, now.Content
	first := 0
	for first < len(a) && first < len(b) && equal(a[first], b[first]) {
		first++
	}
	last := 0
	for last < len(a)-first && last < len(b)-first && equal(a[len(a)-1-last], b[len(b)-1-last]) {
		last++
	}
	old, next := len(a)-last, len(b)-last
	both := min(old, next)
	if old != next && n.Style&yaml.FlowStyle != 0 {
		return errUneven
	}
	for i := first; i < both; i++ {
		if err := m.change(nil, n.Content[i], a[i], b[i]); errors.Is(err, errUneven) && n.Style&yaml.FlowStyle == 0 {
			if err := m.item(n, i, b[i]); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	for i := both; i < old; i++ {
		start, end := m.block(n.Content[i].Line, n.Column)
		m.out = append(m.out, splice{start, end, ""})
	}
	switch {
	case next <= old:
		return nil
	case old == 0:
		return errUneven // nothing shows where the first item begins
	}
	var text strings.Builder
	for _, item := range b[old:next] {
		s, err := encodeItem(item, n.Column-1)
		if err != nil {
			return err
		}
		text.WriteString(s)
	}
	_, end := m.block(n.Content[old-1].Line, n.Column)
	m.add(end, text.String())
	return nil
}

// item writes an item of a block sequence again.
func (m *merger) item(n *yaml.Node, i int, now *yaml.Node) error {
	start, end := m.block(n.Content[i].Line, n.Column)
	text, err := encodeItem(now, n.Column-1)
	if err != nil {
		return err
	}
	m.out = append(m.out, splice{start, end, text})
	return nil
}

// add puts lines at the end of a block.
func (m *merger) add(at int, text string) {
	if at > 0 && m.text[at-1] != '\n' {
		text = "\n" + text
	}
	m.out = append(m.out, splice{at, at, text})
}

// remove takes an entry out of a block mapping. The first entry of an item of a
// list shares its line with the dash, and the last one left would leave nothing.
func (m *merger) remove(n, key *yaml.Node) error {
	if n.Style&yaml.FlowStyle != 0 || len(n.Content) == 2 || !m.startsLine(key) {
		return errUneven
	}
	start, end := m.block(key.Line, key.Column)
	m.out = append(m.out, splice{start, end, ""})
	return nil
}

// insert adds entries at the end of a block mapping.
func (m *merger) insert(n *yaml.Node, pairs []*yaml.Node) error {
	if n.Style&yaml.FlowStyle != 0 || len(n.Content) == 0 {
		return errUneven
	}
	last := n.Content[len(n.Content)-2]
	text, err := encode(&yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: pairs}, n.Content[0].Column-1)
	if err != nil {
		return err
	}
	_, end := m.block(last.Line, last.Column)
	m.add(end, text)
	return nil
}

// whole writes the value of an entry of a block mapping again.
func (m *merger) whole(key, now *yaml.Node) error {
	text, err := encode(&yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{
		{Kind: yaml.ScalarNode, Tag: key.Tag, Value: key.Value, Style: key.Style}, now,
	}}, key.Column-1)
	if err != nil {
		return err
	}
	_, end := m.block(key.Line, key.Column)
	m.out = append(m.out, splice{m.offset(key), end, text[key.Column-1:]})
	return nil
}

// scalar writes a scalar again, in the quotes that it has.
func (m *merger) scalar(n, now *yaml.Node) error {
	start := m.offset(n)
	end, ok := scalarEnd(m.text[start:], n)
	if !ok {
		return errUneven
	}
	next := &yaml.Node{Kind: yaml.ScalarNode, Tag: now.Tag, Value: now.Value, Style: now.Style}
	if n.ShortTag() == "!!str" && now.ShortTag() == "!!str" && next.Style == 0 {
		next.Style = n.Style
	}
	text, err := encode(next, 0)
	text = strings.TrimSuffix(text, "\n")
	if err != nil || strings.Contains(text, "\n") || strings.ContainsAny(text, ",[]{}") && next.Style == 0 {
		return errUneven
	}
	m.out = append(m.out, splice{start, start + end, text})
	return nil
}

// flow writes a collection in brackets again, in one line.
func (m *merger) flow(n, now *yaml.Node) error {
	start := m.offset(n)
	end, ok := flowEnd(m.text[start:])
	if !ok {
		return errUneven
	}
	next := *now
	next.Style = yaml.FlowStyle
	text, err := encode(&next, 0)
	if err != nil {
		return err
	}
	m.out = append(m.out, splice{start, start + end, strings.TrimSuffix(text, "\n")})
	return nil
}

// encode returns a node as text, indented by some spaces.
func encode(n *yaml.Node, indent int) (string, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(n), e.Close()); err != nil {
		return "", err
	}
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		if strings.TrimSpace(line) != "" {
			out.WriteString(strings.Repeat(" ", indent))
		}
		out.WriteString(line)
	}
	return out.String(), nil
}

// encodeItem returns an item of a sequence, with its dash.
func encodeItem(n *yaml.Node, indent int) (string, error) {
	return encode(&yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{n}}, indent)
}
