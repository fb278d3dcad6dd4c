// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package aliases bounds what the aliases of a YAML document expand to. A decoder shares the text of
// an alias, but JSON repeats it: a document of some kilobytes can become gigabytes. Programs check
// documents of others before they decode them. The package is pure.
package aliases
