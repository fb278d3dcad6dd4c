// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package collateral

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// options are the flags of the command.
type options struct {
	dir                 string
	all                 bool
	markdown, bash, zsh bool
	man, yaml, html     bool
}

// New returns the command. It writes about the root command that it is added to.
func New() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:    "collateral",
		Short:  "Write documents of the commands and completions for shells",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return o.write(cmd.Root()) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVarP(&o.dir, "outputDir", "o", ".", "directory of the files")
	fs.BoolVar(&o.all, "all", false, "write every format that is supported")
	fs.BoolVar(&o.markdown, "markdown", false, "write a Markdown file for each command")
	fs.BoolVar(&o.bash, "bash", false, "write a completion for bash")
	fs.BoolVar(&o.zsh, "zsh", false, "write a completion for zsh")
	fs.BoolVar(&o.man, "man", false, "write a man page for each command")
	fs.BoolVar(&o.yaml, "yaml", false, "not supported")
	fs.BoolVar(&o.html, "html_fragment_with_front_matter", false, "not supported")
	return cmd
}

// write writes the chosen files about root and its commands.
func (o *options) write(root *cobra.Command) error {
	switch {
	case o.yaml || o.html:
		return errors.New("collateral writes no YAML or HTML: use --markdown")
	case !(o.all || o.markdown || o.man || o.bash || o.zsh):
		return errors.New("collateral needs a format: --markdown, --man, --bash, --zsh, or --all for all of them")
	}
	if info, err := os.Stat(o.dir); err != nil {
		return fmt.Errorf("--outputDir: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("--outputDir is %q; it must be a directory", o.dir)
	}
	if o.all || o.markdown {
		if err := o.writeMarkdown(root); err != nil {
			return err
		}
	}
	if o.all || o.man {
		if err := o.writeMan(root); err != nil {
			return err
		}
	}
	if o.all || o.bash {
		if err := root.GenBashCompletionFileV2(filepath.Join(o.dir, root.Name()+".bash"), true); err != nil {
			return fmt.Errorf("completion for bash: %w", err)
		}
	}
	if o.all || o.zsh {
		if err := root.GenZshCompletionFile(filepath.Join(o.dir, "_"+root.Name())); err != nil {
			return fmt.Errorf("completion for zsh: %w", err)
		}
	}
	return nil
}

// writeMarkdown writes a file for a command and for each command below it. The file is named after
// the command's path.
func (o *options) writeMarkdown(cmd *cobra.Command) error {
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	doc := fmt.Sprintf("# %s\n\n%s\n\n```text\n%s\n```\n", cmd.CommandPath(), text, strings.TrimSpace(cmd.UsageString()))
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "_") + ".md"
	if err := os.WriteFile(filepath.Join(o.dir, name), []byte(doc), 0o644); err != nil {
		return fmt.Errorf("document of %s: %w", cmd.CommandPath(), err)
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			if err := o.writeMarkdown(sub); err != nil {
				return err
			}
		}
	}
	return nil
}
