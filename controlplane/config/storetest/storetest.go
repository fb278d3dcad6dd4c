// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Options says what a store offers beside the contract, or cannot do.
type Options struct {
	// Reopen opens a second store on the backing of s, which Open gave; it is
	// not run yet. Nil means that the backing belongs to one store alone.
	Reopen func(t *testing.T, s config.Store) config.Store
	// Fill makes objects all that the source of s, which Open gave, holds. A
	// store with Fill takes no writes: only the reading half of the suite is
	// run, and that every write fails with config.ErrReadOnly.
	Fill func(t *testing.T, s config.Store, objects ...*model.Config)
	// Serial means that Open empties the one backing there is: the cases run one
	// after another.
	Serial bool
	// Wait is how long the suite waits for what has to happen; 0 means 2 minutes.
	Wait time.Duration
}

// Run runs the suite, each case as a parallel subtest on a store of its own.
// Open returns a store that was not run yet, on a fresh and empty backing.
func Run(t *testing.T, open func(t *testing.T) config.Store, opts Options) {
	t.Helper()
	if opts.Wait == 0 {
		opts.Wait = 2 * time.Minute
	}
	s := &suite{open: open, opts: opts}
	cases := writeCases
	if opts.Fill != nil {
		cases = readOnlyCases
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if !opts.Serial {
				t.Parallel()
			}
			c.run(t, s)
		})
	}
	if opts.Reopen == nil {
		return
	}
	for _, c := range handleCases {
		t.Run(c.name, func(t *testing.T) {
			if !opts.Serial {
				t.Parallel()
			}
			c.run(t, s)
		})
	}
}

type suite struct {
	open func(*testing.T) config.Store
	opts Options
}

type testCase struct {
	name string
	run  func(*testing.T, *suite)
}
