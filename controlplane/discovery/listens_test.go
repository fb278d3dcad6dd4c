// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// occupiedTable leaves out the listeners, which are named by ports, at which a proxy cannot listen.
type occupiedTable struct {
	*table
	made sync.Map // of the sets by what is left out
}

func (g *occupiedTable) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	set := g.table.Generate(mesh, proxy, typeURL)
	if typeURL != xds.TypeListener || len(proxy.Occupied) == 0 {
		return set
	}
	left := xds.NewSet(nil, slices.DeleteFunc(slices.Clone(set.Resources), func(r *xds.Resource) bool {
		return slices.ContainsFunc(proxy.Occupied, func(port uint32) bool { return r.Name == fmt.Sprint(port) })
	}), nil)
	made, _ := g.made.LoadOrStore(fmt.Sprint(mesh.Sequence, proxy.Occupied), left)
	return made.(*xds.Set)
}

// TestPortsInUse checks that a proxy which cannot listen at ports of its own loopback address receives
// its other listeners once more, without those. Other addresses in its message change nothing.
func TestPortsInUse(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{false, true} {
		g := &occupiedTable{table: &table{}}
		h := &harness{table: g.table}
		h.serve(t, Config{Generator: g, Workers: 2}, shopCaller, insecure.NewCredentials(), insecure.NewCredentials())
		h.set(xds.TypeListener, map[string]string{"5432": "5432=1", "6379": "6379=1", "inbound": "inbound=1"})
		h.push()
		p, other := h.connect(t, delta), h.connect(t, delta)
		p.node.Id = "sidecar~127.77.53.9~taken-1.default~default.svc.cluster.local"
		other.node.Id = "sidecar~127.77.53.8~other-1.default~default.svc.cluster.local"
		for _, q := range []*peer{p, other} {
			q.subscribe(xds.TypeListener)
			q.want("lds 5432=1 6379=1 inbound=1")
		}
		other.nack(xds.TypeListener, "Error adding/updating listener(s) inbound: cannot bind '127.77.53.9:6379': Address already in use\n")
		other.quiet()
		p.nack(xds.TypeListener, "Error adding/updating listener(s) 5432: cannot bind '127.77.53.9:5432': Permission denied\n6379: cannot bind '127.77.53.9:6379': Address already in use\n")
		p.wantAck(p.line("lds inbound=1 -5432 -6379", "lds inbound=1"))
		p.quiet()
		h.set(xds.TypeListener, map[string]string{"5432": "5432=2", "6379": "6379=1", "inbound": "inbound=2"})
		h.push()
		p.wantAck(p.line("lds inbound=2", "lds inbound=2"))
		other.wantAck(other.line("lds 5432=2 inbound=2", "lds 5432=2 6379=1 inbound=2"))
	}
}
