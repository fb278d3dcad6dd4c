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

// Boundary is the part of the file system that links may lead to: Root, and the directories in
// Also. The position of a path is determined after resolving all links.
type Boundary struct {
	Root string
	Also []string
	// Cure is the end of the error for a link that leaves the boundary. It says what the operator
	// can do.
	Cure string
}

// OutsideError reports a link that leaves a Boundary.
type OutsideError struct{ target, root, cure string }

func (e *OutsideError) Error() string {
	text := fmt.Sprintf("it is a link to %s, outside of %s", e.target, e.root)
	if e.cure != "" {
		text += ": " + e.cure
	}
	return text
}

// check returns an error if a path without links is outside the boundary.
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

// follow returns an error if a path resolves to a location outside the boundary.
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

// opened returns an error if an open file is outside the boundary. It asks the kernel for the
// location, in case a link has changed since the file was opened.
func (s Boundary) opened(f *os.File) error {
	real, err := "", error(nil)
	if c, e := f.SyscallConn(); e == nil { // Fd would disable deadlines
		_ = c.Control(func(fd uintptr) { real, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)) })
	}
	if err == nil && filepath.IsAbs(real) {
		return s.check(real)
	}
	return s.follow(f.Name())
}

// within reports whether a path without links is dir or below it. It resolves the links of dir if
// necessary.
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

// Links returns the directories in the "links" parameters of a URL, for Boundary.Also. They must be
// absolute.
func Links(query url.Values) ([]string, error) {
	dirs := query["links"]
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("links=%s is not an absolute path: write links=/directory", dir)
		}
	}
	for name := range query {
		if name != "links" {
			return nil, fmt.Errorf("the parameter %q is unknown: write links=/directory, or nothing", name)
		}
	}
	return dirs, nil
}
