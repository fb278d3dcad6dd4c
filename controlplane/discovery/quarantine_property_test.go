// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// picky is a proxy that rejects every resource with "bad" in it like Envoy: for clusters and
// listeners it accepts the rest of the response and names the rejected ones; for routes it accepts
// those before the first bad one, and names none. A "worse" one invalidates its response.
type picky struct {
	h     *harness
	id    int
	delta bool
	stop  context.CancelFunc
	ended chan struct{}

	mu   sync.Mutex // guards the fields below
	have map[string]map[string]string
	vers map[string]map[string]string // delta
	last map[string]string            // without: version_info
}

var (
	pickyClusters = []string{"c0", "c1", "c2", "c3", "c4", "c5"}
	pickyRoutes   = []string{"r0", "r1", "r2"}
	pickyTypes    = []string{xds.TypeCluster, xds.TypeEndpoint, xds.TypeListener, xds.TypeRoute}
)

// start opens a stream. A proxy that starts afresh has nothing.
func (p *picky) start(t *testing.T, afresh bool) {
	t.Helper()
	if afresh {
		p.have, p.vers, p.last = map[string]map[string]string{}, map[string]map[string]string{}, map[string]string{}
		for _, typeURL := range pickyTypes {
			p.have[typeURL], p.vers[typeURL] = map[string]string{}, map[string]string{}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.stop, p.ended = cancel, make(chan struct{})
	go func() {
		defer close(p.ended)
		if err := p.run(ctx, t); err != nil && ctx.Err() == nil {
			t.Errorf("proxy %d: %v", p.id, err)
		}
	}()
}

func (p *picky) end() {
	p.stop()
	<-p.ended
}

func (p *picky) run(ctx context.Context, t *testing.T) error {
	ask := map[string][]string{xds.TypeEndpoint: pickyClusters, xds.TypeRoute: pickyRoutes}
	node := shopNode(t, nil)
	node.Id = fmt.Sprintf("sidecar~127.77.151.%d~shop-%d.default~default.svc.cluster.local", p.id, p.id)
	if p.delta {
		s, err := p.h.client.DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		for _, typeURL := range pickyTypes {
			p.mu.Lock()
			versions := maps.Clone(p.vers[typeURL])
			p.mu.Unlock()
			if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: ask[typeURL], InitialResourceVersions: versions}); err != nil {
				return err
			}
			node = nil
		}
		for {
			r, err := s.Recv()
			if err != nil {
				return err
			}
			if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce, ErrorDetail: p.takeDelta(r)}); err != nil {
				return err
			}
		}
	}
	s, err := p.h.client.StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	for _, typeURL := range pickyTypes {
		if err := s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNames: ask[typeURL], VersionInfo: p.last[typeURL]}); err != nil {
			return err
		}
		node = nil
	}
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		why := p.takeSotW(r)
		if err := s.Send(&discoveryv3.DiscoveryRequest{
			TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce, ResourceNames: ask[r.TypeUrl], VersionInfo: p.last[r.TypeUrl], ErrorDetail: why,
		}); err != nil {
			return err
		}
	}
}

// offered is a resource of a response.
type offered struct{ name, value, version string }

// take accepts valid resources and returns the rejected ones.
func (p *picky) take(typeURL string, all []offered) *rpcstatus.Status {
	for _, o := range all {
		if strings.Contains(o.value, "worse") {
			return &rpcstatus.Status{Code: 13, Message: "cannot read that"}
		}
	}
	var named []string
	for _, o := range all {
		if strings.Contains(o.value, "bad") {
			if typeURL == xds.TypeRoute {
				return &rpcstatus.Status{Code: 13, Message: "missing ): ("}
			}
			named = append(named, o.name+": is bad")
			continue
		}
		p.have[typeURL][o.name], p.vers[typeURL][o.name] = o.value, o.version
	}
	if named != nil {
		return &rpcstatus.Status{Code: 13, Message: "Error adding/updating cluster(s) " + strings.Join(named, ", ")}
	}
	return nil
}

func nameIn(a *anypb.Any) string { return strings.Fields(textOf(a))[0] }

func (p *picky) takeDelta(r *discoveryv3.DeltaDiscoveryResponse) *rpcstatus.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []offered
	for _, res := range r.Resources {
		all = append(all, offered{res.Name, textOf(res.Resource), res.Version})
	}
	why := p.take(r.TypeUrl, all)
	if why == nil || !strings.HasPrefix(why.Message, "cannot read") {
		for _, name := range r.RemovedResources {
			delete(p.have[r.TypeUrl], name)
			delete(p.vers[r.TypeUrl], name)
		}
	}
	return why
}

func (p *picky) takeSotW(r *discoveryv3.DiscoveryResponse) *rpcstatus.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []offered
	names := map[string]bool{}
	for _, res := range r.Resources {
		names[nameIn(res)] = true
		all = append(all, offered{nameIn(res), textOf(res), ""})
	}
	why := p.take(r.TypeUrl, all)
	if why != nil && strings.HasPrefix(why.Message, "cannot read") {
		return why
	}
	if r.TypeUrl == xds.TypeCluster || r.TypeUrl == xds.TypeListener {
		maps.DeleteFunc(p.have[r.TypeUrl], func(name, _ string) bool { return !names[name] })
	}
	if why == nil {
		p.last[r.TypeUrl] = r.VersionInfo
	}
	return why
}

// world is what the generator makes, and what is good of it.
type world struct {
	random *rand.Rand
	made   map[string]map[string]string
	good   map[string]map[string]string
	count  int
}

// value returns a new content for a name; some are bad.
func (w *world) value(name string, mayBeBad bool) string {
	w.count++
	text := fmt.Sprintf("%s v%d", name, w.count)
	if mayBeBad {
		switch w.random.IntN(8) {
		case 0, 1:
			text += " bad"
		case 2:
			text += " worse"
		}
	}
	return text
}

func isBad(value string) bool {
	return strings.Contains(value, "bad") || strings.Contains(value, "worse")
}

// step changes some resources; routes name clusters that there are.
func (w *world) step() {
	w.made = map[string]map[string]string{
		xds.TypeCluster: maps.Clone(w.made[xds.TypeCluster]), xds.TypeListener: maps.Clone(w.made[xds.TypeListener]),
		xds.TypeRoute: maps.Clone(w.made[xds.TypeRoute]), xds.TypeEndpoint: maps.Clone(w.made[xds.TypeEndpoint]),
	}
	clusters, routes := w.made[xds.TypeCluster], w.made[xds.TypeRoute]
	for range 1 + w.random.IntN(3) {
		name := pickyClusters[w.random.IntN(len(pickyClusters))]
		if _, ok := clusters[name]; ok && w.random.IntN(3) == 0 {
			delete(clusters, name)
			delete(w.made[xds.TypeEndpoint], name)
		} else {
			clusters[name] = w.value(name, true)
			w.made[xds.TypeEndpoint][name] = w.value(name, false)
		}
	}
	if w.random.IntN(2) == 0 {
		name := fmt.Sprint("l", w.random.IntN(3))
		if w.made[xds.TypeListener][name] = w.value(name, true); w.random.IntN(4) == 0 {
			delete(w.made[xds.TypeListener], name)
		}
	}
	names := slices.Sorted(maps.Keys(clusters))
	for _, name := range pickyRoutes {
		_, to, _ := strings.Cut(routes[name], "->")
		if _, ok := clusters[to]; to != "" && ok && w.random.IntN(3) > 0 {
			continue
		}
		if routes[name] = w.value(name, true); len(names) > 0 {
			routes[name] += " ->" + names[w.random.IntN(len(names))]
		}
	}
	w.settle()
}

// settle returns the resources that all proxies should have: the generated ones, with the last good
// versions in place of bad ones, and the clusters that they need.
func (w *world) settle() {
	before := w.good
	w.good = map[string]map[string]string{}
	for typeURL, all := range w.made {
		w.good[typeURL] = map[string]string{}
		for name, value := range all {
			if !isBad(value) {
				w.good[typeURL][name] = value
			} else if old, ok := before[typeURL][name]; ok {
				w.good[typeURL][name] = old
			}
		}
	}
	for name, value := range w.good[xds.TypeRoute] {
		_, to, _ := strings.Cut(value, "->")
		if _, made := w.made[xds.TypeCluster][to]; to == "" || made || w.made[xds.TypeRoute][name] == value {
			continue
		}
		if old, ok := before[xds.TypeCluster][to]; ok {
			w.good[xds.TypeCluster][to] = old
			w.good[xds.TypeEndpoint][to] = before[xds.TypeEndpoint][to]
		}
	}
}

// differs compares what a proxy has with what it should have.
func (p *picky) differs(w *world) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, typeURL := range pickyTypes {
		have := p.have[typeURL]
		if typeURL == xds.TypeEndpoint {
			have = maps.Clone(have)
			maps.DeleteFunc(have, func(name, _ string) bool { return w.good[typeURL][name] == "" }) // it may keep those
		}
		if diff := cmp.Diff(w.good[typeURL], have); diff != "" {
			return shortType(typeURL) + " (-want +got):\n" + diff
		}
	}
	return ""
}

// After any sequence of changes, rejections, reconnects and restarts every proxy has the generated
// resources, with the last good version in place of bad ones.
func TestKeptProperty(t *testing.T) {
	t.Parallel()
	for _, canaries := range []bool{true, false} {
		for seed := range uint64(10) {
			t.Run(fmt.Sprintf("canaries %t, seed %d", canaries, seed), func(t *testing.T) {
				t.Parallel()
				w := &world{random: rand.New(rand.NewPCG(seed, 1)), made: map[string]map[string]string{}}
				for _, typeURL := range pickyTypes {
					w.made[typeURL] = map[string]string{}
				}
				for _, name := range pickyClusters {
					w.made[xds.TypeCluster][name], w.made[xds.TypeEndpoint][name] = w.value(name, false), w.value(name, false)
				}
				for _, name := range pickyRoutes {
					w.made[xds.TypeRoute][name] = w.value(name, false)
				}
				w.settle()
				h := startEmpty(t, canaries)
				h.publish(w)
				var all []*picky
				for i := range 6 {
					p := &picky{h: h, id: i + 1, delta: i%2 == 0}
					p.start(t, true)
					all = append(all, p)
				}
				for round := range 40 {
					w.agree(t, h, all, round)
					for range w.random.IntN(3) {
						p := all[w.random.IntN(len(all))]
						p.end()
						p.start(t, w.random.IntN(2) == 0)
					}
					w.step()
					h.publish(w)
					if w.random.IntN(2) == 0 {
						p := all[w.random.IntN(len(all))]
						p.end()
						p.start(t, w.random.IntN(2) == 0)
					}
				}
				w.agree(t, h, all, 40)
				for _, p := range all {
					p.end()
				}
			})
		}
	}
}

// agree waits until all proxies have what they should.
func (w *world) agree(t *testing.T, h *harness, all []*picky, round int) {
	t.Helper()
	var diff string
	until := time.Now().Add(2 * time.Minute)
	for time.Now().Before(until) {
		diff = ""
		for _, p := range all {
			if d := p.differs(w); d != "" {
				diff = fmt.Sprintf("proxy %d (delta %t): %s", p.id, p.delta, d)
			}
		}
		// What a proxy accepts of a rejected response is not known to be good until it was tried again.
		if settled := h.server.Distribution().settled; diff == "" && (len(settled) < len(all) || settled[0] < h.server.mesh.Load().Sequence) {
			diff = fmt.Sprintf("answered: %v, want at least %d times %d", settled, len(all), h.server.mesh.Load().Sequence)
		}
		if diff == "" {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("round %d: %s\nmade: %v\nrejected: %v", round, diff, w.made, h.server.Rejected())
}

// publish pushes the resources of a world.
func (h *harness) publish(w *world) {
	for typeURL, all := range w.made {
		h.set(typeURL, all)
	}
	h.push()
}

// Proxies that reconnect to a restarted control plane keep the versions that it does not know: a
// rejected resource removes nothing from them, and new proxies do not receive it.
func TestKeptAfterRestart(t *testing.T) {
	t.Parallel()
	first, second := startEmpty(t, true), startEmpty(t, true)
	w := &world{made: map[string]map[string]string{
		xds.TypeCluster: {"c0": "c0 v1", "c1": "c1 v1"}, xds.TypeEndpoint: {"c0": "c0 v1"},
		xds.TypeListener: {"l0": "l0 v1"}, xds.TypeRoute: {"r0": "r0 v1", "r1": "r1 v1"},
	}}
	w.settle()
	first.publish(w)
	var all []*picky
	for i := range 6 {
		p := &picky{h: first, id: i + 1, delta: i%2 == 0}
		p.start(t, true)
		all = append(all, p)
	}
	w.agree(t, first, all, 0)
	w.made = map[string]map[string]string{
		xds.TypeCluster: {"c0": "c0 bad", "c1": "c1 v2"}, xds.TypeEndpoint: {"c0": "c0 v2"},
		xds.TypeListener: {"l0": "l0 bad", "l1": "l1 v2"}, xds.TypeRoute: {"r0": "r0 bad", "r1": "r1 v2"},
	}
	w.settle()
	second.publish(w)
	for _, p := range all {
		p.end()
		p.h = second
		p.start(t, false)
	}
	w.agree(t, second, all, 1)
	fresh := &world{made: w.made}
	fresh.settle()
	p := &picky{h: second, id: 9, delta: true}
	p.start(t, true)
	q := &picky{h: second, id: 10}
	q.start(t, true)
	fresh.agree(t, second, []*picky{p, q}, 2)
	w.agree(t, second, all, 3)
	for typeURL, name := range map[string]string{xds.TypeCluster: "c0", xds.TypeListener: "l0", xds.TypeRoute: "r0"} {
		w.made[typeURL][name] = name + " v3"
	}
	w.settle()
	second.publish(w)
	all = append(all, p, q)
	w.agree(t, second, all, 4)
	for _, p := range all {
		p.end()
	}
}
