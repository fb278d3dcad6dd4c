// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Options describes what a store supports in addition to the contract, and what it does not
// support.
type Options struct {
	// Reopen opens a second store with the same backing as s, which Open returned; it must not run
	// yet. Nil means that a backing cannot be shared.
	Reopen func(t *testing.T, s config.Store) config.Store
	// Fill makes objects the entire content of the source of s, which Open returned. A store with
	// Fill is read-only: only the reading part of the suite runs, and every write must fail with
	// config.ErrReadOnly.
	Fill func(t *testing.T, s config.Store, objects ...*model.Config)
	// Serial means that Open clears a single shared backing, so that the cases must run one after
	// another.
	Serial bool
	// Wait is how long the suite waits for each condition; 0 means 2 minutes.
	Wait time.Duration
}

// Run runs the suite, each case as a parallel subtest with its own store. Open returns a store that
// is not running yet, with a new, empty backing.
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
