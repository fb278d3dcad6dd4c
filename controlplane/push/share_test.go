// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package push

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// large returns a change of many objects.
func large() model.Change {
	c := model.NewChange()
	for i := range 10_000 {
		c.Keys[key(i)] = struct{}{}
	}
	return c
}

// TestBurstIsNotCopied checks that adding single changes to a large pending one does not copy
// it and does not modify the changes of the callers.
func TestBurstIsNotCopied(t *testing.T) {
	first, d := large(), NewDebouncer(DebouncerConfig{})
	d.Add(first)
	one := model.NewChange(key(10_001))
	if n := testing.AllocsPerRun(100, func() { d.Add(one) }); n >= 1 {
		t.Errorf("%v allocations for adding a change, want none: the large one is copied", n)
	}
	if len(first.Keys) != 10_000 || len(one.Keys) != 1 {
		t.Errorf("a caller's change was modified: %d and %d keys", len(first.Keys), len(one.Keys))
	}
	if c, _ := d.take(); len(c.Keys) != 10_001 || c.All {
		t.Errorf("take() has %d keys, want 10001", len(c.Keys))
	}
	d.Add(model.Change{All: true})
	d.Add(one)
	if c, _ := d.take(); !c.All {
		t.Error("adding a change to one of all objects reset All")
	}
}
