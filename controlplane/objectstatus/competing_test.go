// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestVerdictsWithCompetingController checks that two controllers that overwrite each other's
// status do not write at full speed forever, but that a new verdict is written immediately.
func TestVerdictsWithCompetingController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, v, _ := verdicts(t, func(cfg *VerdictsConfig) { // before the store runs
			s := cfg.Store.(*store)
			s.RegisterEventHandler(func(events []config.Event) {
				if ctx.Err() != nil {
					return
				}
				for _, e := range events {
					if c := e.Current(); c.Status != nil && s.classMessage() != "theirs" {
						theirs := c.Clone()
						theirs.ResourceVersion, theirs.Status = "", classSays("theirs")
						go func() { _, _ = s.Store.UpdateStatus(ctx, theirs) }() // an outdated write is repeated
					}
				}
			}, model.GatewayClass)
		})
		v.Set(map[model.Key]any{verdictClass: classSays("ours")})
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := s.writes.Load(); n < 10 || n > 30 {
			t.Fatalf("%d writes in an hour against another controller, want 10 to 30", n)
		}
		cancel()
		v.Set(map[model.Key]any{verdictClass: classSays("ours, again")})
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.classMessage(); got != "ours, again" {
			t.Errorf("a second after a new verdict, the status is %q", got)
		}
	})
}
