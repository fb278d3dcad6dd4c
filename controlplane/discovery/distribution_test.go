// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// progress waits until the proxies are that far with a snapshot: acknowledged,
// behind, rejected.
func (h *harness) progress(t *testing.T, sequence uint64, want string) Progress {
	t.Helper()
	got := ""
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		p := h.server.Distribution().Of(sequence)
		if got = fmt.Sprintf("%d %d %d", p.Acknowledged, p.Behind, p.Rejected); got == want {
			return p
		}
	}
	t.Fatalf("with snapshot %d the proxies are %q, want %q", sequence, got, want)
	return Progress{}
}

// A proxy is current once it has acknowledged all of its changes, also if there are none. A
// rejection is reported for the snapshots that contain the resource, until the proxy accepts
// another version.
func TestDistribution(t *testing.T) {
	each(t, func(t *testing.T, h *harness, p *peer) {
		h.progress(t, 1, "0 0 0")
		p.subscribe(xds.TypeCluster)
		p.want("cds a=1 b=1")
		h.progress(t, 1, "0 1 0")
		p.ack(xds.TypeCluster)
		p.subscribe(xds.TypeListener) // its first request: its clusters were not warm
		p.want("lds l=1")
		h.progress(t, 1, "0 1 0")
		p.ack(xds.TypeListener)
		h.progress(t, 1, "1 0 0")
		h.push() // nothing differs
		h.progress(t, 2, "1 0 0")

		h.set(xds.TypeListener, map[string]string{"l": "l=2"})
		h.push()
		p.want("lds l=2")
		h.progress(t, 3, "0 1 0")
		h.progress(t, 2, "1 0 0")
		p.nack(xds.TypeListener, "no such filter")
		got := h.progress(t, 3, "0 0 1")
		if r := got.Rejection; r.Type != "lds" || r.Reason != "code 13: no such filter" || got.Proxy == "" {
			t.Errorf("the rejection is %+v", got)
		}
		h.progress(t, 2, "1 0 0")
		h.set(xds.TypeCluster, map[string]string{"a": "a=2", "b": "b=1"})
		h.push()
		p.any()
		h.progress(t, 4, "0 1 0")
		p.ack(xds.TypeCluster)
		h.progress(t, 4, "1 0 0") // later changes are not the cause
		if missing := h.server.Distribution().Missing(3); len(missing) != 1 || missing[0].Settled != 4 {
			t.Errorf("missing are %+v", missing)
		}
		h.set(xds.TypeListener, map[string]string{"l": "l=3"})
		h.push()
		p.wantAck("lds l=3")
		h.progress(t, 3, "1 0 0")
		h.progress(t, 5, "1 0 0")
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		h.progress(t, 5, "0 0 0")
	})
}

// Counts for many proxies equal the sum of the counts for each.
func TestDistributionOf(t *testing.T) {
	t.Parallel()
	list := []ProxyStanding{
		{ID: "d", Settled: 7, Rejections: []Rejection{{Type: "cds", After: 2, UpTo: 4, Reason: "c"}, {Type: "lds", After: 3, UpTo: 6, Reason: "l"}}},
		{ID: "c", Settled: 3, Rejections: []Rejection{{Type: "lds", After: 4, UpTo: 5, Reason: "late"}}},
		{ID: "b", Settled: 5},
		{ID: "a", Settled: 0},
	}
	d := NewDistribution(slices.Clone(list))
	for sequence := range uint64(9) {
		var want Progress
		want.Connected = len(list)
		missing := 0
		for _, p := range list {
			rejected := slices.ContainsFunc(p.Rejections, func(r Rejection) bool { return r.covers(sequence) })
			switch {
			case rejected:
				want.Rejected++
			case p.Settled < sequence:
				want.Behind++
			default:
				want.Acknowledged++
			}
			if rejected || p.Settled < sequence {
				missing++
			}
		}
		got := d.Of(sequence)
		if got.Acknowledged != want.Acknowledged || got.Behind != want.Behind || got.Rejected != want.Rejected || got.Connected != 4 || len(d.Missing(sequence)) != missing {
			t.Errorf("snapshot %d: got %+v and %d missing, want %+v and %d", sequence, got, len(d.Missing(sequence)), want, missing)
		}
	}
	if got := d.Of(5); got.Proxy != "c" || got.Rejection.Reason != "late" {
		t.Errorf("the first rejection is %+v, want that of c", got)
	}
}

func BenchmarkDistribution(b *testing.B) {
	list := make([]ProxyStanding, 10_000)
	for i := range list {
		list[i] = ProxyStanding{ID: fmt.Sprintf("sidecar~10.0.0.1~web-%d.shop~shop.svc.cluster.local", i), Settled: uint64(i % 100)}
	}
	b.Run("New", func(b *testing.B) {
		for b.Loop() {
			NewDistribution(slices.Clone(list))
		}
	})
	d := NewDistribution(list)
	b.Run("Of", func(b *testing.B) {
		for b.Loop() {
			d.Of(50)
		}
	})
}
