// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestObey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 2)
		said := ""
		say := func(text string) func() { return func() { said += text } }
		go obey(signals, say("stop "), say("hurry "), say("release"))
		for _, step := range []struct {
			after time.Duration
			want  string
		}{
			{0, "stop "},
			{time.Millisecond, "stop "}, // a duplicate
			{time.Minute, "stop hurry release"},
		} {
			time.Sleep(step.after)
			signals <- syscall.SIGTERM
			synctest.Wait()
			if said != step.want {
				t.Errorf("after %s: got %q, want %q", step.after, said, step.want)
			}
		}
	})
}
