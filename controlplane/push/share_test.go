// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package push

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// large gives a change of many objects.
func large() model.Change {
	c := model.NewChange()
	for i := range 10_000 {
		c.Keys[key(i)] = struct{}{}
	}
	return c
}

// TestBurstIsGatheredInPlace adds single changes to a large one that waits: none
// of them copies it, and what the callers gave stays theirs.
func TestBurstIsGatheredInPlace(t *testing.T) {
	first, d := large(), NewDebouncer(DebouncerConfig{})
	d.Add(first)
	one := model.NewChange(key(10_001))
	if n := testing.AllocsPerRun(100, func() { d.Add(one) }); n >= 1 {
		t.Errorf("%v allocations for one more change: the large one is copied", n)
	}
	if len(first.Keys) != 10_000 || len(one.Keys) != 1 {
		t.Errorf("a change of a caller was altered: %d and %d keys", len(first.Keys), len(one.Keys))
	}
	if c, _ := d.take(); len(c.Keys) != 10_001 || c.All {
		t.Errorf("took %d keys, want all 10001", len(c.Keys))
	}
	d.Add(model.Change{All: true})
	d.Add(one)
	if c, _ := d.take(); !c.All {
		t.Error("one more change took back that everything changed")
	}
}

// TestConnectionsShareAChange queues one large change for many connections that
// wait for nothing else: it is not copied for each.
func TestConnectionsShareAChange(t *testing.T) {
	c, q, conn := large(), NewQueue[int](), 0
	if n := testing.AllocsPerRun(1000, func() {
		q.Enqueue(conn, c)
		conn++
	}); n >= 2 { // the maps of the queue grow
		t.Errorf("%v allocations for each connection: the change is copied", n)
	}
	q.Enqueue(0, model.NewChange(key(10_001)))
	if len(c.Keys) != 10_000 || len(q.pending[0].Keys) != 10_001 || len(q.pending[1].Keys) != 10_000 {
		t.Errorf("one connection's change altered that of others: %d, %d, %d keys", len(c.Keys), len(q.pending[0].Keys), len(q.pending[1].Keys))
	}
}
