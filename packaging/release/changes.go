// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// sections are the parts of the list of changes, each with the first path elements of what its
// commits change. Other commits belong to the last section.
var sections = []struct{ title, about string }{
	{"Control plane", " controlplane mesh analyze webhook inject generate discovery join "},
	{"Agent", " agent bootstrap xdsproxy sds status envoy certs cni health internal "},
	{"The command outrigger", " outrigger tool cmd up explain "},
	{"Installation", " packaging charts images packages scripts Makefile examples "},
	{"Documents", " docs README ARCHITECTURE CONTRIBUTING "},
	{"Tests", " e2e "},
	{"Other", ""},
}

// readHistory finds the commit of the release and the tag of the last one. It returns an error for
// a work tree with changes.
func (o *options) readHistory(ctx context.Context) error {
	changed, err := o.git(ctx, "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("the work tree has changes that no commit has; commit or stash them first:\n%s", changed)
	}
	if o.commit, err = o.git(ctx, "rev-parse", "HEAD"); err != nil {
		return err
	}
	// Without an earlier tag the command fails.
	o.since, _ = o.git(ctx, "describe", "--tags", "--abbrev=0", "--match", "v*", "--exclude", o.version)
	return nil
}

// git returns the output of a git command.
func (o *options) git(ctx context.Context, arguments ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", o.repository}, arguments...)...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("git %s: %w: %s", arguments[0], err, strings.TrimSpace(string(failed.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// writeChanges writes CHANGES.md, the commits since the last release by section.
func (o *options) writeChanges(ctx context.Context) error {
	commits := "HEAD"
	if o.since != "" {
		commits = o.since + "..HEAD"
	}
	subjects, err := o.git(ctx, "log", "--no-merges", "--format=%h %s", commits)
	if err != nil {
		return err
	}
	lists := make([][]string, len(sections))
	for line := range strings.Lines(subjects) {
		hash, subject, _ := strings.Cut(strings.TrimSpace(line), " ")
		i := sectionOf(subject)
		lists[i] = append(lists[i], fmt.Sprintf("- %s (%s)\n", subject, hash))
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# Outrigger %s\n", o.version)
	if o.since != "" {
		fmt.Fprintf(&text, "\nChanges since %s.\n", o.since)
	}
	for i, s := range sections {
		if len(lists[i]) > 0 {
			fmt.Fprintf(&text, "\n## %s\n\n%s", s.title, strings.Join(lists[i], ""))
		}
	}
	return os.WriteFile(filepath.Join(o.out, "CHANGES.md"), []byte(text.String()), 0o644)
}

// sectionOf returns the index of the section of a commit, by its subject "package: what".
func sectionOf(subject string) int {
	about, _, _ := strings.Cut(subject, ":")
	about, _, _ = strings.Cut(about, ",")
	about, _, _ = strings.Cut(about, "/")
	about, _, _ = strings.Cut(about, " ")
	for i, s := range sections {
		if strings.Contains(s.about, " "+about+" ") {
			return i
		}
	}
	return len(sections) - 1
}
