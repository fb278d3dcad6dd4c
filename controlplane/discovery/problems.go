// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"sync"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// problems remembers what was logged, so that each problem is logged once and
// not for each proxy. It holds what the last two snapshots showed, no more.
type problems struct {
	mu sync.Mutex // guards told
	// told is the newest snapshot, by its sequence, in which each was seen.
	told map[model.Problem]uint64
}

// fresh gives those that are new, and notes that all were seen.
func (p *problems) fresh(list []model.Problem, sequence uint64) []model.Problem {
	if len(list) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told == nil {
		p.told = map[model.Problem]uint64{}
	}
	var out []model.Problem
	for _, problem := range list {
		seen, known := p.told[problem]
		if !known {
			out = append(out, problem)
		}
		p.told[problem] = max(seen, sequence)
	}
	return out
}

// forget drops what the snapshot before this one did not show: should it come
// back, it is news.
func (p *problems) forget(sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for problem, seen := range p.told {
		if seen+1 < sequence {
			delete(p.told, problem)
		}
	}
}
