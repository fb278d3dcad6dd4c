// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// fileFlags are those of the commands that read files.
type fileFlags struct {
	cfg       Config
	files     []string
	namespace string
}

func (f *fileFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringSliceVarP(&f.files, "filename", "f", nil, "file, directory (with its subdirectories) or - for standard input; can be repeated")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of objects that name none (default \"default\")")
}

// read returns the valid objects of all files, and the problems with the others.
func (f *fileFlags) read(ctx context.Context) (objects []*model.Config, problems []model.Problem, err error) {
	if len(f.files) == 0 {
		return nil, nil, &ExitError{exitUsage, fmt.Errorf("no files: name them with -f FILE, -f DIRECTORY or -f -")}
	}
	for _, name := range f.files {
		if name == "-" {
			data, err := readAll(ctx, func() (io.ReadCloser, error) { return io.NopCloser(f.cfg.In), nil })
			if err != nil {
				return nil, nil, fmt.Errorf("read standard input: %w", err)
			}
			if err := f.take(ctx, &objects, &problems, "standard input", data); err != nil {
				return nil, nil, err
			}
			continue
		}
		paths, err := expand(name)
		if err != nil {
			return nil, nil, err
		}
		for _, path := range paths {
			data, err := readAll(ctx, func() (io.ReadCloser, error) { return os.Open(path) })
			if err != nil {
				return nil, nil, err
			}
			if err := f.take(ctx, &objects, &problems, path, data); err != nil {
				return nil, nil, err
			}
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

// readKeys returns the keys of the objects in files, for a command that needs no
// more of them: an object that is not valid, or is in several files, has its key
// all the same. What has no key is an error.
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

// readSome reads the valid objects for a command that does something with
// them: no problem may be among them, and one object has to be there.
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

// readAll reads a file until a person has enough: a terminal and a pipe may
// never end, or never begin. Of larger files than can be decoded it returns no
// more than shows that.
func readAll(ctx context.Context, open func() (io.ReadCloser, error)) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() { // reads; nothing but the end of the process stops it
		in, err := open()
		if err != nil {
			done <- result{err: err}
			return
		}
		data, err := io.ReadAll(io.LimitReader(in, codec.MaxFileSize+1))
		_ = in.Close() // it was only read
		done <- result{data, err}
	}()
	select {
	case r := <-done:
		return r.data, r.err
	case <-ctx.Done():
		return nil, errInterrupted
	}
}

// take adds what a file holds. It ends between two objects when ctx is done.
func (f *fileFlags) take(ctx context.Context, objects *[]*model.Config, problems *[]model.Problem, source string, data []byte) error {
	o, p, err := codec.DecodeWritten(ctx, source, data, f.namespace)
	if err != nil {
		return errInterrupted
	}
	*objects, *problems = append(*objects, o...), append(*problems, p...)
	return nil
}

// expand returns the YAML and JSON files of a directory, or the one file. What is
// no file, as a pipe, counts only if it was named itself.
func expand(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	var paths []string
	root := filepath.Clean(name) + string(filepath.Separator) // the directory behind a link
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") && path != root
		switch ext := filepath.Ext(path); {
		case hidden && d.IsDir():
			return filepath.SkipDir
		case !hidden && !d.IsDir() && (ext == ".yaml" || ext == ".yml" || ext == ".json"):
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			if info.Mode().IsRegular() {
				paths = append(paths, path)
			}
		}
		return nil
	})
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s holds no .yaml, .yml or .json file", name)
	}
	return paths, err
}

// sayProblems prints what is wrong, and tells how many are errors.
func sayProblems(out io.Writer, problems []model.Problem) (errors int) {
	for _, p := range problems {
		word := "error"
		if p.Warning {
			word = "warning"
		} else {
			errors += p.Count()
		}
		_, _ = fmt.Fprintf(out, "%s: %s\n", word, p) // the terminal may be gone
	}
	return errors
}
