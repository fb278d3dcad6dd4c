// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"cmp"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
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

// listName matches the name in a line of a list, with the spaces around it.
var listName = regexp.MustCompile(`^  [a-zA-Z ]*[a-zA-Z-]+ {2,}`)

// fitHelp makes the lines of help at most as long as those of a terminal. The width is 0 if there is
// none. Examples stay as they are, so that they can be copied.
func fitHelp(root *cobra.Command, width int) {
	width = min(cmp.Or(width, widestHelp), widestHelp)
	flags := regexp.MustCompile(`(Local|Inherited)Flags\.FlagUsages`)
	template := flags.ReplaceAllString(root.UsageTemplate(), "${0}Wrapped "+strconv.Itoa(width))
	root.SetUsageTemplate(strings.ReplaceAll(template, " for more information about a command.", " for more."))
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		text := reflow(cmp.Or(cmd.Long, cmd.Short), width) + "\n"
		for line := range strings.Lines(cmd.UsageString()) {
			text += fold(line, width)
		}
		_, _ = io.WriteString(cmd.OutOrStdout(), text) // a failure is known to the output
	})
}

// reflow wraps the paragraphs of a text at width characters. Lines with an indent remain lines.
func reflow(text string, width int) string {
	var out, paragraph string
	for line := range strings.Lines(text + "\n\n") {
		if strings.TrimSpace(line) != "" && line[0] != ' ' {
			paragraph += line
			continue
		}
		out += analyze.Wrap(paragraph, "", width) + fold(line, width)
		paragraph = ""
	}
	return strings.TrimRight(out, "\n") + "\n"
}

// fold wraps a line of a list at width characters, below the text behind its name.
func fold(line string, width int) string {
	name := listName.FindString(line)
	if name == "" || utf8.RuneCountInString(line) <= width+1 {
		return line
	}
	indent := strings.Repeat(" ", len(name))
	return name + strings.TrimPrefix(analyze.Wrap(line[len(name):], indent, width), indent)
}
