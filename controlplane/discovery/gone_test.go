// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestGone checks that a proxy whose stream has ended is reported until it comes back, or its
// workload is gone, too. One that moves to another replica is not.
func TestGone(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta %t", delta), func(t *testing.T) {
			t.Parallel()
			var exists, denied atomic.Bool
			exists.Store(true)
			h := &harness{table: &table{}}
			h.serve(t, Config{Generator: h.table, Workers: 2, Denied: func(*authn.Caller) error {
				if denied.Load() {
					return errors.New("it is denied")
				}
				return nil
			}, Presence: PresenceConfig{Registered: true, Labels: func(*model.Proxy) map[string]string {
				if exists.Load() {
					return map[string]string{"app": "shop"}
				}
				return nil
			}}}, shopCaller, insecure.NewCredentials(), insecure.NewCredentials())
			h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
			h.push()
			join := func() *peer {
				p := h.connectAs(t, delta, 1)
				p.subscribe(xds.TypeCluster)
				p.wantAck("cds a=1")
				return p
			}
			want := func(what string, n int) {
				t.Helper()
				eventually(t, h.server, "proxies", what, func(r report.Replica) bool {
					return len(r.Gone) == n && len(r.Proxies) == h.server.Connected()
				})
			}
			p := join()
			want("nothing is gone", 0)
			p.leave(h)
			want("the proxy is gone", 1)
			p = join()
			want("the proxy is back", 0)
			p.leave(h)
			want("the proxy is gone again", 1)
			exists.Store(false)
			want("its workload is gone", 0)
			exists.Store(true)
			p = join()
			p.leave(h)
			want("the proxy is gone once more", 1)
			denied.Store(true)
			want("it is denied", 0)
			denied.Store(false)
			p = join()
			h.server.mu.Lock()
			for st := range h.server.streams {
				st.leaving.Store(true)
			}
			h.server.mu.Unlock()
			p.leave(h)
			want("it moves", 0)
		})
	}
}

// TestGoneBound checks that many proxies cost a bounded amount of memory, and that the oldest are
// forgotten.
func TestGoneBound(t *testing.T) {
	t.Parallel()
	var g gone
	for i := range maxGone + 10 {
		g.add(&stream{proxy: &model.Proxy{ID: fmt.Sprint(i)}})
	}
	if _, first := g.byID["0"]; first || len(g.byID) != maxGone {
		t.Errorf("%d proxies are remembered, the first of them: %t", len(g.byID), first)
	}
}
