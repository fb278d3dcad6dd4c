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
	"maps"
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
	// maxObject is the size in bytes of the largest object that is recorded, and maxLine of its line.
	maxObject, maxLine = 4 << 20, maxObject + 64<<10
	// maxFound is the maximum number of versions, or of changed objects, in an answer.
	maxFound = 1000
)

// EarlierError means that a moment precedes the history.
type EarlierError struct {
	Begins time.Time // of the history
}

// Error implements error. The moment that it names is in the history.
func (e EarlierError) Error() string {
	return "the history does not reach back so far: it begins at " + e.Begins.Add(time.Second-1).Format(time.RFC3339)
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

// found sets the number of damaged lines.
func (l *Log) found(damaged int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.damaged = damaged
}

// Problem returns what is wrong with the log, with the cure; "" if all is well.
func (l *Log) Problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.fault != nil:
		return fmt.Sprintf("changes since %s are not recorded: %v", l.stopped.UTC().Format(time.RFC3339), l.fault)
	case l.damaged > 0:
		return fmt.Sprintf("damaged lines of its files: %d; versions may be missing until newer ones have replaced them. Check the disk of %s", l.damaged, l.cfg.Dir)
	}
	return ""
}

// List returns the versions that a filter selects, at most 1000.
func (l *Log) List(f Filter) (report.History, error) {
	l.wait()
	out := report.History{Versions: []report.Version{}}
	files, err := l.read()
	if err != nil {
		return out, err
	}
	defer files.close()
	if f.Name != "" {
		name, err := json.Marshal(f.Name)
		if err != nil {
			return out, err
		}
		files.only = append([]byte(`"name":`), name...)
	}
	last := map[model.Key]report.Version{}
	err = files.scan(func(e entry) {
		v := e.Version
		if !f.selects(v) {
			return
		}
		key := keyOf(v.Ref)
		if old := last[key]; v.Change == report.Found && old.Revision == v.Revision && old.At.Equal(v.At) {
			return // the first lines of a file repeat the versions of the file before
		}
		last[key] = v
		if f.Revision != "" && v.Revision != "" {
			if revisionOf(e.object) != v.Revision {
				files.damaged++
				return
			}
			v.Object = bytes.Clone(e.object)
		}
		if len(out.Versions) == maxFound {
			out.Versions = out.Versions[1:]
			out.Omitted++
		}
		out.Versions = append(out.Versions, v)
	})
	slices.SortStableFunc(out.Versions, func(a, b report.Version) int { return a.At.Compare(b.At) })
	out.Begins, out.Damaged = files.begins, files.damaged
	if f == (Filter{}) && err == nil {
		l.found(files.damaged)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault != nil {
		out.Stopped, out.Reason = l.stopped, l.fault.Error()
	}
	return out, err
}

// Changes returns the objects that differ between two moments, with both versions. It returns an
// error if there are more than 1000, or if the history begins later or has stopped before.
func (l *Log) Changes(from, to time.Time) ([]report.Changed, error) {
	l.wait()
	l.mu.Lock()
	fault, stopped := l.fault, l.stopped
	l.mu.Unlock()
	if fault != nil && to.After(stopped) {
		return nil, fmt.Errorf("versions of objects are not recorded since %s: %w", stopped.Format(time.RFC3339), fault)
	}
	files, err := l.read()
	if err != nil {
		return nil, err
	}
	defer files.close()
	type pair struct{ before, after entry }
	pairs := map[model.Key]pair{}
	err = files.scan(func(e entry) {
		key := keyOf(e.Ref)
		p := pairs[key]
		if !e.At.After(from) {
			p.before = e
		}
		if !e.At.After(to) {
			p.after = e
		}
		pairs[key] = p
	})
	switch {
	case err != nil:
		return nil, err
	case from.Before(files.begins):
		return nil, EarlierError{files.begins}
	}
	maps.DeleteFunc(pairs, func(_ model.Key, p pair) bool { return p.before.Revision == p.after.Revision })
	if len(pairs) > maxFound {
		return nil, fmt.Errorf("%d objects differ; at most %d can be compared: choose a shorter time", len(pairs), maxFound)
	}
	var out []report.Changed
	for key, p := range pairs {
		c := report.Changed{Ref: report.Ref{Kind: string(key.Kind), Namespace: key.Namespace, Name: key.Name}}
		if c.Before, err = p.before.load(); err != nil {
			return nil, err
		}
		if c.After, err = p.after.load(); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b report.Changed) int { return a.Compare(b.Ref) })
	return out, nil
}

// Earlier returns the newest versions of the objects of a kind, at most n of each, the oldest first.
// It may be called before [Log.Run], and then returns those of earlier runs.
func (l *Log) Earlier(kind model.Kind, n int) (map[model.Key][]*model.Config, error) {
	files, err := l.read()
	if err != nil {
		return nil, err
	}
	defer files.close()
	found := map[model.Key][]report.Version{}
	err = files.scan(func(e entry) {
		v := e.Version
		key := keyOf(v.Ref)
		list := found[key]
		switch {
		case key.Kind != kind:
		case v.Change == report.Deleted:
			delete(found, key)
		case revisionOf(e.object) != v.Revision: // damaged
		case len(list) == 0 || list[len(list)-1].Revision != v.Revision: // a new file repeats the newest versions
			v.Object = bytes.Clone(e.object)
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

// read opens the files for reading. It returns an error if they are those of another control plane.
func (l *Log) read() (*reader, error) {
	l.mu.Lock()
	fault := l.fault
	l.mu.Unlock()
	if errors.Is(fault, errTaken) {
		return nil, fault
	}
	l.files.Lock()
	defer l.files.Unlock()
	return openReader(l.cfg.Dir)
}

// reader reads the files, also after they have been replaced.
type reader struct {
	files []*os.File // the older one first
	only  []byte     // what versions to visit have in common, as they are written; nil means all

	// Scan sets the fields below.
	begins   time.Time // when the history begins; zero if there is none
	damaged  int       // lines that are no versions
	complete int64     // size in bytes of the last file, without an incomplete line
}

func openReader(dir string) (*reader, error) {
	r := &reader{}
	for _, name := range []string{previousFile, currentFile} {
		switch f, err := os.Open(filepath.Join(dir, name)); {
		case err == nil:
			r.files = append(r.files, f)
		case !errors.Is(err, fs.ErrNotExist):
			r.close()
			return nil, fmt.Errorf("read the versions of objects: %w", err)
		}
	}
	return r, nil
}

func (r *reader) close() {
	for _, f := range r.files {
		_ = f.Close() // read-only: closing cannot lose data
	}
}

// entry is a version in a file.
type entry struct {
	report.Version
	object []byte // valid while the entry is visited

	file   *os.File
	offset int64 // of the object
	size   int   // of the object
}

// load reads the object of an entry. It returns nil for an object that did not exist.
func (e entry) load() (*report.Version, error) {
	if e.Revision == "" {
		return nil, nil
	}
	v := e.Version
	v.Object = make([]byte, e.size)
	_, err := e.file.ReadAt(v.Object, e.offset)
	if err == nil && revisionOf(v.Object) != v.Revision {
		err = errors.New("it is damaged")
	}
	if err != nil {
		return nil, fmt.Errorf("read version %s of %s in %s: %w", v.Revision, keyOf(v.Ref), e.file.Name(), err)
	}
	return &v, nil
}

// scan calls visit with each version, the oldest first. It leaves out damaged lines, and lines whose
// beginning of the history is missing.
func (r *reader) scan(visit func(e entry)) error {
	r.begins, r.damaged = time.Time{}, 0
	for _, f := range r.files {
		if err := r.scanFile(f, visit); err != nil {
			return fmt.Errorf("read the versions of objects: %w", err)
		}
	}
	return nil
}

func (r *reader) scanFile(f *os.File, visit func(e entry)) error {
	in, line, offset := bufio.NewReaderSize(f, 256<<10), []byte(nil), int64(0)
	for {
		length, err := int64(0), error(nil)
		line, length, err = readLine(in, line[:0])
		if errors.Is(err, io.EOF) {
			r.complete = offset
			return nil // the last line is still being written, or a crash has cut it
		} else if err != nil {
			return err
		}
		first, object, _ := bytes.Cut(line, []byte("\t"))
		e := entry{object: object, file: f, offset: offset + int64(len(first)) + 1, size: len(object)}
		offset += length
		var h header
		switch {
		case len(line) == 0:
		case !r.begins.IsZero() && !bytes.Contains(first, r.only) && bytes.HasPrefix(first, []byte("{")) && bytes.HasSuffix(first, []byte("}")):
			// It is a version of another object.
		case json.Unmarshal(first, &h) != nil || len(object) != h.Size:
			r.damaged++
		case h.Change == begins && r.begins.IsZero():
			r.begins = h.At
		case h.Change != begins && !r.begins.IsZero():
			e.Version = h.Version
			visit(e)
		}
	}
}

// readLine appends a line without its end to b, and returns its length in the file. The line is
// shorter if it is longer than any that is written.
func readLine(in *bufio.Reader, b []byte) (line []byte, length int64, err error) {
	for {
		part, err := in.ReadSlice('\n')
		length += int64(len(part))
		if len(b)+len(part) <= maxLine {
			b = append(b, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSuffix(b, []byte("\n")), length, err
		}
	}
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
