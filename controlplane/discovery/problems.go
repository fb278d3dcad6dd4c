// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
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

// each calls a function for every problem, with the time when it was first seen.
func (p *problems) each(call func(model.Problem, time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for problem, seen := range p.seen {
		call(problem, seen.since)
	}
}

// Report implements [secrets.Reporter]: it logs new problems and drops those that are
// fixed.
func (s *Server) Report(before, now []model.Problem, sequence uint64) {
	for _, p := range s.problems.record(now, sequence) {
		s.warn(p)
	}
	s.problems.over(slices.DeleteFunc(slices.Clone(before), func(p model.Problem) bool { return slices.Contains(now, p) }))
}
