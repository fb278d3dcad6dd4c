// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// problems records the problems that were logged, so that each is logged once and not
// for each proxy. It contains only problems of the last two snapshots.
type problems struct {
	mu   sync.Mutex // guards seen
	seen map[model.Problem]seenProblem
}

// seenProblem is the sequence of the newest snapshot that has a problem, and the time
// when it was first seen.
type seenProblem struct {
	sequence uint64
	since    time.Time
}

// record records a list of problems, and returns those that are new.
func (p *problems) record(list []model.Problem, sequence uint64) []model.Problem {
	if len(list) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == nil {
		p.seen = map[model.Problem]seenProblem{}
	}
	var out []model.Problem
	for _, problem := range list {
		seen, known := p.seen[problem]
		if !known {
			seen.since = time.Now()
			out = append(out, problem)
		}
		seen.sequence = max(seen.sequence, sequence)
		p.seen[problem] = seen
	}
	return out
}

// over drops problems that are fixed, although there is no newer snapshot.
func (p *problems) over(list []model.Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, problem := range list {
		delete(p.seen, problem)
	}
}

// forget drops the problems that the snapshot before sequence did not have. If they
// recur, they are logged again.
func (p *problems) forget(sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for problem, seen := range p.seen {
		if seen.sequence+1 < sequence {
			delete(p.seen, problem)
		}
	}
}

// each calls a function for every problem of the snapshot of a sequence or a later one, with the
// time when it was first seen.
func (p *problems) each(sequence uint64, call func(model.Problem, time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for problem, seen := range p.seen {
		if seen.sequence >= sequence {
			call(problem, seen.since)
		}
	}
}

// Problems returns the problems that were found while generating the configuration of the connected
// proxies, each once, in the order of their objects. The problems of a snapshot count until all
// proxies have answered a newer one.
func (s *Server) Problems() (out []model.Problem) {
	s.problems.each(s.oldest(), func(p model.Problem, _ time.Time) { out = append(out, p) })
	slices.SortFunc(out, func(a, b model.Problem) int {
		return cmp.Or(strings.Compare(a.Object.String(), b.Object.String()), strings.Compare(a.Reason, b.Reason), strings.Compare(a.Source, b.Source))
	})
	return model.LimitProblems(out)
}

// oldest returns the lowest sequence of the snapshots that the connected proxies have.
func (s *Server) oldest() uint64 {
	mesh := s.mesh.Load()
	if mesh == nil {
		return 0
	}
	oldest := mesh.Sequence
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if p, follows := st.acks.standing(); follows {
			oldest = min(oldest, p.Settled)
		}
	}
	return oldest
}

// Report implements [secrets.Reporter]: it logs new problems and drops those that are
// fixed.
func (s *Server) Report(before, now []model.Problem, sequence uint64) {
	for _, p := range s.problems.record(now, sequence) {
		s.warn(p)
	}
	s.problems.over(slices.DeleteFunc(slices.Clone(before), func(p model.Problem) bool { return slices.Contains(now, p) }))
}
