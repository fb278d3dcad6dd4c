// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// laborious takes CPU time when a proxy of a name connects the first time.
type laborious struct {
	*table
	mu      sync.Mutex // guards the fields below
	known   map[string]bool
	working int
	most    int
	// goOn receives a value for each proxy that is processed.
	goOn chan struct{}
}

func (g *laborious) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	g.mu.Lock()
	fresh := !g.known[proxy.ID]
	if fresh {
		g.known[proxy.ID] = true
		g.working++
		g.most = max(g.most, g.working)
	}
	g.mu.Unlock()
	if fresh {
		<-g.goOn
		g.mu.Lock()
		g.working--
		g.mu.Unlock()
	}
	return g.table.Generate(mesh, proxy, typeURL)
}

func (g *laborious) count() (working int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.working
}

// TestAdmission connects a burst of proxies whose configuration must be generated: as many as there
// are workers are admitted at a time, without a fixed rate, and connected proxies receive changes
// meanwhile.
func TestAdmission(t *testing.T) {
	t.Parallel()
	const workers, newcomers = 3, 60
	g := &laborious{table: &table{}, known: map[string]bool{}, goOn: make(chan struct{})}
	h := &harness{table: g.table}
	h.serve(t, Config{Generator: g, Workers: workers}, nil, insecure.NewCredentials(), insecure.NewCredentials())
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	h.push()
	served := h.connect(t, true)
	served.subscribe(xds.TypeCluster)
	g.goOn <- struct{}{}
	served.wantAck("cds a=1")

	var others []*peer
	for i := range newcomers {
		p := h.connect(t, i%2 == 0)
		p.node = shopNode(t, nil)
		p.node.Id = fmt.Sprintf("sidecar~127.1.0.3~new-%d.default~default.svc.cluster.local", i)
		p.subscribe(xds.TypeCluster)
		others = append(others, p)
	}
	until(t, "the workers are busy", func() bool { return g.count() == workers })
	h.set(xds.TypeCluster, map[string]string{"a": "a=2"})
	h.push()
	served.wantAck("cds a=2")
	for range newcomers {
		g.goOn <- struct{}{}
	}
	for _, p := range others {
		p.wantAck("cds a=2")
	}
	if g.most != workers {
		t.Errorf("%d proxies were let in at a time, want %d", g.most, workers)
	}
}
