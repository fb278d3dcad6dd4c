// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package aliases

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// maxSize is more than the API server stores of one object, in bytes.
const maxSize = 2 << 20

// Check returns an error if the first document of a YAML text expands to more than 2 MiB or an alias
// contains itself. It does not look at texts without an asterisk, which have no aliases: the decoder
// of the caller reports what is wrong with them.
func Check(text []byte) error {
	if !bytes.ContainsRune(text, '*') {
		return nil
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return err
	}
	_, err := sizes{}.of(&document)
	return err
}

// sizes has the expanded size of each node with an anchor, in bytes, 0 while it is computed.
type sizes map[*yaml.Node]int

// of returns the expanded size of a node.
func (s sizes) of(n *yaml.Node) (int, error) {
	if n.Kind == yaml.AliasNode {
		size, err := s[n.Alias], error(nil)
		if size == 0 {
			err = fmt.Errorf("line %d: the alias *%s refers to a node that contains it: write the text out", n.Line, n.Value)
		}
		return size, err
	}
	if n.Anchor != "" {
		s[n] = 0
	}
	size := len(n.Value) + 1
	for _, child := range n.Content {
		more, err := s.of(child)
		if err != nil {
			return 0, err
		}
		if size += more; size > maxSize {
			return 0, fmt.Errorf("line %d: the aliases of the document expand to more than %d bytes: write the text out", child.Line, maxSize)
		}
	}
	if n.Anchor != "" {
		s[n] = size
	}
	return size, nil
}
