// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/tool/objects"
)

// commands returns the paths of the commands that can be run, without the program.
func commands(t *testing.T) (list [][]string) {
	t.Helper()
	root := newRootCommand(environment{}, nil, nil)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion")
	var add func(*cobra.Command)
	add = func(c *cobra.Command) {
		if c.Runnable() && !c.Hidden {
			list = append(list, strings.Fields(c.CommandPath())[1:])
		}
		for _, sub := range c.Commands() {
			add(sub)
		}
	}
	add(root)
	if len(list) < 40 {
		t.Fatalf("there are only %d commands", len(list))
	}
	return list
}

// TestOutputFormats checks that each command has its data as JSON and YAML, or says why not, and that one
// with a table has the wide one, too.
func TestOutputFormats(t *testing.T) {
	t.Parallel()
	for _, path := range commands(t) {
		name := strings.Join(path, " ")
		reason := objects.WithoutOutput("outrigger " + name)
		said := map[string]string{}
		for _, form := range []string{"json", "yaml", "table", "wide", "xml"} {
			root := newRootCommand(environment{}, nil, nil)
			err := objects.Execute(t.Context(), root, slices.Concat(path, []string{"-o", form, "--nothing-like-it"}), io.Discard)
			if coded := (*objects.ExitError)(nil); !errors.As(err, &coded) || coded.Code != 2 {
				t.Errorf("%s -o %s: got %v, want an error about the command line", name, form, err)
				continue
			}
			said[form] = err.Error()
			if reason != "" && !strings.HasSuffix(said[form], name+" has no -o: "+reason) {
				t.Errorf("%s -o %s: got %q, want the reason: %s", name, form, said[form], reason)
			}
		}
		accepted := func(form string) bool { return strings.HasPrefix(said[form], "unknown flag: --nothing-like-it") }
		if reason == "" && (!accepted("json") || !accepted("yaml") || accepted("table") != accepted("wide") || accepted("xml")) {
			t.Errorf("%s: add the flag -o with output.Add, or a reason to objects.WithoutOutput: %q", name, said)
		}
	}
}

// fits checks that the lines of a text fit a terminal. A single word may be longer, so that it can be copied.
func fits(t *testing.T, name, text string, width int) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if n := utf8.RuneCountInString(line); n > width && strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("outrigger %s: on a terminal with %d columns a line has %d characters: %s", name, width, n, line)
		}
	}
}
