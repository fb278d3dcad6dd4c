// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// problems remembers what was logged, so that each problem is logged once and
// not for each proxy. It holds what the last two snapshots showed, no more.
type problems struct {
	mu   sync.Mutex // guards told
	told map[model.Problem]told
}

// told is the newest snapshot, by its sequence, in which a problem was seen, and
// when it was seen first.
type told struct {
	sequence uint64
	since    time.Time
}

// fresh returns those that are new, and notes that all were seen.
func (p *problems) fresh(list []model.Problem, sequence uint64) []model.Problem {
	if len(list) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told == nil {
		p.told = map[model.Problem]told{}
	}
	var out []model.Problem
	for _, problem := range list {
		seen, known := p.told[problem]
		if !known {
			seen.since = time.Now()
			out = append(out, problem)
		}
		seen.sequence = max(seen.sequence, sequence)
		p.told[problem] = seen
	}
	return out
}

// over drops what is wrong no more, although there is no newer snapshot.
func (p *problems) over(list []model.Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, problem := range list {
		delete(p.told, problem)
	}
}

// forget drops what the snapshot before this one did not show: should it come
// back, it is news.
func (p *problems) forget(sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for problem, seen := range p.told {
		if seen.sequence+1 < sequence {
			delete(p.told, problem)
		}
	}
}

// each calls for the problems that there are, and when each was seen first.
func (p *problems) each(call func(model.Problem, time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for problem, seen := range p.told {
		call(problem, seen.since)
	}
}

// Report implements [secrets.Reporter]: it logs problems that are new and drops
// those that are over.
func (s *Server) Report(before, now []model.Problem, sequence uint64) {
	for _, p := range s.problems.fresh(now, sequence) {
		s.warn(p)
	}
	s.problems.over(slices.DeleteFunc(slices.Clone(before), func(p model.Problem) bool { return slices.Contains(now, p) }))
}
