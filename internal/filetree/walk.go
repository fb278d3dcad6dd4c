// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filetree

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
)

// Limits of a walk. A larger tree is read up to these limits.
const (
	maxDepth       = 32
	maxDirectories = 10_000
	maxFiles       = 100_000
	// maxEntries is the maximum number of names in all directories, maxNames in a single one.
	maxEntries = 250_000
	maxNames   = 50_000
)

// Walk visits all files below a directory. It skips names that begin with a dot and links that
// leave the boundary.
type Walk struct {
	// Boundary contains the directory to read as its Root.
	Boundary
	// Wanted selects files by name.
	Wanted func(name string) bool
	// Enter is called for each directory before it is read; false skips it. Nil enters all.
	Enter func(path string) bool
	// File is called for each regular file.
	File func(path string, info fs.FileInfo)
	// Trouble is called for everything that cannot be read or is skipped for a reason.
	Trouble func(path, reason string)
}

// Run visits each directory once, even if several links lead to it, and prefers its own path if
// that is below the root. It visits directories near the root first, so that a subdirectory that
// reaches a limit does not hide its neighbours. complete is false if a limit was reached. When ctx
// is done, Run returns its cause.
func (w Walk) Run(ctx context.Context) (complete bool, err error) {
	s := &walk{Walk: w, seen: map[identity]bool{}}
	// Targets of links are visited last, so that a directory's own path takes precedence.
	for s.queue = []node{{w.Root, 0}}; ctx.Err() == nil; s.queue, s.links = s.links, nil {
		for len(s.queue) > 0 && ctx.Err() == nil {
			next := s.queue[0]
			s.queue = s.queue[1:]
			s.directory(ctx, next.path, next.depth)
		}
		if len(s.links) == 0 {
			break
		}
	}
	return !s.cut, context.Cause(ctx)
}

// identity identifies a directory that has several paths.
type identity struct{ device, inode uint64 }

// node is a directory to be read.
type node struct {
	path  string
	depth int
}

type walk struct {
	Walk
	seen           map[identity]bool
	queue, links   []node
	files, entries int
	full, cut      bool
}

// stop reports, once, that a limit was reached.
func (s *walk) stop(path, reason string) {
	if !s.full {
		s.full, s.cut = true, true
		s.Trouble(path, reason)
	}
}

func (s *walk) directory(ctx context.Context, dir string, depth int) {
	if s.full {
		return
	}
	if depth > maxDepth {
		s.cut = true
		s.Trouble(dir, fmt.Sprintf("it is more than %d directories deep", maxDepth))
		return
	}
	info, err := os.Stat(dir)
	if err != nil {
		s.failed(dir, depth, err)
		return
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		id := identity{uint64(stat.Dev), uint64(stat.Ino)}
		if s.seen[id] {
			return
		}
		s.seen[id] = true
	}
	if len(s.seen) > maxDirectories {
		s.stop(dir, fmt.Sprintf("there are more than %d directories; this one and others are not read", maxDirectories))
		return
	}
	if madeUp(dir) {
		s.Trouble(dir, errKernel.Error())
		return
	}
	if s.Enter != nil && !s.Enter(dir) {
		return
	}
	entries, more, err := s.names(dir)
	if err != nil {
		s.failed(dir, depth, err)
		return
	}
	for _, e := range entries {
		if ctx.Err() != nil || s.full {
			return
		}
		s.entry(dir, e, depth)
	}
	if more {
		s.cut = true
		s.Trouble(dir, fmt.Sprintf("it has more than %d entries, or its tree more than %d; not all are read", maxNames, maxEntries))
	}
}

// names returns the sorted entries of a directory, up to the limit, and whether there are more.
func (s *walk) names(dir string) (entries []fs.DirEntry, more bool, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }() // read-only: closing cannot lose data
	most := min(maxNames, maxEntries-s.entries)
	entries, err = f.ReadDir(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	if len(entries) > most {
		entries, more = entries[:most], true
	}
	s.entries += len(entries)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, more, nil
}

func (s *walk) failed(path string, depth int, err error) {
	if depth == 0 || !errors.Is(err, fs.ErrNotExist) {
		s.Trouble(path, err.Error())
	}
}

func (s *walk) entry(dir string, e fs.DirEntry, depth int) {
	path, linked := filepath.Join(dir, e.Name()), e.Type()&fs.ModeSymlink != 0
	if strings.HasPrefix(e.Name(), ".") || !e.IsDir() && !linked && !s.Wanted(e.Name()) {
		return
	}
	info, err := os.Stat(path)
	if err != nil {
		if s.Wanted(e.Name()) {
			s.failed(path, depth+1, err)
		}
		return
	}
	file := info.Mode().IsRegular() && s.Wanted(e.Name())
	if linked && (file || info.IsDir()) {
		if err := s.follow(path); err != nil {
			s.failed(path, depth+1, err)
			return
		}
	}
	switch {
	case info.IsDir() && linked:
		s.links = append(s.links, node{path, depth + 1})
	case info.IsDir():
		s.queue = append(s.queue, node{path, depth + 1})
	case file:
		if s.files++; s.files > maxFiles {
			s.stop(path, fmt.Sprintf("there are more than %d files; this one and others are not read", maxFiles))
			return
		}
		s.File(path, info)
	}
}
