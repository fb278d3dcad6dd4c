// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// file is what one file gives.
type file struct {
	path string
	info fs.FileInfo
	sum  [sha256.Size]byte
	// read means that sum, objects and problems are those of a content.
	read     bool
	objects  []*model.Config
	problems []model.Problem
	// kept are the objects that stay in force although their content went
	// bad; durable means that they outlive the process.
	kept    []*model.Config
	durable bool
	// heldSince is when the file was found gone or empty; zero if it is not.
	heldSince time.Time
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

// update takes the new content of the file, or the error of reading it, and
// reports whether anything is different. Objects that went bad stay as they
// were; when a document cannot even be named, all of the file's objects stay
// that the new content does not replace.
func (f *file) update(data []byte, err error) bool {
	wasHeld := f.held()
	f.heldSince = time.Time{}
	if err != nil {
		problem := model.Problem{Source: f.path, Reason: fmt.Sprintf("the file cannot be read: %v%s", err, f.staying(len(f.objects)))}
		same := !f.read && slices.Equal(f.problems, []model.Problem{problem})
		f.read, f.problems, f.kept = false, []model.Problem{problem}, f.objects
		return !same || wasHeld
	}
	sum := sha256.Sum256(data)
	if f.read && sum == f.sum {
		return wasHeld
	}
	f.read, f.sum = true, sum
	objects, problems := Decode(f.path, data)
	f.keepGood(objects, problems)
	return true
}

// staying ends the sentence about a file whose objects are kept.
func (f *file) staying(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; the object that it held before stays in force" + f.until()
	}
	return fmt.Sprintf("; the %d objects that it held before stay in force%s", n, f.until())
}

func (f *file) keepGood(objects []*model.Config, problems []model.Problem) {
	good, bad, kept := map[model.Key]bool{}, map[model.Key]bool{}, map[model.Key]bool{}
	unnamed, keptUnnamed := false, 0
	f.kept = nil
	for _, c := range objects {
		good[c.Key] = true
	}
	for _, p := range problems {
		bad[p.Object] = true
		unnamed = unnamed || p.Object.Name == ""
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
		case kept[p.Object]:
			problems[i].Reason += f.stays()
		case p.Object.Name == "":
			problems[i].Reason += f.staying(keptUnnamed)
		}
	}
	f.objects, f.problems = objects, problems
}

// listKey names a list of a snapshot; an empty namespace means all.
type listKey struct {
	kind      model.Kind
	namespace string
}

// fileSnapshot is the state of a store at one moment. It is never changed
// once it is finished.
type fileSnapshot struct {
	byKey    map[model.Key]*model.Config
	lists    map[listKey][]*model.Config
	problems []model.Problem
	// places holds the file of each problem; known all that were logged.
	places []string
	known  map[problemIdentity]bool
	winner map[model.Key]*file
}

// problemIdentity tells problems apart although lines move.
type problemIdentity struct {
	place  string
	object model.Key
	reason string
}

func newFileSnapshot() *fileSnapshot {
	return &fileSnapshot{
		byKey:  map[model.Key]*model.Config{},
		lists:  map[listKey][]*model.Config{},
		known:  map[problemIdentity]bool{},
		winner: map[model.Key]*file{},
	}
}

func (s *fileSnapshot) problem(place string, p model.Problem) {
	s.problems = append(s.problems, p)
	s.places = append(s.places, place)
	s.known[s.identity(len(s.problems)-1)] = true
}

func (s *fileSnapshot) identity(i int) problemIdentity {
	p := s.problems[i]
	return problemIdentity{place: s.places[i], object: p.Object, reason: p.Reason}
}

// add takes the objects of a file that no earlier file has.
func (s *fileSnapshot) add(f *file) {
	for _, p := range f.problems {
		s.problem(f.path, p)
	}
	for _, c := range f.objects {
		first := s.winner[c.Key]
		switch {
		case first == nil:
			s.winner[c.Key] = f
			s.byKey[c.Key] = c
		case !f.held():
			s.problem(f.path, model.Problem{Object: c.Key, Source: c.Source, Reason: fmt.Sprintf(
				"the same object stands in %s, which comes first: remove one of them", s.byKey[c.Key].Source)})
		}
	}
}

// finish makes the lists.
func (s *fileSnapshot) finish() {
	s.winner = nil
	for _, c := range s.byKey {
		for _, namespace := range []string{"", c.Namespace} {
			k := listKey{c.Kind, namespace}
			s.lists[k] = append(s.lists[k], c)
		}
	}
	for _, list := range s.lists {
		slices.SortFunc(list, model.Older)
	}
}

// diff names the objects that differ between two states.
func (s *fileSnapshot) diff(prev *fileSnapshot) model.Change {
	change := model.NewChange()
	for key, c := range s.byKey {
		if old := prev.byKey[key]; old == nil || old.ResourceVersion != c.ResourceVersion {
			change.Keys[key] = struct{}{}
		}
	}
	for key := range prev.byKey {
		if s.byKey[key] == nil {
			change.Keys[key] = struct{}{}
		}
	}
	return change
}
