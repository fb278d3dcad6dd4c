// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxObjectSize bounds the text of one object, in bytes, with its aliases
	// written out. An API server accepts 3 MiB.
	MaxObjectSize = 4 << 20
	// maxOfFile is the number of problems of a file that are listed before each
	// further object may have only one.
	maxOfFile = 1000
	// MaxDocuments bounds the documents of a file, and the items of its lists.
	MaxDocuments = 10_000
	// maxMarks bounds the characters of a document that may begin a node. The
	// tree of a document takes some hundred bytes for each.
	maxMarks = 1_000_000
)

// textSize returns the bytes of text below a node, or a number above most as
// soon as it is clear that there are more. Aliases count each time.
func textSize(n *yaml.Node, most int) int {
	size := len(n.Value) + 1
	for _, child := range n.Content {
		if size > most {
			return size
		}
		size += textSize(child, most-size)
	}
	return size
}

// sizeFault returns what is wrong with the size of an object, or an empty text.
func sizeFault(n *yaml.Node) string {
	if textSize(n, MaxObjectSize) <= MaxObjectSize {
		return ""
	}
	return fmt.Sprintf("the object contains more than %d MiB of text, the limit for one object: split it into several objects", MaxObjectSize>>20)
}
