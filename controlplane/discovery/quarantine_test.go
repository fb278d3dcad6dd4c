// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// startEmpty is a server with nothing to serve, whose canaries, if it has any,
// are waited for for a minute.
func startEmpty(t *testing.T, canaries bool) *harness {
	t.Helper()
	h := &harness{table: &table{}}
	h.patience(time.Minute)
	h.serve(t, Config{Generator: h.table, Workers: 2, CanaryPush: canaries}, shopCaller, insecure.NewCredentials(), insecure.NewCredentials())
	return h
}

func startCanary(t *testing.T) *harness {
	t.Helper()
	h := startEmpty(t, true)
	h.set(xds.TypeCluster, map[string]string{"a": "a=1", "b": "b=1"})
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1", "b": "eb=1"})
	h.set(xds.TypeListener, map[string]string{"l": "l=1"})
	h.set(xds.TypeRoute, map[string]string{"r": "r=1 a"})
	h.push()
	return h
}

// patience sets how long others wait for a canary.
func (h *harness) patience(d time.Duration) {
	h.wait.Store(int64(d))
}

// connectAs opens the stream of a proxy with a number.
func (h *harness) connectAs(t *testing.T, delta bool, number int) *peer {
	t.Helper()
	p := h.connect(t, delta)
	p.node.Id = fmt.Sprintf("sidecar~127.77.151.%d~shop-%d.default~default.svc.cluster.local", number, number)
	return p
}

// eachCanary runs a test with proxies of one group that are up to date.
func eachCanary(t *testing.T, test func(t *testing.T, h *harness, all []*peer)) {
	t.Helper()
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startCanary(t)
			var all []*peer
			for i := range 5 {
				p := h.connectAs(t, delta, i+1)
				p.join("cds a=1 b=1", "lds l=1", "rds r=1 a")
				all = append(all, p)
			}
			test(t, h, all)
		})
	}
}

// join subscribes to all types and accepts the responses.
func (p *peer) join(clusters, listeners, routes string) {
	p.t.Helper()
	p.subscribe(xds.TypeCluster)
	p.wantAck(clusters)
	p.subscribe(xds.TypeEndpoint, "a", "b")
	p.wantAck("eds ea=1 eb=1")
	p.subscribe(xds.TypeListener)
	p.wantAck(listeners)
	p.subscribe(xds.TypeRoute, "r")
	p.wantAck(routes)
	p.quiet()
}

// line formats a response in the form of delta; without delta, wildcards contain all resources.
func (p *peer) line(delta, sotw string) string {
	if p.delta {
		return delta
	}
	return sotw
}

// canary returns the proxy that receives a response, and the others, which receive
// none.
func canary(t *testing.T, all []*peer) (first *peer, others []*peer) {
	t.Helper()
	until(t, "a canary receives the change", func() bool {
		for _, p := range all {
			if len(p.got) > 0 {
				first = p
			}
		}
		return first != nil
	})
	for _, p := range all {
		if p != first {
			p.quiet()
			others = append(others, p)
		}
	}
	return first, others
}

// count returns the pushes to canaries with a result.
func (h *harness) count(result string) int {
	return int(counter(h.reg, "outrigger_control_canary_pushes", result))
}

// One proxy receives a change first; the others receive it once it has accepted it, one type after
// the other.
func TestCanaryTakes(t *testing.T) {
	eachCanary(t, func(t *testing.T, h *harness, all []*peer) {
		h.set(xds.TypeCluster, map[string]string{"b": "b=1", "c": "c=1"})
		h.set(xds.TypeRoute, map[string]string{"r": "r=2 c"})
		h.push()
		added, gone := all[0].line("cds c=1", "cds a=1 b=1 c=1"), all[0].line("cds -a", "cds b=1 c=1")
		first, others := canary(t, all)
		first.wantAck(added)
		for _, p := range others {
			p.wantAck(added)
			p.quiet()
		}
		first.want("rds r=2 c")
		for _, p := range others {
			p.quiet()
		}
		first.ack(xds.TypeRoute)
		first.wantAck(gone)
		for _, p := range others {
			p.wantAck("rds r=2 c")
			p.wantAck(gone)
			p.quiet()
		}
		until(t, "it is counted", func() bool { return h.count("acknowledged") == 1 })
		if got := h.server.Rejected(); len(got) > 0 {
			t.Errorf("rejected: %v", got)
		}
	})
}

// One proxy rejects a resource: the others do not receive it, and new ones receive the last good
// version, with the clusters that it needs. Other changes are sent, and the next version is sent to
// all.
func TestCanaryRejects(t *testing.T) {
	eachCanary(t, func(t *testing.T, h *harness, all []*peer) {
		h.set(xds.TypeCluster, map[string]string{"b": "b=1", "c": "c=1"})
		h.set(xds.TypeRoute, map[string]string{"r": "bad c"})
		h.push()
		first, others := canary(t, all)
		added := all[0].line("cds c=1", "cds a=1 b=1 c=1")
		first.wantAck(added)
		for _, p := range others {
			p.wantAck(added)
		}
		first.want("rds bad c")
		first.nack(xds.TypeRoute, "no such thing")
		for _, p := range all {
			p.quiet()
		}
		got := h.server.Rejected()
		if len(got) != 1 || got[0].Type != xds.TypeRoute || got[0].Name != "r" || got[0].Proxy+"~" != strings.Split(first.node.Id, "~")[2]+"~" ||
			got[0].Reason != "no such thing" || got[0].After != 1 || got[0].UpTo != 2 || !got[0].LastGood {
			t.Errorf("rejected: %+v", got)
		}
		if p := h.server.Distribution().Of(2); p.Connected != 5 || p.Rejected != 5 || p.Proxy != got[0].Proxy || !strings.HasSuffix(p.Rejection.Reason, "no such thing") {
			t.Errorf("the distribution says %+v", p)
		}
		if n := h.count("rejected"); n != 1 {
			t.Errorf("%d canaries rejected something, want 1", n)
		}

		later := h.connectAs(t, all[0].delta, 9)
		later.join("cds a=1 b=1 c=1", "lds l=1", "rds r=1 a")
		all = append(all, later)

		h.set(xds.TypeListener, map[string]string{"l": "l=2"})
		h.push()
		first, others = canary(t, all)
		first.wantAck("lds l=2")
		for _, p := range others {
			p.wantAck("lds l=2")
		}
		for _, p := range all {
			p.quiet()
		}
		h.set(xds.TypeRoute, map[string]string{"r": "r=3 c"})
		h.push()
		first, others = canary(t, all)
		gone := all[0].line("cds -a", "cds b=1 c=1")
		first.wantAck("rds r=3 c")
		first.wantAck(gone)
		for _, p := range others {
			p.wantAck("rds r=3 c")
			p.wantAck(gone)
			p.quiet()
		}
		if got := h.server.Rejected(); len(got) > 0 {
			t.Errorf("rejected: %v", got)
		}
	})
}

// A canary that does not respond delays others for a bounded time; endpoints do not wait for it at
// all.
func TestCanaryIsSilent(t *testing.T) {
	eachCanary(t, func(t *testing.T, h *harness, all []*peer) {
		h.patience(time.Second)
		h.set(xds.TypeRoute, map[string]string{"r": "r=2"})
		begin := time.Now()
		h.push()
		var first *peer
		var others []*peer
		first, others = canary(t, all)
		first.want("rds r=2")
		h.set(xds.TypeEndpoint, map[string]string{"a": "ea=2", "b": "eb=1"})
		h.push()
		for _, p := range all {
			p.wantAck("eds ea=2")
		}
		quick := time.Since(begin)
		for _, p := range others {
			p.wantAck("rds r=2")
		}
		if all := time.Since(begin); quick < time.Second && (all < time.Second*9/10 || all > time.Second+2*time.Minute) {
			t.Errorf("the others waited for %v, want %v", all, time.Second)
		}
		until(t, "it is counted", func() bool { return h.count("unanswered") == 1 })
		// It does not receive another candidate before it has responded.
		h.set(xds.TypeRoute, map[string]string{"r": "r=3"})
		h.push()
		second, rest := canary(t, others)
		second.wantAck("rds r=3")
		for _, p := range rest {
			p.wantAck("rds r=3")
		}
		first.ack(xds.TypeRoute)
		first.wantAck("rds r=3")
	})
}

// A rejection by a canary after the others have accepted the change is ignored, and the proxy is no
// longer a canary.
func TestCanaryIsOdd(t *testing.T) {
	eachCanary(t, func(t *testing.T, h *harness, all []*peer) {
		h.patience(10 * time.Millisecond)
		h.set(xds.TypeRoute, map[string]string{"r": "r=2"})
		h.push()
		var first *peer
		for _, p := range all {
			if p.want("rds r=2"); first == nil {
				first = p
				continue
			}
			p.ack(xds.TypeRoute)
			p.quiet()
		}
		first.nack(xds.TypeRoute, "no")
		first.quiet()
		h.patience(time.Minute)
		if got := h.server.Rejected(); len(got) > 0 {
			t.Errorf("rejected: %v", got)
		}
		later := h.connectAs(t, first.delta, 9)
		later.join("cds a=1 b=1", "lds l=1", "rds r=2")
		everybody := append(all, later)
		for i := range 5 {
			line := fmt.Sprintf("rds r=%d", 3+i)
			h.set(xds.TypeRoute, map[string]string{"r": line[4:]})
			h.push()
			canary, others := canary(t, everybody)
			if canary == first {
				t.Error("the proxy that rejected late is still a canary")
			}
			canary.wantAck(line)
			for _, p := range others {
				p.wantAck(line)
			}
		}
	})
}

// TestOldRejectionIsRepeated has a proxy reject each response because of a resource that only this
// proxy rejects. New resources of the response are not withheld from others, nor sent again.
func TestOldRejectionIsRepeated(t *testing.T) {
	eachCanary(t, func(t *testing.T, h *harness, all []*peer) {
		h.patience(10 * time.Millisecond)
		odd, others := all[0], all[1:]
		reject := func() {
			odd.nack(xds.TypeCluster, "Error adding/updating cluster(s) c: is bad")
			odd.quiet()
			if list := h.server.Rejected(); len(list) > 0 {
				t.Errorf("withheld: %v", list)
			}
		}
		h.set(xds.TypeCluster, map[string]string{"a": "a=1", "b": "b=1", "c": "c=1"})
		h.push()
		for _, p := range all {
			p.want(p.line("cds c=1", "cds a=1 b=1 c=1"))
		}
		for _, p := range others {
			p.ack(xds.TypeCluster)
			p.quiet()
		}
		reject()
		h.set(xds.TypeCluster, map[string]string{"a": "a=1", "b": "b=1", "c": "c=1", "d": "d=1"})
		h.push()
		for _, p := range all {
			p.want(p.line("cds d=1", "cds a=1 b=1 c=1 d=1"))
		}
		reject()
		for _, p := range others {
			p.ack(xds.TypeCluster)
			p.quiet()
		}
	})
}

// A canary that leaves makes room for another.
func TestCanaryLeaves(t *testing.T) {
	eachCanary(t, func(t *testing.T, h *harness, all []*peer) {
		h.set(xds.TypeRoute, map[string]string{"r": "r=2"})
		h.push()
		first, others := canary(t, all)
		first.want("rds r=2")
		if err := first.end(); err != nil {
			t.Fatal(err)
		}
		second, rest := canary(t, others)
		second.wantAck("rds r=2")
		for _, p := range rest {
			p.wantAck("rds r=2")
		}
		if gone, taken := h.count("disconnected"), h.count("acknowledged"); gone != 1 || taken != 1 {
			t.Errorf("%d canaries left and %d took it, want 1 and 1", gone, taken)
		}
	})
}

// Proxies that connect while a candidate is tried receive the last good version.
func TestCanaryAndNewcomers(t *testing.T) {
	eachCanary(t, func(t *testing.T, h *harness, all []*peer) {
		h.set(xds.TypeRoute, map[string]string{"r": "r=2"})
		h.set(xds.TypeListener, map[string]string{"l": "l=1", "m": "m=1"})
		h.push()
		first, others := canary(t, all)
		first.want(first.line("lds m=1", "lds l=1 m=1"))
		later := h.connectAs(t, first.delta, 9)
		later.join("cds a=1 b=1", "lds l=1", "rds r=1 a")
		first.ack(xds.TypeListener)
		first.wantAck("rds r=2")
		for _, p := range append(others, later) {
			p.wantAck(p.line("lds m=1", "lds l=1 m=1"))
			p.wantAck("rds r=2")
			p.quiet()
		}
	})
}

// A problem of one machine does not affect others.
func TestCanaryCannotBind(t *testing.T) {
	eachCanary(t, func(t *testing.T, h *harness, all []*peer) {
		h.set(xds.TypeListener, map[string]string{"l": "l=2"})
		h.push()
		first, others := canary(t, all)
		first.want("lds l=2")
		first.nack(xds.TypeListener, "Error adding/updating listener(s) l: cannot bind '0.0.0.0:80': Address already in use")
		second, rest := canary(t, others)
		second.wantAck("lds l=2")
		for _, p := range rest {
			p.wantAck("lds l=2")
		}
	})
}

// A new resource that one proxy rejects is tried by a second one, which decides.
func TestRejectedWithoutGood(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{false, true} {
		for _, bad := range []bool{false, true} {
			t.Run(fmt.Sprintf("delta %t, bad %t", delta, bad), func(t *testing.T) {
				t.Parallel()
				h := startCanary(t)
				first := h.connectAs(t, delta, 1)
				first.subscribe(xds.TypeCluster)
				first.wantAck("cds a=1 b=1")
				first.subscribe(xds.TypeRoute, "r")
				first.want("rds r=1 a")
				first.nack(xds.TypeRoute, "no")
				first.quiet()
				if got := h.server.Rejected(); len(got) != 1 || got[0].Name != "r" || got[0].LastGood {
					t.Errorf("rejected: %+v", got)
				}
				second := h.connectAs(t, delta, 2)
				second.subscribe(xds.TypeCluster)
				second.wantAck("cds a=1 b=1")
				second.subscribe(xds.TypeRoute, "r")
				if second.want("rds r=1 a"); bad {
					if second.nack(xds.TypeRoute, "no"); delta {
						second.wantAck("rds -r") // it has subscribed to it
					}
				} else {
					second.ack(xds.TypeRoute)
				}
				second.quiet()
				third := h.connectAs(t, delta, 3)
				third.subscribe(xds.TypeCluster)
				third.wantAck("cds a=1 b=1")
				third.subscribe(xds.TypeRoute, "r")
				left := 0
				if bad {
					left = 1
					third.wantAck(third.line("rds -r", "rds"))
				} else {
					third.wantAck("rds r=1 a")
				}
				if got := h.server.Rejected(); len(got) != left {
					t.Errorf("rejected: %+v", got)
				}
			})
		}
	}
}
