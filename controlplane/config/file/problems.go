// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// maxLogged bounds the problems that are logged of one change, when they come
// and when they go.
const maxLogged = 20

// fileSnapshot is what is wrong with a store at one moment. It is never
// changed once it was published.
type fileSnapshot struct {
	problems []model.Problem
	// places holds the file of each problem; known all of them.
	places []string
	known  map[problemIdentity]bool
}

// problemIdentity tells problems apart although lines and counts change.
type problemIdentity struct {
	place  string
	object model.Key
	reason string
}

func (s *fileSnapshot) problem(place string, p model.Problem) {
	s.problems = append(s.problems, p)
	s.places = append(s.places, place)
	s.known[s.identity(len(s.problems)-1)] = true
}

func (s *fileSnapshot) identity(i int) problemIdentity {
	p := s.problems[i]
	if p.Unlisted > 0 {
		p.Reason = ""
	}
	return problemIdentity{place: s.places[i], object: p.Object, reason: p.Reason}
}

// placed are the problems of one file, or of what cannot be read.
type placed struct {
	place    func(i int) string
	problems []model.Problem
}

// report returns what is wrong now, at most [model.MaxProblems]: the files share
// them evenly. One more counts the rest.
func (t *tree) report(index fileIndex) *fileSnapshot {
	var all []placed
	if dirs := slices.Sorted(maps.Keys(t.trouble)); len(dirs) > 0 {
		list := make([]model.Problem, len(dirs))
		for i, dir := range dirs {
			list[i] = model.Problem{Source: dir, Reason: "it cannot be read: " + t.trouble[dir] +
				"; its previous objects stay in force"}
		}
		all = append(all, placed{func(i int) string { return dirs[i] }, list})
	}
	all = append(all, index.problems()...)
	// Whole rounds fit, in which each file lists one more, and a part of the next.
	level, room := 0, model.MaxProblems
	for n := deeper(all, 0); n > 0 && n <= room; n = deeper(all, level) {
		room -= n
		level++
	}
	s, rest := &fileSnapshot{known: map[problemIdentity]bool{}}, model.Problem{Source: t.dir, Warning: true}
	for _, of := range all {
		most := level
		if len(of.problems) > level && room > 0 {
			most, room = level+1, room-1
		}
		for i, p := range of.problems {
			if i < most {
				s.problem(of.place(i), p)
				continue
			}
			rest.Unlisted += p.Count()
			rest.Warning = rest.Warning && p.Warning
		}
	}
	if rest.Unlisted > 0 {
		rest.Reason = field.Unlisted(rest.Unlisted, "problem")
		s.problem(t.dir, rest)
	}
	return s
}

// deeper counts the lists that are longer than a level.
func deeper(all []placed, level int) (n int) {
	for _, of := range all {
		if len(of.problems) > level {
			n++
		}
	}
	return n
}

// problems returns what is wrong with the files, in the order in which they win, and
// the objects that do not count because an earlier file has them.
func (x fileIndex) problems() (all []placed) {
	files := maps.Clone(x.bad)
	winners := make(map[model.Key]holder, len(x.doubles))
	for key := range x.doubles {
		winners[key] = x.winner(key)
		for _, h := range x.holders[key] {
			files[h.file] = true
		}
	}
	for _, f := range slices.SortedFunc(maps.Keys(files), func(a, b *file) int {
		if precedes(a, b) {
			return -1
		}
		return 1
	}) {
		list := slices.Clip(f.problems)
		for _, c := range f.objects {
			if w, double := winners[c.Key]; double && !f.held() && w.file != f {
				list = append(list, model.Problem{Object: c.Key, Source: c.Source, Reason: fmt.Sprintf(
					"the same object is in %s, which comes first: remove one of them from its file; a deletion of the object removes all", w.object.Source)})
			}
		}
		all = append(all, placed{func(int) string { return f.path }, list})
	}
	return all
}

// logProblems says once that a problem is there and once that it is gone, and
// counts the rest of many.
func (s *Store) logProblems(prev, next *fileSnapshot) {
	more := news(prev, next, func(p model.Problem) {
		s.log.Warn("a configuration object has a problem", problemAttrs(p)...)
	})
	more += news(next, prev, func(p model.Problem) {
		s.log.Info("a problem with a configuration object is resolved", problemAttrs(p)...)
	})
	if more > 0 {
		s.log.Warn("further problems with configuration objects are not logged", "path", s.cfg.Dir, "count", more)
	}
}

func problemAttrs(p model.Problem) []any {
	return []any{
		slog.String("kind", string(p.Object.Kind)), slog.String("name", p.Object.Name), slog.String("namespace", p.Object.Namespace),
		slog.String("source", p.Source), slog.String("reason", p.Reason),
	}
}

// news calls for the first problems that the second snapshot has and the first
// one lacks, and returns how many more there are. Every file has its turn before
// one has a second.
func news(before, now *fileSnapshot, call func(model.Problem)) (more int) {
	var first, others []int
	seen := map[string]bool{}
	for i := range now.problems {
		if place := now.places[i]; before.known[now.identity(i)] {
			continue
		} else if seen[place] {
			others = append(others, i)
		} else {
			seen[place] = true
			first = append(first, i)
		}
	}
	list := append(first, others...)
	for _, i := range list[:min(maxLogged, len(list))] {
		call(now.problems[i])
	}
	for _, i := range list[min(maxLogged, len(list)):] {
		more += now.problems[i].Count()
	}
	return more
}
