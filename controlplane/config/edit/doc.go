// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package edit changes the text of YAML files that hold configuration objects.
// [Object] replaces or removes the document of one object; the other documents
// stay byte for byte. The package does no I/O.
package edit
