// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// An object that the generator ignores is logged once, however many proxies and pushes it affects,
// and again when it recurs.
func TestProblemsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	g := &table{sets: map[string]*xds.Set{}}
	s, err := New(Config{Generator: g, Workers: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	broken := &xds.Set{Problems: []model.Problem{{
		Object: model.Key{Kind: model.VirtualService, Namespace: "default", Name: "catalog"}, Reason: "it is invalid",
	}}}
	for i, tc := range []struct {
		set  *xds.Set
		want int // lines so far
	}{{broken, 1}, {broken, 1}, {&xds.Set{}, 1}, {&xds.Set{}, 1}, {broken, 2}} {
		mesh := &snapshot.Mesh{Sequence: uint64(i) + 1}
		s.Push(mesh, model.Change{All: true})
		g.sets[xds.TypeRoute] = tc.set
		for range 3 { // proxies
			s.generate(mesh, &model.Proxy{}, xds.TypeRoute)
		}
		if got := strings.Count(log.String(), "it is invalid"); got != tc.want {
			t.Errorf("push %d: %d lines, want %d:\n%s", i+1, got, tc.want, log.String())
		}
	}
	s.Push(&snapshot.Mesh{Sequence: 100}, model.Change{All: true})
	if n := len(s.problems.seen); n != 0 {
		t.Errorf("%d problems are remembered, want none", n)
	}
}

// TestProblemsEnd fixes a problem of the generated configuration. It counts until the proxies have
// answered the snapshot with the fix, and no longer.
func TestProblemsEnd(t *testing.T) {
	t.Parallel()
	h := start(t, shopCaller)
	key := model.Key{Kind: model.EnvoyFilter, Namespace: "default", Name: "limit"}
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	h.sets[xds.TypeCluster].Problems = []model.Problem{{Object: key, Reason: "Envoy refuses it"}}
	h.push()
	p := h.connect(t, true)
	p.subscribe(xds.TypeCluster)
	p.ack(p.want("cds a=1"))
	problems := func(want int) func() bool {
		return func() bool { return len(h.server.Problems()) == want && len(source{h.server}.Problems()) == want }
	}
	until(t, "the problem is known", problems(1))
	h.set(xds.TypeCluster, map[string]string{"a": "a=2"})
	h.push()
	p.want("cds a=2")
	if !problems(1)() {
		t.Errorf("before the answer: %v", h.server.Problems())
	}
	p.ack(xds.TypeCluster)
	until(t, "the problem ends", problems(0))
}
