// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

// fileFlags are the flags of the commands that read files.
type fileFlags struct {
	cfg       Config
	files     []string
	namespace string
	// skips means that objects for others than the mesh are counted in skipped.
	skips   bool
	skipped int
	// links are directories that links may lead to, beside that of the link.
	links []string
	// keeps means that the content of files is added to kept.
	keeps bool
	kept  []analyze.File
}

func (f *fileFlags) add(cmd *cobra.Command) {
	f.links = []string{"/"} // unlike a store: the user can read what they lead to
	cmd.Flags().StringSliceVarP(&f.files, "filename", "f", nil, "file, directory (with its subdirectories) or - for standard input; can be repeated")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of objects that name none (default \"default\")")
}

// read returns the valid objects of all files, and the problems of the others.
func (f *fileFlags) read(ctx context.Context) (objects []*model.Config, problems []model.Problem, err error) {
	if len(f.files) == 0 {
		return nil, nil, &ExitError{exitUsage, fmt.Errorf("no files: name them with -f FILE, -f DIRECTORY or -f -")}
	}
	parts, err := f.parts(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range parts {
		objects, problems, f.skipped = append(objects, p.objects...), append(problems, p.problems...), f.skipped+p.skipped
		if f.keeps {
			f.kept = append(f.kept, analyze.File{Source: p.source, Data: p.data})
		}
	}
	seen := map[model.Key]string{}
	for _, c := range objects {
		if first, ok := seen[c.Key]; ok {
			problems = append(problems, model.Problem{Object: c.Key, Source: c.Source, Reason: "the same object is in " + first + " already: remove one of them"})
		}
		seen[c.Key] = c.Source
	}
	return objects, problems, nil
}

// part is what one file has.
type part struct {
	source   string
	regular  bool   // reading it cannot block
	data     []byte // only of standard input until the part is read, and after it only if it is kept
	objects  []*model.Config
	problems []model.Problem
	skipped  int
	err      error
}

// parts returns what all files have, in their order. It reads them on all processors, and returns the
// error of the first file that cannot be read.
func (f *fileFlags) parts(ctx context.Context) ([]*part, error) {
	var parts []*part
	for _, name := range f.files {
		if name == "-" {
			data, err := readAll(ctx, func() (io.ReadCloser, error) { return io.NopCloser(f.cfg.In), nil })
			if err != nil {
				err = fmt.Errorf("read standard input: %w", err)
			}
			parts = append(parts, &part{source: "standard input", data: data, err: err})
			continue
		}
		paths, err := expand(ctx, name, f.links)
		if err != nil {
			parts = append(parts, &part{err: err})
			break
		}
		for _, path := range paths {
			parts = append(parts, &part{source: path, regular: path != name})
		}
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(len(parts), runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := next.Add(1); i <= int64(len(parts)); i = next.Add(1) {
				f.take(ctx, parts[i-1])
			}
		})
	}
	workers.Wait()
	if ctx.Err() != nil {
		return nil, errInterrupted
	}
	if i := slices.IndexFunc(parts, func(p *part) bool { return p.err != nil }); i >= 0 {
		return nil, Unreadable(parts[i].err)
	}
	return parts, nil
}

// readKeys returns the keys of the objects in files, for a command that needs only the keys.
// Invalid and duplicate objects are included. It returns an error for an object without a key.
func (f *fileFlags) readKeys(cmd *cobra.Command, done string) ([]model.Key, error) {
	objects, problems, err := f.read(cmd.Context())
	if err != nil {
		return nil, err
	}
	var keys []model.Key
	seen := map[model.Key]bool{}
	add := func(key model.Key) {
		if !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	for _, c := range objects {
		add(c.Key)
	}
	unknown := problems[:0]
	for _, p := range problems {
		switch {
		case p.Warning:
		case p.Object.Name == "":
			unknown = append(unknown, p)
		default:
			add(p.Object)
		}
	}
	if n := sayProblems(cmd.ErrOrStderr(), unknown); n > 0 {
		return nil, &ExitError{exitFailed, fmt.Errorf("%s: nothing was %s", count(n, "error"), done)}
	}
	if len(keys) == 0 {
		return nil, &ExitError{exitFailed, fmt.Errorf("no objects in %s: nothing was %s", strings.Join(f.files, ", "), done)}
	}
	return keys, nil
}

// readSome reads valid objects for a command that processes them. It returns an error if there is
// any problem or no object.
func (f *fileFlags) readSome(cmd *cobra.Command, done string) ([]*model.Config, error) {
	objects, problems, err := f.read(cmd.Context())
	if err != nil {
		return nil, err
	}
	if n := sayProblems(cmd.ErrOrStderr(), problems); n > 0 {
		return nil, &ExitError{exitFailed, fmt.Errorf("%s: nothing was %s", count(n, "error"), done)}
	}
	if len(objects) == 0 {
		return nil, &ExitError{exitFailed, fmt.Errorf("no objects in %s: nothing was %s", strings.Join(f.files, ", "), done)}
	}
	return objects, nil
}

// readAll reads a file until ctx is done: a terminal or pipe may block forever. It stops reading as
// soon as the size exceeds what can be decoded.
func readAll(ctx context.Context, open func() (io.ReadCloser, error)) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() { // only the end of the process stops the read
		data, err := readOpened(open)
		done <- result{data, err}
	}()
	select {
	case r := <-done:
		return r.data, r.err
	case <-ctx.Done():
		return nil, errInterrupted
	}
}

// readOpened reads as much of a file as can be decoded, and one byte more.
func readOpened(open func() (io.ReadCloser, error)) ([]byte, error) {
	in, err := open()
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(in, codec.MaxFileSize+1))
	_ = in.Close() // read-only: closing cannot lose data
	return data, err
}

// take reads a part. When ctx is done, it stops between two objects.
func (f *fileFlags) take(ctx context.Context, p *part) {
	if p.data == nil && p.err == nil {
		open := func() (io.ReadCloser, error) { return os.Open(p.source) }
		if p.regular {
			p.data, p.err = readOpened(open)
		} else {
			p.data, p.err = readAll(ctx, open)
		}
	}
	switch {
	case p.err != nil:
		return
	case f.skips:
		p.objects, p.problems, p.skipped = codec.DecodeManifests(ctx.Done(), p.source, p.data, f.namespace)
	default:
		p.objects, p.problems, p.err = codec.DecodeWritten(ctx, p.source, p.data, f.namespace)
	}
	if !f.keeps {
		p.data = nil
	}
}

// expand returns the YAML and JSON files in a directory, or the named file. Files that are not
// regular, such as pipes, are included only if named explicitly. Links may lead to the directories in links,
// too.
func expand(ctx context.Context, name string, links []string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	var paths []string
	walk := filetree.Walk{
		Boundary: filetree.Boundary{
			Root: filepath.Clean(name), Also: links,
			Cure: "a store refuses it unless ?links=/directory at the end of its URL allows it, and validate unless --links does",
		},
		Wanted: func(name string) bool {
			return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
		},
		File: func(path string, _ fs.FileInfo) { paths = append(paths, path) },
		Trouble: func(path, reason string) {
			err = cmp.Or(err, fmt.Errorf("%s: %s", path, reason))
		},
	}
	if _, stopped := walk.Run(ctx); stopped != nil {
		return nil, stopped
	}
	slices.Sort(paths)
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s contains no .yaml, .yml or .json file", name)
	}
	return paths, err
}

// sayProblems prints the problems and returns the number of errors.
func sayProblems(out io.Writer, problems []model.Problem) (errors int) {
	for _, p := range problems {
		word := "error"
		if p.Warning {
			word = "warning"
		} else {
			errors += p.Count()
		}
		_, _ = fmt.Fprintf(out, "%s: %s\n", word, p) // the terminal may be closed
	}
	return errors
}
