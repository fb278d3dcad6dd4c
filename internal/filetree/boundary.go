// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filetree

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Boundary is the part of the file system that links may lead to: Root, and the
// directories in Also. A path counts by where it is after all links are followed.
type Boundary struct {
	Root string
	Also []string
	// Cure ends the error about a link that leaves the boundary. It tells what an
	// operator can do.
	Cure string
}

// OutsideError is of a link that leaves a Boundary.
type OutsideError struct{ target, root, cure string }

func (e *OutsideError) Error() string {
	text := fmt.Sprintf("it is a link to %s, outside of %s", e.target, e.root)
	if e.cure != "" {
		text += ": " + e.cure
	}
	return text
}

// check returns an error if a path that has no links in it is outside.
func (s Boundary) check(real string) error {
	if within(real, s.Root) {
		return nil
	}
	for _, dir := range s.Also {
		if within(real, dir) {
			return nil
		}
	}
	return &OutsideError{target: real, root: s.Root, cure: s.Cure}
}

// follow checks where a path leads.
func (s Boundary) follow(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if real, err = filepath.Abs(real); err != nil {
		return err
	}
	return s.check(real)
}

// opened checks where an open file is. The kernel knows it even if a link on the
// way was changed meanwhile.
func (s Boundary) opened(f *os.File) error {
	real, err := "", error(nil)
	if c, e := f.SyscallConn(); e == nil { // Fd would turn deadlines off
		_ = c.Control(func(fd uintptr) { real, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)) })
	}
	if err == nil && filepath.IsAbs(real) {
		return s.check(real)
	}
	return s.follow(f.Name())
}

// within reports whether a path without links is dir or below it. The links of
// dir are followed if that is needed to tell.
func within(path, dir string) bool {
	if below(path, dir) {
		return true
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	real, err = filepath.Abs(real)
	return err == nil && below(path, real)
}

func below(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == filepath.Separator || strings.HasSuffix(dir, string(filepath.Separator)))
}

// Links returns the directories that the parameters "links" of a URL name, for
// Boundary.Also. They have to be absolute.
func Links(query url.Values) ([]string, error) {
	dirs := query["links"]
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("links=%s is no absolute path: write links=/directory", dir)
		}
	}
	for name := range query {
		if name != "links" {
			return nil, fmt.Errorf("the parameter %q is not known: write links=/directory, or nothing", name)
		}
	}
	return dirs, nil
}
