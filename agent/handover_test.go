// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/xdsproxy/dns"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// TestAwaitNames checks how long the DNS proxy waits for its first names after a handover.
func TestAwaitNames(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		inherited     bool
		names, stop   time.Duration // 0 means never
		before, waits time.Duration
	}{
		"no handover":      {false, 0, 0, 0, 0},
		"names come":       {true, time.Second, 0, 0, time.Second},
		"no names":         {true, 0, 0, 0, namesPatience},
		"names were there": {true, time.Second, 0, 2 * time.Second, 0},
		"the agent ends":   {true, 0, time.Second, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			served, err := dns.Listen("127.0.0.1:0", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range served {
				defer func() { _, _ = s.UDP.Close(), s.TCP.Close() }() // nothing uses them
			}
			synctest.Test(t, func(t *testing.T) {
				server, err := dns.New(dns.Config{Sockets: served, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.names > 0 {
					time.AfterFunc(c.names, func() { server.Update(&nds.Table{}) })
				}
				if c.stop > 0 {
					time.AfterFunc(c.stop, cancel)
				}
				time.Sleep(c.before)
				p, begun := &parts{dns: server, socks: &sockets{inherited: c.inherited}}, time.Now()
				if p.awaitNames(ctx); time.Since(begun) != c.waits {
					t.Errorf("it waits %s, want %s", time.Since(begun), c.waits)
				}
			})
		})
	}
}
