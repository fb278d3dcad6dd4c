// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package collateral

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// writeMan writes a man page for a command and for each command below it, named after the command's path.
func (o *options) writeMan(cmd *cobra.Command) error {
	if err := os.WriteFile(filepath.Join(o.dir, manName(cmd)+".1"), []byte(manPage(cmd)), 0o644); err != nil {
		return fmt.Errorf("man page of %s: %w", cmd.CommandPath(), err)
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			if err := o.writeMan(sub); err != nil {
				return err
			}
		}
	}
	return nil
}

// manName returns the name of the man page of a command.
func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns the man page of a command, in the language of roff. It has no date, so that it is the
// same in each build.
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	text := func(name, content string) {
		if content = strings.Trim(content, "\n"); content != "" {
			// The lines are those that --help prints.
			fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n.fi\n", name, roff(content))
		}
	}
	fmt.Fprintf(&b, ".TH \"%s\" \"1\" \"\" \"Outrigger\" \"Outrigger\"\n.nh\n.ad l\n", roff(strings.ToUpper(manName(cmd))))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	text("SYNOPSIS", cmd.UseLine())
	text("DESCRIPTION", cmd.Long)
	text("OPTIONS", cmd.LocalFlags().FlagUsagesWrapped(78))
	text("EXAMPLES", cmd.Example)
	var also []string
	if cmd.HasParent() {
		also = append(also, manName(cmd.Parent()))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			also = append(also, manName(sub))
		}
	}
	if len(also) > 0 {
		b.WriteString(".SH SEE ALSO\n")
		for i, name := range also {
			end := ","
			if i == len(also)-1 {
				end = ""
			}
			fmt.Fprintf(&b, ".BR %s (1)%s\n", roff(name), end)
		}
	}
	return b.String()
}

// roff escapes a text: backslashes, hyphens, and the characters that begin a request in a line.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`, "\t", "    ").Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
