// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestObey checks that concurrent signals count as one, and that each later one is a separate
// event.
func TestObey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals, done := make(chan os.Signal), make(chan struct{})
		var acts []string
		act := func(name string) func() { return func() { acts = append(acts, name) } }
		go obey(signals, done, act("drain"), act("end"), act("exit"))
		for _, pause := range []time.Duration{0, duplicateSignal / 2, duplicateSignal / 4, duplicateSignal, time.Hour} {
			time.Sleep(pause)
			signals <- syscall.SIGTERM
			synctest.Wait()
		}
		if want := []string{"drain", "end", "exit"}; !slices.Equal(acts, want) {
			t.Errorf("acts: got %q, want %q", acts, want)
		}
		close(done)
	})
}
