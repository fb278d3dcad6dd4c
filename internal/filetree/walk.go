// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filetree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Bounds of a walk. A directory with more is read as far as they allow.
const (
	maxDepth       = 32
	maxDirectories = 10_000
	maxFiles       = 100_000
)

// Walk is a look at all files below a directory. Names that begin with a dot
// are left out.
type Walk struct {
	// Wanted chooses files by their names.
	Wanted func(name string) bool
	// Enter is called for each directory before it is read; false leaves it
	// out. Nil enters all.
	Enter func(path string) bool
	// File is called for each regular file.
	File func(path string, info fs.FileInfo)
	// Trouble is called for what cannot be read or is left out.
	Trouble func(path, reason string)
}

// Run visits each directory once, however many links lead to it: by its own
// path if that is below root. It ends when ctx is done, with the cause.
func (w Walk) Run(ctx context.Context, root string) error {
	s := &walk{Walk: w, seen: map[identity]bool{}}
	s.directory(ctx, root, 0)
	// What is behind links comes last, so that the directories themselves win.
	for len(s.links) > 0 && ctx.Err() == nil {
		next := s.links[0]
		s.links = s.links[1:]
		s.directory(ctx, next.path, next.depth)
	}
	return context.Cause(ctx)
}

// identity tells directories apart that have several paths.
type identity struct{ device, inode uint64 }

type link struct {
	path  string
	depth int
}

type walk struct {
	Walk
	seen  map[identity]bool
	links []link
	files int
	full  bool
}

// stop says once that there is too much.
func (s *walk) stop(path, reason string) {
	if !s.full {
		s.full = true
		s.Trouble(path, reason)
	}
}

func (s *walk) directory(ctx context.Context, dir string, depth int) {
	if s.full || ctx.Err() != nil {
		return
	}
	if depth > maxDepth {
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
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.failed(dir, depth, err)
		return
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return
		}
		s.entry(ctx, dir, e, depth)
	}
}

func (s *walk) failed(path string, depth int, err error) {
	if depth == 0 || !errors.Is(err, fs.ErrNotExist) {
		s.Trouble(path, err.Error())
	}
}

func (s *walk) entry(ctx context.Context, dir string, e fs.DirEntry, depth int) {
	path, linked := filepath.Join(dir, e.Name()), e.Type()&fs.ModeSymlink != 0
	if strings.HasPrefix(e.Name(), ".") || !e.IsDir() && !linked && !s.Wanted(e.Name()) {
		return
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		if s.Wanted(e.Name()) {
			s.failed(path, depth+1, err)
		}
	case info.IsDir() && linked:
		if len(s.links) < maxDirectories {
			s.links = append(s.links, link{path, depth + 1})
		}
	case info.IsDir():
		s.directory(ctx, path, depth+1)
	case info.Mode().IsRegular() && s.Wanted(e.Name()):
		if s.files++; s.files > maxFiles {
			s.stop(path, fmt.Sprintf("there are more than %d files; this one and others are not read", maxFiles))
			return
		}
		s.File(path, info)
	}
}
