// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// usage returns an error about the command line.
func usage(err error) error { return &ExitError{exitUsage, err} }

// Unreadable returns an error about the command line if err means that a file that it names cannot be
// read, and err otherwise.
func Unreadable(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return usage(err)
	}
	return err
}

// strict makes wrong arguments of a command and its subcommands errors about the command line.
func strict(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err, coded := check(cmd, args), (*ExitError)(nil)
			if err == nil || errors.As(err, &coded) {
				return err
			}
			if strings.Contains(err.Error(), " arg(s), ") { // cobra's words
				err = fmt.Errorf("%d arguments are not what it takes: write %s", len(args), strings.TrimSuffix(cmd.CommandPath(), cmd.Name())+cmd.Use)
			}
			return usage(err)
		}
	}
	for _, c := range cmd.Commands() {
		strict(c)
	}
}

// Execute executes a command line, whose errors have exit codes, with out as the standard output.
func Execute(ctx context.Context, root *cobra.Command, args []string, out io.Writer) error {
	root.SetOut(out)
	root.InitDefaultCompletionCmd() // its scripts stay as they are
	root.SetOut(&columns.Writer{Out: out})
	root.SetErr(&columns.Writer{Out: os.Stderr})
	root.SetHelpFunc(help)
	root.InitDefaultHelpCmd()
	strict(root)
	group(root)
	if err := known(root, args); err != nil {
		return err
	}
	root.SetArgs(args)
	return wrongFile(root.ExecuteContext(ctx), args)
}

// wrongFile returns an error about the command line, with a cure, if err means that a file that args
// name cannot be opened or read, and err otherwise.
func wrongFile(err error, args []string) error {
	var path *fs.PathError
	if !errors.As(err, &path) || !slices.ContainsFunc(args, func(arg string) bool { return namesFile(arg, path.Path) }) {
		return err
	}
	cure := ""
	switch {
	case errors.Is(path.Err, fs.ErrNotExist):
		cure = "name one that exists"
	case errors.Is(path.Err, fs.ErrPermission):
		cure = "allow this user to read it, or name another one"
	case errors.Is(path.Err, syscall.EISDIR):
		cure = "name a file in it"
	}
	if text := err.Error(); cure != "" && strings.HasSuffix(text, path.Err.Error()) {
		err = fmt.Errorf("%w; %s", err, cure)
	}
	return usage(err)
}

// namesFile reports whether an argument, such as --file=a,b, names a file, or the directory of it.
func namesFile(arg, path string) bool {
	if _, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "-") {
		arg = value
	}
	return slices.ContainsFunc(strings.Split(arg, ","), func(name string) bool {
		if name == "" {
			return false
		}
		full, err := filepath.Abs(name)
		return name == path || err == nil && full == path
	})
}

// known returns an error if args name a command that does not exist. Instead of an unknown subcommand,
// cobra prints the help.
func known(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	i := slices.IndexFunc(rest, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	switch {
	case i < 0 || strings.HasPrefix(rest[i], "__"): // a completion
		return nil
	case err == nil && cmd.Name() == "help":
		return known(root, rest)
	case err == nil && (cmd == root || cmd.Runnable() || i > 0):
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	hint := field.DidYouMean(rest[i], names)
	if !strings.Contains(hint, "did you mean") {
		hint = fmt.Sprintf(": %s --help lists the commands", cmd.CommandPath())
	}
	return usage(fmt.Errorf("unknown command %q for %q%s", rest[i], cmd.CommandPath(), hint))
}

// WrongFlag returns the error of a flag, with the nearest name of one that does not exist.
func WrongFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		switch reason := WithoutOutput(cmd.CommandPath()); unknown.GetSpecifiedName() {
		case "o", "output":
			if reason != "" {
				return usage(fmt.Errorf("%s has no -o: %s", cmd.CommandPath(), reason))
			}
		case "w", "watch":
			if slices.Contains([]string{"top", "tap", "dashboard", "up"}, cmd.Name()) {
				return usage(fmt.Errorf("%s has no --watch: it goes on until Ctrl-C", cmd.CommandPath()))
			}
			return usage(fmt.Errorf("%s has no --watch: %s have it", cmd.CommandPath(), strings.Join(watching(cmd.Root()), ", ")))
		}
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if hint := field.DidYouMean(unknown.GetSpecifiedName(), names); strings.Contains(hint, "did you mean") {
			return usage(fmt.Errorf("%w%s", err, hint))
		}
		err = fmt.Errorf("%w: %s --help lists the flags", err, cmd.CommandPath())
	}
	return usage(err)
}

// watching returns the commands that have --watch.
func watching(cmd *cobra.Command) (paths []string) {
	if cmd.Flags().Lookup("watch") != nil {
		paths = append(paths, cmd.CommandPath())
	}
	for _, c := range cmd.Commands() {
		paths = append(paths, watching(c)...)
	}
	return paths
}

// WithoutOutput returns why a command, which is named with its path, has no flag -o; "" for one that
// has it.
func WithoutOutput(path string) string {
	_, name, _ := strings.Cut(path, " ")
	switch name {
	case "create", "apply", "replace", "delete", "rollback", "migrate":
		return "it prints a line for each object; outrigger get -o yaml prints objects"
	case "describe":
		return "it is for readers; outrigger get -o yaml prints objects"
	case "diff":
		return "it prints a unified diff, as diff -u does"
	case "inject":
		return "it prints the objects as YAML"
	case "install", "uninstall":
		return "it prints what it does; the objects are those of --dry-run, as YAML"
	case "join", "leave", "backup save", "backup restore":
		return "it prints what it does"
	case "bug-report":
		return "it writes an archive"
	case "dashboard":
		return "it serves a page; outrigger top -o json and outrigger status -o json have the data"
	case "policy record":
		return "it prints a line of JSON for each request"
	case "up":
		return "it prints the lines of the workloads; outrigger status -o json has the state"
	case "help", "completion bash", "completion fish", "completion powershell", "completion zsh":
		return "it prints text for a terminal or a shell"
	}
	return ""
}
