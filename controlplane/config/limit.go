// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxObjectSize bounds the text of one object, in bytes, with its aliases
	// written out. An API server accepts 3 MiB.
	MaxObjectSize = 4 << 20
	// maxHosts bounds the hosts of one ServiceEntry or VirtualService: proxies
	// get clusters or virtual hosts for each.
	maxHosts = 10_000
	// maxClusters bounds the hosts of a ServiceEntry times its ports, and
	// maxEndpoints those times its endpoints.
	maxClusters, maxEndpoints = 20_000, 500_000
	// maxRoutes bounds the hosts of a VirtualService times its routes: each host
	// has a copy of them.
	maxRoutes = 10_000
	// maxSubsets bounds the subsets of a DestinationRule.
	maxSubsets = 1000
	// maxExportTo bounds the namespaces that see an object.
	maxExportTo = 1000
	// maxListed bounds the errors, and the warnings, that are listed for one
	// object, and the problems of a file that belong to no object.
	maxListed = 20
	// maxOfFile is how many problems of a file are listed before each further
	// object may have one only.
	maxOfFile = 1000
	// maxDocuments bounds the documents of a file, and the items of its lists.
	maxDocuments = 10_000
	// maxMarks bounds the characters of a document that may begin a node. The
	// tree of a document takes some hundred bytes for each.
	maxMarks = 1_000_000
	// maxLogged bounds the problems that are logged of one change, when they come
	// and when they go.
	maxLogged = 20
	// maxKeyText bounds a map key in the path of a field, in bytes.
	maxKeyText = 100
)

// unlistedText is the last entry of a list that was cut; what is "error",
// "warning" or "problem".
func unlistedText(n int, what string) string {
	if n == 1 {
		return "1 more " + what + " is not listed: correct the others first"
	}
	return fmt.Sprintf("%d more %ss are not listed: correct the others first", n, what)
}

// keyed returns the path of an entry of a map. It shortens long keys, because
// the paths of everything below the entry begin with it.
func keyed(path, key string) string {
	return path + "[" + clip(key, maxKeyText) + "]"
}

// clip returns s, or its first bytes and an ellipsis if it is longer than most.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && s[most]&0xc0 == 0x80 { // inside a UTF-8 sequence
		most--
	}
	return s[:most] + "…"
}

// atMost checks the length of a list.
func (c *checker) atMost(n, most int, path string) {
	if n > most {
		c.errorf(path, "has %d entries: at most %d are allowed; write several objects", n, most)
	}
}

// product checks what the entries of several lists come to together.
func (c *checker) product(most int, path, what string, counts ...int) {
	n := 1
	for _, count := range counts {
		if n *= max(1, count); n > most {
			c.errorf(path, "make more than %d %s: write several objects", most, what)
			return
		}
	}
}

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
	return fmt.Sprintf("the object holds more than %d MiB of text, the most that one object may have: split it into several objects", MaxObjectSize>>20)
}
