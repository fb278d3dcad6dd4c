// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
)

// world simulates an Envoy with a control plane and a store, and tracks the state of Envoy.
type world struct {
	t     *testing.T
	rand  *rand.Rand
	cfg   Config
	delta bool

	store *Store
	stop  func()
	s     *stream
	n     int // used to generate distinct details
	has   contents
	out   map[string]sent // unacknowledged responses by type
	was   []contents      // states of Envoy while no response was unacknowledged
}

type sent struct {
	nonce     string
	resources map[string]string
	removed   []string
}

var modelTypes = [...]string{clusterType, endpointType, listenerType}

func resourceOf(typeURL, name, detail string) proto.Message {
	switch typeURL {
	case clusterType:
		return cluster(name, detail)
	case endpointType:
		return endpoints(name, detail)
	}
	return listener(name, detail)
}

func (w *world) names(typeURL string) []string {
	if typeURL != endpointType {
		return nil
	}
	return []string{"0", "1", "2"}
}

// respond sends some or all resources of a type.
func (w *world) respond(typeURL string, all bool) {
	if _, waits := w.out[typeURL]; waits {
		return
	}
	r := sent{resources: map[string]string{}}
	for i := range 3 {
		name := strconv.Itoa(i)
		detail, has := w.has[typeURL][name]
		switch w.rand.IntN(4) {
		case 0:
			w.n++
			r.resources[name] = strconv.Itoa(w.n)
		case 1: // unchanged
			if has {
				r.resources[name] = detail
			}
		case 2:
			if has && w.delta && typeURL != endpointType {
				r.removed = append(r.removed, name)
			}
		}
		if _, ok := r.resources[name]; !ok && all {
			w.n++
			r.resources[name] = strconv.Itoa(w.n)
		}
	}
	if all {
		r.removed = nil
	}
	var messages []proto.Message
	for _, name := range slices.Sorted(maps.Keys(r.resources)) {
		messages = append(messages, resourceOf(typeURL, name, r.resources[name]))
	}
	r.nonce = w.s.respond(typeURL, r.removed, messages...)
	w.out[typeURL] = r
}

// answer lets Envoy accept a response, or reject it completely or partly.
func (w *world) answer(typeURL string, may bool) {
	r, ok := w.out[typeURL]
	if !ok {
		return
	}
	delete(w.out, typeURL)
	old := w.has[typeURL]
	next := maps.Clone(old)
	if !w.delta && typeURL != endpointType {
		next = map[string]string{}
	}
	maps.Copy(next, r.resources)
	for _, name := range r.removed {
		delete(next, name)
	}
	reason := ""
	switch what := w.rand.IntN(6); {
	case may && what == 0:
		reason, next = "it is bad", old
	case may && what == 1 && typeURL != endpointType:
		reason = map[string]string{clusterType: "Error adding/updating cluster(s) ", listenerType: "Error adding/updating listener(s) "}[typeURL]
		for _, name := range slices.Sorted(maps.Keys(r.resources)) {
			if w.rand.IntN(2) == 0 {
				continue
			}
			reason += name + ": it is bad\n"
			delete(next, name)
			if detail, had := old[name]; had {
				next[name] = detail
			}
		}
	}
	w.has[typeURL] = next
	w.s.ack(typeURL, r.nonce, reason, w.names(typeURL)...)
}

// remember records Envoy's state if no response is unacknowledged.
func (w *world) remember() {
	if len(w.out) == 0 {
		w.was = append(w.was, w.copy())
	}
}

func (w *world) copy() contents {
	c := contents{}
	for _, typeURL := range modelTypes {
		c[typeURL] = maps.Clone(w.has[typeURL])
	}
	return c
}

// check compares the snapshot with Envoy's states.
func (w *world) check(what string) {
	w.t.Helper()
	synctest.Wait()
	got := stored(w.t, w.store)
	if !slices.ContainsFunc(w.was, func(c contents) bool { return cmp.Equal(c, got) }) {
		w.t.Fatalf("%s: Envoy never had %v as a whole; it has %v", what, got, w.has)
	}
	if len(w.out) > 0 {
		return
	}
	if diff := cmp.Diff(w.copy(), got); diff != "" {
		w.t.Fatalf("%s: not the newest (-want +got):\n%s", what, diff)
	}
}

// start starts the store and an Envoy without resources.
func (w *world) start() {
	w.store = open(w.t, w.cfg)
	w.stop = run(w.t, w.store)
	w.s, w.has, w.out = newStream(w.t, w.store, w.delta), contents{}, map[string]sent{}
	for _, typeURL := range modelTypes {
		w.has[typeURL] = map[string]string{}
		w.s.ask(typeURL, w.names(typeURL)...)
		w.respond(typeURL, true)
		w.answer(typeURL, false)
	}
	w.remember()
}

// unanswered drops unacknowledged responses.
func (w *world) unanswered() {
	clear(w.out)
	w.remember()
}

// end stops agent and Envoy.
func (w *world) end() {
	w.unanswered()
	w.stop()
}

// reconnect ends Envoy's stream and opens another one. Without delta, the control plane sends
// everything again.
func (w *world) reconnect() {
	w.unanswered()
	w.s.rec.Close()
	w.s = newStream(w.t, w.store, w.delta)
	for _, typeURL := range modelTypes {
		if !w.delta {
			w.s.rec.Request(frame(w.t, &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: "v", ResourceNames: w.names(typeURL)}))
			w.respond(typeURL, true)
			w.answer(typeURL, false)
			continue
		}
		versions := map[string]string{}
		for name, detail := range w.has[typeURL] {
			versions[name] = versionOf(toAny(w.t, resourceOf(typeURL, name, detail)))
		}
		w.s.resume(typeURL, versions, w.names(typeURL)...)
		if len(versions) == 0 { // the control plane treats it as a new Envoy
			w.respond(typeURL, true)
			w.answer(typeURL, false)
		}
	}
	w.s.ack(listenerType, w.s.respond(listenerType, nil, resourceOfEach(w, listenerType)...), "")
	w.remember()
}

func resourceOfEach(w *world, typeURL string) (all []proto.Message) {
	for _, name := range slices.Sorted(maps.Keys(w.has[typeURL])) {
		all = append(all, resourceOf(typeURL, name, w.has[typeURL][name]))
	}
	return all
}

// step performs a random action, and checks the stored state if enough time has passed.
func (w *world) step() {
	typeURL := modelTypes[w.rand.IntN(len(modelTypes))]
	switch what := w.rand.IntN(20); {
	case what < 7:
		w.respond(typeURL, false)
	case what < 15:
		w.answer(typeURL, true)
		w.remember()
	case what < 18:
		pass(time.Duration(w.rand.IntN(4)) * time.Second / 2)
	case what == 18:
		w.reconnect()
	default: // restart agent and Envoy
		w.end()
		w.check("after a restart")
		w.start()
	}
	if w.rand.IntN(8) == 0 {
		pass(longest + lookAgain)
		w.check("after a pause")
	}
}

// TestModel accepts and rejects random responses, reconnects streams and restarts agents. The
// snapshot is always a complete state that Envoy had, and the newest one when all responses were
// acknowledged.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range 40 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			synctest.Test(t, func(t *testing.T) {
				w := &world{t: t, rand: rand.New(rand.NewPCG(uint64(seed), 1)), cfg: cfg, delta: seed%2 == 0}
				w.start()
				pass(2 * quiet)
				w.check("at first")
				for range 120 {
					w.step()
				}
				w.end()
				w.check("at the end")
			})
		})
	}
}
