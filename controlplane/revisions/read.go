// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

const (
	// begins is the change of the first line of a file.
	begins = "begins"
	// maxObject is the size in bytes of the largest object that is recorded.
	maxObject = 4 << 20
	// maxFound is the maximum number of versions, or of changed objects, in an answer.
	maxFound = 1000
)

// EarlierError means that a moment precedes the history.
type EarlierError struct {
	Begins time.Time // of the history
}

// Error implements error.
func (e EarlierError) Error() string {
	return "the history does not reach back so far: it begins at " + e.Begins.Format(time.RFC3339)
}

// Filter selects versions. Empty fields select all.
type Filter struct {
	Kind            model.Kind
	Namespace, Name string
	Since           time.Time
	// Revision is the beginning of a revision. The objects of matching versions are returned with
	// them.
	Revision string
}

func (f Filter) selects(v report.Version) bool {
	return (f.Kind == "" || v.Kind == string(f.Kind)) && (f.Namespace == "" || v.Namespace == f.Namespace) &&
		(f.Name == "" || v.Name == f.Name) && !v.At.Before(f.Since) && strings.HasPrefix(v.Revision, f.Revision)
}

// List returns the versions that a filter selects, at most 1000.
func (l *Log) List(f Filter) (report.History, error) {
	l.wait()
	out := report.History{Versions: []report.Version{}}
	last := map[model.Key]report.Version{}
	var err error
	out.Begins, err = l.scan(func(v report.Version, object []byte) {
		if !f.selects(v) {
			return
		}
		key := keyOf(v.Ref)
		if old := last[key]; v.Change == report.Found && old.Revision == v.Revision && old.At.Equal(v.At) {
			return // the first lines of a file repeat the versions of the file before
		}
		last[key] = v
		if f.Revision != "" {
			v.Object = bytes.Clone(object)
		}
		if len(out.Versions) == maxFound {
			out.Versions = out.Versions[1:]
			out.Omitted++
		}
		out.Versions = append(out.Versions, v)
	})
	slices.SortStableFunc(out.Versions, func(a, b report.Version) int { return a.At.Compare(b.At) })
	return out, err
}

// Changes returns the objects that differ between two moments, with both versions. It returns an
// error if there are more than 1000, or if the history begins later.
func (l *Log) Changes(from, to time.Time) ([]report.Changed, error) {
	l.wait()
	type pair struct{ before, after string } // revisions
	pairs := map[model.Key]pair{}
	start, err := l.scan(func(v report.Version, _ []byte) {
		p := pairs[keyOf(v.Ref)]
		if !v.At.After(from) {
			p.before = v.Revision
		}
		if !v.At.After(to) {
			p.after = v.Revision
		}
		pairs[keyOf(v.Ref)] = p
	})
	switch {
	case err != nil:
		return nil, err
	case from.Before(start):
		return nil, EarlierError{start}
	}
	differ := map[model.Key]*report.Changed{}
	for key, p := range pairs {
		if p.before != p.after {
			differ[key] = &report.Changed{Ref: report.Ref{Kind: string(key.Kind), Namespace: key.Namespace, Name: key.Name}}
		}
	}
	if len(differ) > maxFound {
		return nil, fmt.Errorf("%d objects differ; at most %d can be compared: choose a shorter time", len(differ), maxFound)
	}
	_, err = l.scan(func(v report.Version, object []byte) {
		key := keyOf(v.Ref)
		c := differ[key]
		if c == nil || v.Revision == "" {
			return
		}
		v.Object = bytes.Clone(object)
		if v.Revision == pairs[key].before && !v.At.After(from) {
			c.Before = &v
		}
		if v.Revision == pairs[key].after && !v.At.After(to) {
			c.After = &v
		}
	})
	var out []report.Changed
	for _, c := range differ {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b report.Changed) int { return a.Compare(b.Ref) })
	return out, err
}

// Earlier returns the newest versions of the objects of a kind, at most n of each, the oldest first.
// It may be called before [Log.Run], and then returns those of earlier runs.
func (l *Log) Earlier(kind model.Kind, n int) (map[model.Key][]*model.Config, error) {
	found := map[model.Key][]report.Version{}
	_, err := l.scan(func(v report.Version, object []byte) {
		key := keyOf(v.Ref)
		list := found[key]
		switch {
		case key.Kind != kind:
		case v.Change == report.Deleted:
			delete(found, key)
		case len(list) == 0 || list[len(list)-1].Revision != v.Revision: // a new file repeats the newest versions
			v.Object = bytes.Clone(object)
			found[key] = append(list[max(0, len(list)-n+1):], v)
		}
	})
	out := make(map[model.Key][]*model.Config, len(found))
	for key, list := range found {
		for _, v := range list {
			if c, err := Object(v); err == nil { // else it was valid for another version of the control plane
				out[key] = append(out[key], c)
			}
		}
	}
	return out, err
}

// scan calls visit with each version in the files, the oldest first, and returns when the history
// begins. The object is valid during the call.
func (l *Log) scan(visit func(v report.Version, object []byte)) (start time.Time, err error) {
	l.mu.Lock()
	fault := l.fault
	l.mu.Unlock()
	if fault != nil {
		return start, fault
	}
	l.files.Lock()
	var files []*os.File
	for _, name := range []string{previousFile, currentFile} {
		f, openErr := os.Open(filepath.Join(l.cfg.Dir, name))
		if openErr == nil {
			defer func() { _ = f.Close() }() // read-only: closing cannot lose data
			files = append(files, f)
		} else if !errors.Is(openErr, fs.ErrNotExist) {
			err = openErr
		}
	}
	l.files.Unlock()
	for _, f := range files {
		if err == nil {
			err = scanFile(f, func(v report.Version, object []byte) {
				switch {
				case v.Change != begins:
					visit(v, object)
				case start.IsZero():
					start = v.At
				}
			})
		}
	}
	if err != nil {
		return start, fmt.Errorf("read the versions of objects: %w", err)
	}
	return start, nil
}

// scanFile calls visit for each complete line of a file.
func scanFile(f io.Reader, visit func(v report.Version, object []byte)) error {
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 64<<10), maxObject+64<<10)
	for lines.Scan() {
		first, object, _ := bytes.Cut(lines.Bytes(), []byte("\t"))
		var h header
		if json.Unmarshal(first, &h) == nil && len(object) == h.Size { // else the line is not complete
			visit(h.Version, object)
		}
	}
	return lines.Err()
}

// header is the beginning of a line: a version without the object.
type header struct {
	report.Version
	Size int `json:"size"` // of the object, in bytes
}

// lineOf returns the line of a version in a file: the header, a tab, the object.
func lineOf(v report.Version, object []byte) ([]byte, error) {
	first, err := json.Marshal(header{v, len(object)})
	if err != nil {
		return nil, fmt.Errorf("write a version of %s: %w", keyOf(v.Ref), err)
	}
	return slices.Concat(first, []byte("\t"), object, []byte("\n")), nil
}

func keyOf(r report.Ref) model.Key {
	return model.Key{Kind: model.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name}
}
