// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// faultyTable panics for one type of the proxies with a name.
type faultyTable struct {
	*table
	typeURL atomic.Pointer[string] // nil for none
	proxy   string
}

func (g *faultyTable) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	if bad := g.typeURL.Load(); bad != nil && *bad == typeURL && strings.HasPrefix(proxy.ID, g.proxy) {
		panic("cannot generate")
	}
	return g.table.Generate(mesh, proxy, typeURL)
}

// withFaults serves three types, and two proxies that have them: one for which
// the generator may fail, and another.
func withFaults(t *testing.T, delta, canaries bool) (h *harness, g *faultyTable, bad, other *peer) {
	t.Helper()
	g = &faultyTable{table: &table{}, proxy: "bad"}
	h = &harness{table: g.table}
	h.serve(t, Config{Generator: g, Workers: 2, CanaryPush: canaries}, shopCaller, insecure.NewCredentials(), insecure.NewCredentials())
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	h.set(xds.TypeListener, map[string]string{"l": "l=1"})
	h.set(xds.TypeNameTable, map[string]string{"n": "n=1"})
	h.push()
	bad, other = h.connect(t, delta), h.connect(t, delta)
	bad.node.Id = "sidecar~127.77.53.2~bad-1.default~default.svc.cluster.local"
	for _, p := range []*peer{bad, other} {
		p.subscribe(xds.TypeCluster)
		p.wantAck("cds a=1")
		p.subscribe(xds.TypeListener)
		p.wantAck("lds l=1")
		p.subscribe(xds.TypeNameTable)
		p.wantAck("nds n=1")
	}
	return h, g, bad, other
}

// until acknowledges responses until it has received all of the lines.
func (p *peer) until(lines ...string) {
	p.t.Helper()
	for left := lines; len(left) > 0; {
		select {
		case m, ok := <-p.got:
			if !ok {
				p.t.Fatalf("the stream ended with %v, want %q", p.err.Load(), left)
			}
			typeURL, line := p.describe(m)
			left = slices.DeleteFunc(slices.Clone(left), func(l string) bool { return l == line })
			p.ack(typeURL)
		case <-time.After(2 * time.Minute):
			p.t.Fatalf("no response within 2 minutes, want %q", left)
		}
	}
}

// A panic in the generator for one proxy ends no stream: the proxy keeps its resources of all
// types, and receives the newest ones once they can be generated.
func TestGeneratorPanics(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{false, true} {
		for _, canaries := range []bool{false, true} {
			for _, typeURL := range []string{xds.TypeCluster, xds.TypeListener} {
				t.Run(fmt.Sprintf("delta %t, canaries %t, %s", delta, canaries, shortType(typeURL)), func(t *testing.T) {
					t.Parallel()
					h, g, bad, other := withFaults(t, delta, canaries)
					g.typeURL.Store(&typeURL)
					for i := range 5 {
						h.set(xds.TypeCluster, map[string]string{"a": fmt.Sprint("a=2.", i)})
						h.set(xds.TypeListener, map[string]string{"l": fmt.Sprint("l=2.", i)})
						h.push()
						other.wantAck(fmt.Sprint("cds a=2.", i))
						other.wantAck(fmt.Sprint("lds l=2.", i))
						until(t, "the push is tried for the faulty proxy", func() bool {
							return testutil.ToFloat64(h.server.metrics.panics.WithLabelValues(shortType(typeURL))) > float64(i)
						})
					}
					bad.quiet()
					newcomer := h.connect(t, delta)
					newcomer.node.Id = "sidecar~127.77.53.3~bad-2.default~default.svc.cluster.local"
					newcomer.subscribe(xds.TypeCluster)
					for range newcomer.got { // until it ends
					}
					if err, _ := newcomer.err.Load().(error); status.Code(err) != codes.Unavailable {
						t.Errorf("a proxy for which nothing can be generated is refused with %v, want Unavailable", err)
					}
					for _, p := range h.server.Distribution().proxies {
						if fell := strings.HasPrefix(p.ID, "bad") && p.Settled > 1; fell {
							t.Errorf("%s: settled snapshot = %d, want an older one", p.ID, p.Settled)
						}
					}
					g.typeURL.Store(nil)
					h.set(xds.TypeCluster, map[string]string{"a": "a=3"})
					h.push()
					other.wantAck("cds a=3")
					if canaries { // a canary may come first: until then it receives the last good version
						bad.until("cds a=3", "lds l=2.4")
					} else {
						bad.wantAck("cds a=3")
						bad.wantAck("lds l=2.4")
					}
					bad.quiet()
					other.quiet()
					if got := testutil.ToFloat64(h.server.metrics.panics.WithLabelValues(shortType(typeURL))); got < 5 {
						t.Errorf("%.0f panics are counted, want at least 5", got)
					}
				})
			}
		}
	}
}

// The same for a type of the agent: the others are served from the newest snapshot.
func TestGeneratorPanicsForAgent(t *testing.T) {
	t.Parallel()
	h, g, bad, other := withFaults(t, true, false)
	typeURL := xds.TypeNameTable
	g.typeURL.Store(&typeURL)
	h.set(xds.TypeCluster, map[string]string{"a": "a=2"})
	h.set(xds.TypeNameTable, map[string]string{"n": "n=2"})
	h.push()
	bad.wantAck("cds a=2")
	bad.quiet()
	other.wantAck("cds a=2")
	other.wantAck("nds n=2")
	g.typeURL.Store(nil)
	h.push()
	bad.wantAck("nds n=2")
}

// A panic while one stream is served ends that stream alone.
func TestStreamPanics(t *testing.T) {
	t.Parallel()
	h := &harness{table: &table{}}
	h.serve(t, Config{Generator: h.table, Workers: 2, OnHealth: func(*model.Proxy, bool, string) { panic("report") }}, shopCaller, insecure.NewCredentials(), insecure.NewCredentials())
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	h.push()
	bad, other := h.connect(t, true), h.connect(t, true)
	for _, p := range []*peer{bad, other} {
		p.subscribe(xds.TypeCluster)
		p.wantAck("cds a=1")
	}
	bad.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeHealth})
	for range bad.got { // until it ends
	}
	if err, _ := bad.err.Load().(error); status.Code(err) != codes.Internal {
		t.Errorf("the stream ended with %v, want Internal", err)
	}
	until(t, "it is forgotten", func() bool { return h.server.Connected() == 1 })
	h.set(xds.TypeCluster, map[string]string{"a": "a=2"})
	h.push()
	other.wantAck("cds a=2")
}

// A panic in a push worker ends no stream of another proxy, and not the program.
func TestWorkerPanics(t *testing.T) {
	t.Parallel()
	var faulty atomic.Bool
	h := &harness{table: &table{}}
	h.serve(t, Config{Generator: h.table, Workers: 1, Presence: PresenceConfig{Labels: func(p *model.Proxy) map[string]string {
		if strings.HasPrefix(p.ID, "bad") && faulty.Load() {
			panic("labels")
		}
		return map[string]string{}
	}}}, shopCaller, insecure.NewCredentials(), insecure.NewCredentials())
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	h.push()
	bad, other := h.connect(t, true), h.connect(t, true)
	bad.node.Id = "sidecar~127.77.53.2~bad-1.default~default.svc.cluster.local"
	for _, p := range []*peer{bad, other} {
		p.subscribe(xds.TypeCluster)
		p.wantAck("cds a=1")
	}
	faulty.Store(true)
	h.set(xds.TypeCluster, map[string]string{"a": "a=2"})
	h.push()
	other.wantAck("cds a=2")
	for range bad.got { // until it ends
	}
	if err, _ := bad.err.Load().(error); status.Code(err) != codes.Internal {
		t.Errorf("the stream of the faulty proxy ended with %v, want Internal", err)
	}
	h.set(xds.TypeCluster, map[string]string{"a": "a=3"})
	h.push()
	other.wantAck("cds a=3") // the only worker still works
}

// A panic in the check of the right to Secrets is a refusal.
func TestAuthorizePanics(t *testing.T) {
	t.Parallel()
	h := startSecrets(t, true, secrets.Config{Authorize: func(context.Context, *authn.Caller) error { panic("authorize") }})
	h.secrets.Set("default", "shop", mint(t, "a").pair())
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	h.push()
	p := h.gateway(t, true)
	p.subscribe(xds.TypeSecret, "kubernetes://shop")
	until(t, "it is refused", func() bool {
		return h.refused("unauthorized") > 0
	})
	p.subscribe(xds.TypeCluster)
	p.wantAck("cds a=1")
	p.quiet()
}

// The log of a panic contains its place.
func TestDescribePanic(t *testing.T) {
	t.Parallel()
	var got string
	func() {
		defer func() { got = describePanic(recover()) }()
		var none *published
		_ = none.since
	}()
	if !strings.Contains(got, "nil pointer") || !strings.Contains(got, "TestDescribePanic") {
		t.Errorf("a panic is described as %q", got)
	}
}

// A proxy that is moved to another replica has acknowledged everything when its stream ends, and
// receives no partial state.
func TestShed(t *testing.T) {
	each(t, func(t *testing.T, h *harness, p *peer) {
		if h.server.Shed() {
			t.Error("no proxy is connected")
		}
		p.subscribe(xds.TypeCluster)
		p.want("cds a=1 b=1")
		if !h.server.Shed() || h.server.Shed() || h.server.Load() != 1 || h.server.Connected() != 1 {
			t.Errorf("load %d, %d connected, after one of one is shed", h.server.Load(), h.server.Connected())
		}
		h.set(xds.TypeCluster, map[string]string{"a": "a=2", "b": "b=1"})
		h.push()
		p.quiet() // it owes an answer, and its stream is there
		p.ack(xds.TypeCluster)
		for m := range p.got { // until it ends
			_, line := p.describe(m)
			t.Errorf("a proxy that leaves is sent %s of a newer snapshot", line)
		}
		if err, _ := p.err.Load().(error); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v, want Unavailable", err)
		}
	})
}

// A proxy is moved amid continuous pushes, although each acknowledgement finds a newer snapshot. It
// has all of one snapshot: the listeners that wait for its clusters arrive before the end.
func TestShedUnderSteadyPushes(t *testing.T) {
	each(t, func(t *testing.T, h *harness, p *peer) {
		version := 1
		newer := func() {
			version++
			h.set(xds.TypeCluster, map[string]string{"a": fmt.Sprint("a=", version)})
			h.set(xds.TypeListener, map[string]string{"l": fmt.Sprint("l=", version)})
			h.push()
		}
		newer()
		p.subscribe(xds.TypeCluster)
		p.wantAck("cds a=2")
		p.subscribe(xds.TypeListener)
		p.wantAck("lds l=2")
		newer()
		p.want("cds a=3")
		newer()
		if !h.server.Shed() {
			t.Fatal("no proxy is connected")
		}
		has := map[string]string{}
		newer()
		p.ack(xds.TypeCluster)
		for m := range p.got { // until it ends
			typeURL, line := p.describe(m)
			has[typeURL] = line
			if newer(); version > 20 {
				t.Fatal("the stream did not end within 2 minutes")
			}
			p.ack(typeURL)
		}
		cluster, listener := has[xds.TypeCluster], has[xds.TypeListener]
		if cluster == "" {
			cluster = "cds a=3" // the last one was answered
		}
		if strings.TrimPrefix(cluster, "cds a=") != strings.TrimPrefix(listener, "lds l=") {
			t.Errorf("the proxy left with the cluster %q and the listener %q, want those of one snapshot", cluster, listener)
		}
		if err, _ := p.err.Load().(error); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v, want Unavailable", err)
		}
	})
}

// A proxy that does not respond is moved, too.
func TestShedOfSilentProxy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Generator: &table{}, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		s.Push(&snapshot.Mesh{}, model.Change{All: true})
		st := &stream{
			server: s, proxy: &model.Proxy{}, wake: make(chan struct{}, 1), sendMsg: func(any) error { return nil }, log: slog.New(slog.DiscardHandler),
			subs: map[string]*subscription{xds.TypeCluster: {typeURL: xds.TypeCluster, ack: &acknowledgement{sent: 1}}},
		}
		st.secrets, st.plugins = s.secrets.NewView(st.client()), s.secrets.NewPlugins(st.client(), s)
		st.leaving.Store(true)
		st.notify()
		began := time.Now()
		if err := st.loop(t.Context(), nil, nil); !Moved(err) || time.Since(began) != leaveTime {
			t.Errorf("it left after %s with %v, want after %s with %v", time.Since(began), err, leaveTime, errMoved)
		}
	})
}

// A stream that ends while it waits for a push is not served.
func TestEndedStreamIsNotServed(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Generator: &table{}, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	s.Push(&snapshot.Mesh{}, model.Change{All: true})
	st := &stream{server: s, proxy: &model.Proxy{}, wake: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler)}
	s.enter(st)
	s.Push(&snapshot.Mesh{}, model.Change{All: true})
	s.prepare(st)
	if len(st.wake) != 1 {
		t.Error("the stream was not served, want a push")
	}
	<-st.wake
	s.remove(st)
	s.prepare(st)
	if len(st.wake) != 0 {
		t.Error("a stream that has ended was served")
	}
}
