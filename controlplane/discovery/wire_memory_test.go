// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// heap is the memory in use, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what weak pointers and finalizers let go of
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemoryOfBadPeers has proxies use as many resources as possible, and checks the memory of the
// server meanwhile and afterwards. It runs alone, because other tests would be counted.
func TestMemoryOfBadPeers(t *testing.T) { //nolint:paralleltest // see above
	for _, tc := range []struct {
		name string
		// during and after are what may be held, in bytes, with the proxy's own end.
		during, after int64
		act           func(t *testing.T, h *harness, p *peer)
	}{
		{"a thousand snapshots, none acknowledged", 10e6, 4e6, func(t *testing.T, h *harness, p *peer) {
			p.subscribe(xds.TypeCluster)
			p.want("cds a=1 b=1")
			for i := range 1000 { // 50 MB, if they were kept
				h.set(xds.TypeCluster, map[string]string{"a": fmt.Sprint("a=", i, strings.Repeat("x", 50_000))})
				h.push()
				h.forgetPushed()
			}
		}},
		{"a hundred thousand names", 60e6, 10e6, func(_ *testing.T, _ *harness, p *peer) {
			names := make([]string, 100_000)
			for i := range names {
				names[i] = fmt.Sprintf("outbound|80||service-%d.test", i)
			}
			p.must(&discoveryv3.DeltaDiscoveryRequest{Node: p.node, TypeUrl: xds.TypeEndpoint, ResourceNamesSubscribe: names})
			p.any() // that there are none
		}},
		{"a thousand changes of a long subscription", 30e6, 10e6, func(_ *testing.T, _ *harness, p *peer) {
			names := make([]string, 2000)
			for i := range names {
				names[i] = fmt.Sprintf("outbound|80||service-%d.default.svc.cluster.local", i)
			}
			p.must(&discoveryv3.DeltaDiscoveryRequest{Node: p.node, TypeUrl: xds.TypeEndpoint, ResourceNamesSubscribe: names})
			p.any()
			for i := range 1000 { // each makes a set of 2,000 names: 32 MB, if they were kept
				p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeEndpoint, ResourceNamesUnsubscribe: names[i : i+1]})
			}
		}},
		{"two thousand that come and go", 10e6, 6e6, func(t *testing.T, h *harness, p *peer) {
			p.subscribe(xds.TypeCluster)
			p.wantAck("cds a=1 b=1")
			var storm sync.WaitGroup
			for w := range 20 {
				storm.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(w), 4))
					for range 100 {
						h.comeAndGo(t, rnd)
					}
				})
			}
			storm.Wait()
			until(t, "one is left", func() bool { return h.server.Connected() == 1 })
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { //nolint:paralleltest // as above
			h := start(t, nil)
			h.set(xds.TypeCluster, map[string]string{"a": "a=1", "b": "b=1"})
			h.push()
			before := heap()
			p := h.onOwnConnection(t, true) // which accepts long responses
			tc.act(t, h, p)
			p.must(&discoveryv3.DeltaDiscoveryRequest{Node: p.node, TypeUrl: debug.Type, ResourceNamesSubscribe: []string{"list"}})
			for p.anyOf() != debug.Type { // earlier requests have been processed
			}
			during := heap() - before
			if err := p.end(); err != nil {
				t.Fatal(err)
			}
			for range p.got { // until it has ended
			}
			until(t, "it is gone", func() bool { return h.server.Connected() == 0 })
			h.push()
			h.forgetPushed()
			after := heap() - before
			t.Logf("%.1f MB, afterwards %.1f MB", float64(during)/1e6, float64(after)/1e6)
			if during > tc.during || after > tc.after {
				t.Errorf("%d bytes are held, want at most %d; afterwards %d, want at most %d", during, tc.during, after, tc.after)
			}
		})
	}
}

// forgetPushed has the table forget the snapshots but the newest.
func (g *table) forgetPushed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.pushed[:len(g.pushed)-1] {
		g.pushed[i] = nil
	}
}

// anyOf receives one response and returns its type.
func (p *peer) anyOf() string {
	p.t.Helper()
	m, ok := <-p.got
	if !ok {
		p.t.Fatalf("stream ended with %v", p.err.Load())
	}
	return m.(interface{ GetTypeUrl() string }).GetTypeUrl()
}
