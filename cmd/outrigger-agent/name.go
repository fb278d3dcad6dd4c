// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// The names of the program: its own, and that of the one whose place it takes.
const (
	ownName  = "outrigger-agent"
	peerName = "pilot-agent"
)

// programName is the name by which the program was called. It is used in help
// and messages only: all names do the same.
func programName(argv []string) string {
	if len(argv) > 0 && filepath.Base(argv[0]) == peerName {
		return peerName
	}
	return ownName
}

// rename puts a name into the usage and the examples of all commands.
func rename(command *cobra.Command, name string) {
	command.Use = strings.Replace(command.Use, ownName, name, 1)
	command.Example = strings.ReplaceAll(command.Example, ownName, name)
	for _, c := range command.Commands() {
		rename(c, name)
	}
}
