// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package flagdoc

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Check compares a document with the flags of a program's commands. If update is set, it writes the
// document first. The error says how to fix a difference.
func Check(file string, root *cobra.Command, update bool) error {
	want := document(root)
	if update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			return err
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if string(got) != want {
		return fmt.Errorf("%s is not what the program's flags say: run make generate", file)
	}
	return nil
}

func document(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Flags of %s\n\n%s. Made from the program by `make generate`.\n", root.Name(), strings.TrimSuffix(root.Short, "."))
	section(&b, root, root.Name()+", every command", root.PersistentFlags())
	commands(&b, root)
	return b.String()
}

// commands writes the sections of the commands below one, at every depth.
func commands(b *strings.Builder, parent *cobra.Command) {
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() && c.Name() != "completion" && c.Name() != "help" {
			section(b, c, c.CommandPath(), c.LocalNonPersistentFlags())
			commands(b, c)
		}
	}
}

func section(b *strings.Builder, c *cobra.Command, title string, flags *pflag.FlagSet) {
	rows := 0
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if rows++; rows == 1 {
			fmt.Fprintf(b, "\n## %s\n\n", title)
			if c.HasParent() {
				fmt.Fprintf(b, "%s.\n\n", strings.TrimSuffix(c.Short, "."))
			}
			b.WriteString("| flag | type | default | meaning |\n|---|---|---|---|\n")
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value := f.DefValue
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", name, f.Value.Type(), value, strings.ReplaceAll(f.Usage, "|", `\|`))
	})
}
