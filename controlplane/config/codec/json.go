// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// jsonNode reads a JSON object as the YAML that says the same, with lines; nil
// when the text is anything else. YAML is nearly a superset of JSON: it breaks
// lines at U+0085 and U+2028, knows no pairs of surrogates, and merges "<<".
func jsonNode(text []byte) *yaml.Node {
	text = bytes.TrimPrefix(text, []byte("---"))
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' || !utf8.Valid(text) {
		return nil
	}
	r := &jsonReader{text: text, dec: json.NewDecoder(bytes.NewReader(text)), line: 1}
	r.dec.UseNumber()
	n, err := r.next(0)
	if err != nil {
		return nil
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return nil
	}
	return n
}

type jsonReader struct {
	text []byte
	dec  *json.Decoder
	// line is that of the byte at, from 1.
	line, at int
}

var (
	errTooDeep = errors.New("JSON nests too deep")
	errNotJSON = errors.New("the object nests too deep, or contains text that is not UTF-8")
)

func (r *jsonReader) next(depth int) (*yaml.Node, error) {
	if depth > 2*maxDepth {
		return nil, errTooDeep
	}
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	end := int(r.dec.InputOffset())
	r.line += bytes.Count(r.text[r.at:end], []byte("\n"))
	r.at = end
	scalar := func(tag, value string) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value, Line: r.line}, nil
	}
	switch v := token.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: r.line}
		if v == '[' {
			n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		}
		for r.dec.More() {
			item, err := r.next(depth + 1)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, item)
		}
		_, err := r.dec.Token() // the closing bracket
		return n, err
	case string:
		return scalar("!!str", v)
	case json.Number:
		return scalar(numberTag(v.String()), v.String())
	case bool:
		return scalar("!!bool", strconv.FormatBool(v))
	}
	return scalar("!!null", "null")
}

// yamlText writes a node of jsonNode as YAML.
func yamlText(n *yaml.Node) ([]byte, error) {
	quoteControls(n)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(n); err != nil {
		return nil, err
	}
	return out.Bytes(), enc.Close()
}

// quoteControls puts text in double quotes that other styles would not keep.
func quoteControls(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && strings.ContainsFunc(n.Value, func(r rune) bool {
		return r != '\n' && r != ' ' && !unicode.IsGraphic(r) || r == '\u2028' || r == '\u2029' || r == '\ufeff'
	}) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, child := range n.Content {
		quoteControls(child)
	}
}

// numberTag tells whole numbers of 64 bits from others.
func numberTag(s string) string {
	if strings.ContainsAny(s, ".eE") {
		return "!!float"
	}
	if _, err := strconv.ParseInt(s, 10, 64); err == nil {
		return "!!int"
	}
	if _, err := strconv.ParseUint(s, 10, 64); err == nil {
		return "!!int"
	}
	return "!!float"
}
