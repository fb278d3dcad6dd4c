// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"cmp"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// groups are the titles under which the help of the program lists its commands, whose names are the IDs.
var groups = []cobra.Group{
	{ID: "up join leave inject install uninstall backup migrate", Title: "Run a mesh:"},
	{ID: "get describe apply create replace delete diff history rollback", Title: "Read and change its configuration:"},
	{ID: "validate analyze policy what-if", Title: "Check a change before it is made:"},
	{ID: "status explain proxy tap top dashboard bug-report", Title: "Find out what it does, and why:"},
}

// group assigns the commands of root to the groups.
func group(root *cobra.Command) {
	for _, g := range groups {
		root.AddGroup(&g)
		for name := range strings.FieldsSeq(g.ID) {
			for _, c := range root.Commands() {
				if c.Name() == name {
					c.GroupID = g.ID
				}
			}
		}
	}
}

// widestHelp is the width of help in characters where there is more space or none is known.
const widestHelp = 80

// help prints the help of a command.
func help(cmd *cobra.Command, _ []string) {
	out := cmd.OutOrStdout()
	width := min(cmp.Or(columns.OfTerminal(out), widestHelp), widestHelp)
	text := columns.Fill(strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short)), width) + "\n\n" + cmd.UsageString()
	_, _ = io.WriteString(out, columns.Wrap(text, width)) // a failure is known to the output
}
