// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// content is what a file was found to hold.
type content struct {
	err   error       // of reading it
	info  fs.FileInfo // nil if it is not known
	empty bool
	// charge is what it counts for, in bytes; see [MaxStoreSize].
	charge int64
	sum    [sha256.Size]byte
	// path is that of the objects and problems; empty when the content is what
	// it was, and was not decoded again.
	path     string
	objects  []*model.Config
	problems []model.Problem
}

// decodeContent reads the text of a file.
func decodeContent(ctx context.Context, path string, data []byte) content {
	c := content{sum: sha256.Sum256(data), empty: len(data) == 0, path: path, charge: charge(data)}
	c.objects, c.problems, c.err = codec.DecodeContext(ctx, path, data)
	return c
}

// file is what one file gives.
type file struct {
	path string
	info fs.FileInfo
	sum  [sha256.Size]byte
	// charge is what the content counts for, in bytes.
	charge int64
	// read means that sum, written, objects and problems are those of a
	// content.
	read bool
	// written are the objects of the file, objects those and kept.
	written, objects []*model.Config
	problems         []model.Problem
	// kept are the objects that stay in force although their content went
	// bad; durable means that they outlive the process.
	kept    []*model.Config
	durable bool
	// heldSince is when the file was found gone or empty; zero if it is not.
	heldSince time.Time

	// keys are those that the index knows of the file; dropped means that the
	// file is gone for good.
	keys    []model.Key
	dropped bool
}

// held reports whether the file is gone or empty for the moment.
func (f *file) held() bool { return !f.heldSince.IsZero() }

// stays ends the sentence about an object that is kept.
func (f *file) stays() string { return "; the last good version stays in force" + f.until() }

func (f *file) until() string {
	if f.durable {
		return ""
	}
	return " until the control plane restarts"
}

// update takes the new content of the file and reports whether anything is
// different. Objects that went bad stay as they were; when a document cannot
// even be named, all of the file's objects stay that the new content does not
// replace.
func (f *file) update(c content) bool {
	wasHeld := f.held()
	f.heldSince = time.Time{}
	if c.err != nil {
		problem := model.Problem{Source: f.path, Reason: fmt.Sprintf("the file cannot be read: %v%s", c.err, f.staying(len(f.objects)))}
		same := !f.read && slices.Equal(f.problems, []model.Problem{problem})
		f.read, f.written, f.problems, f.kept = false, nil, []model.Problem{problem}, f.objects
		return !same || wasHeld
	}
	f.charge = c.charge
	if f.read && c.sum == f.sum {
		return wasHeld
	}
	f.read, f.sum, f.written = true, c.sum, c.objects
	f.keepGood(slices.Clone(c.objects), slices.Clone(c.problems))
	return true
}

// fault returns what is wrong with the document of an object in the file, or
// with one that cannot be named and may be it; empty when nothing is.
func (f *file) fault(key model.Key) model.Problem {
	var unnamed model.Problem
	for _, p := range f.problems {
		switch {
		case p.Warning:
		case p.Object == key:
			return p
		case p.Object.Name == "" && p.Unlisted == 0:
			unnamed = p
		}
	}
	if slices.ContainsFunc(f.written, func(c *model.Config) bool { return c.Key == key }) {
		return model.Problem{}
	}
	return unnamed
}

// staying ends the sentence about a file whose objects are kept.
func (f *file) staying(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; its previous object stays in force" + f.until()
	}
	return fmt.Sprintf("; its %d previous objects stay in force%s", n, f.until())
}

func (f *file) keepGood(objects []*model.Config, problems []model.Problem) {
	good, bad, kept := map[model.Key]bool{}, map[model.Key]bool{}, map[model.Key]bool{}
	unnamed, keptUnnamed := false, 0
	f.kept = nil
	for _, c := range objects {
		good[c.Key] = true
	}
	for _, p := range problems {
		if p.Warning {
			continue
		}
		bad[p.Object] = true
		unnamed = unnamed || p.Object.Name == "" && p.Unlisted == 0
	}
	for _, old := range f.objects {
		switch {
		case good[old.Key]:
			continue
		case bad[old.Key]:
			kept[old.Key] = true
		case unnamed:
			keptUnnamed++
		default:
			continue
		}
		objects, f.kept = append(objects, old), append(f.kept, old)
	}
	for i, p := range problems {
		switch {
		case p.Warning:
		case kept[p.Object]:
			problems[i].Reason += f.stays()
		case p.Object.Name == "" && p.Unlisted == 0:
			problems[i].Reason += f.staying(keptUnnamed)
		}
	}
	f.objects, f.problems = objects, problems
}

// fileIndex knows in which files each object stands.
type fileIndex struct {
	holders map[model.Key][]holder
	// bad are the files with problems, doubles the keys with several holders.
	bad     map[*file]bool
	doubles map[model.Key]bool
}

// holder is a file and the object in it.
type holder struct {
	file   *file
	object *model.Config
}

func newFileIndex() fileIndex {
	return fileIndex{holders: map[model.Key][]holder{}, bad: map[*file]bool{}, doubles: map[model.Key]bool{}}
}

// winner returns the holder that counts: the first path of those that are there.
func (x fileIndex) winner(key model.Key) (best holder) {
	for _, h := range x.holders[key] {
		if best.file == nil || precedes(h.file, best.file) {
			best = h
		}
	}
	return best
}

// precedes is the order in which files win: those that are gone for the moment
// come last.
func precedes(a, b *file) bool {
	if a.held() != b.held() {
		return b.held()
	}
	return a.path < b.path
}

// update takes the new state of files. It returns the keys whose objects may have
// changed, and whether problems may have.
func (x fileIndex) update(files map[*file]bool) (keys map[model.Key]bool, problems bool) {
	keys = map[model.Key]bool{}
	for f := range files {
		for _, key := range f.keys {
			keys[key] = true
		}
		f.keys = nil
		problems = problems || x.bad[f]
		delete(x.bad, f)
	}
	for key := range keys { // once for all files that hold it
		x.holders[key] = slices.DeleteFunc(x.holders[key], func(h holder) bool { return files[h.file] })
	}
	for f := range files {
		if f.dropped {
			continue
		}
		for _, c := range f.objects {
			x.holders[c.Key] = append(x.holders[c.Key], holder{f, c})
			f.keys, keys[c.Key] = append(f.keys, c.Key), true
		}
		if len(f.problems) > 0 {
			problems, x.bad[f] = true, true
		}
	}
	for key := range keys {
		problems = problems || x.doubles[key]
		switch len(x.holders[key]) {
		case 0:
			delete(x.holders, key)
			delete(x.doubles, key)
		case 1:
			delete(x.doubles, key)
		default:
			problems, x.doubles[key] = true, true
		}
	}
	return keys, problems
}
