// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// firstState is Envoy's initial state, and kept the stored state after it.
func firstState(s *stream) {
	s.give(clusterType, cluster("a", "1"), cluster("b", "1"))
	s.give(endpointType, endpoints("a", "1"), endpoints("b", "1"))
	s.give(listenerType, listener("l", "1"))
	s.give(routeType, route("r", "1"))
}

func firstKept() contents {
	return contents{
		clusterType: {"a": "1", "b": "1"}, endpointType: {"a": "1", "b": "1"},
		listenerType: {"l": "1"}, routeType: {"r": "1"},
	}
}

// recordCase contains the subsequent events and the expected stored state.
type recordCase struct {
	name        string
	delta, sotw bool
	then        func(s *stream)
	want        contents
}

func recordCases() []recordCase {
	kept := firstKept()
	with := func(typeURL string, resources map[string]string) contents {
		c := firstKept()
		c[typeURL] = resources
		return c
	}
	return []recordCase{
		{"all", true, true, func(*stream) {}, kept},
		{"an update", true, false, func(s *stream) { s.give(clusterType, cluster("b", "2")) }, with(clusterType, map[string]string{"a": "1", "b": "2"})},
		{"a removal", true, false, func(s *stream) {
			s.ack(clusterType, s.respond(clusterType, []string{"b", "unknown"}), "")
		}, with(clusterType, map[string]string{"a": "1"})},
		{"all there is", false, true, func(s *stream) { s.give(clusterType, cluster("b", "2")) }, with(clusterType, map[string]string{"b": "2"})},
		{"some of the endpoints", false, true, func(s *stream) {
			s.ack(endpointType, s.respond(endpointType, nil, endpoints("b", "2")), "", "a", "b")
		}, with(endpointType, map[string]string{"a": "1", "b": "2"})},
		{"endpoints that nobody asks for anymore", false, true, func(s *stream) {
			s.ack(endpointType, s.respond(endpointType, nil, endpoints("b", "2")), "", "b")
		}, with(endpointType, map[string]string{"b": "2"})},
		{"endpoints that are given up", true, false, func(s *stream) {
			s.rec.Request(frame(s.t, delta(endpointType, "", nil, []string{"a"})))
			s.give(clusterType, cluster("b", "1"))
		}, with(endpointType, map[string]string{"b": "1"})},
		{"a rejection", true, true, func(s *stream) {
			s.ack(routeType, s.respond(routeType, nil, route("r", "2")), "no such cluster", "r")
			s.give(listenerType, listener("l", "2"))
		}, with(listenerType, map[string]string{"l": "2"})},
		{"a rejection of some", true, false, func(s *stream) {
			nonce := s.respond(clusterType, nil, cluster("a", "2"), cluster("b", "2"), cluster("c", "2"), cluster("d", "2"))
			s.ack(clusterType, nonce, "Error adding/updating cluster(s) b: it is bad, d: so is this")
		}, with(clusterType, map[string]string{"a": "2", "b": "1", "c": "2"})},
		{"a rejection of one whose name ends like another's", true, false, func(s *stream) {
			nonce := s.respond(clusterType, nil, cluster("b", "2"), cluster("1b", "2"))
			s.ack(clusterType, nonce, "Error adding/updating cluster(s) 1b: it is bad")
		}, with(clusterType, map[string]string{"a": "1", "b": "2"})},
		{"a rejection of some, all there is", false, true, func(s *stream) {
			nonce := s.respond(clusterType, nil, cluster("b", "2"), cluster("c", "2"), cluster("d", "2"))
			s.ack(clusterType, nonce, "Error adding/updating cluster(s) b: it is bad, d: so is this")
		}, with(clusterType, map[string]string{"b": "1", "c": "2"})},
		{"twice before a commit", true, true, func(s *stream) {
			s.give(clusterType, cluster("a", "2"), cluster("b", "1"))
			s.give(clusterType, cluster("a", "1"), cluster("b", "2"))
		}, with(clusterType, map[string]string{"a": "1", "b": "2"})},
		{"an acknowledgement of two", true, true, func(s *stream) {
			s.respond(routeType, nil, route("r", "2"))
			s.ack(routeType, s.respond(routeType, nil, route("r", "3")), "", "r")
		}, with(routeType, map[string]string{"r": "3"})},
		{"types that are not envoy's", true, true, func(s *stream) {
			s.ask("type.googleapis.com/istio.networking.nds.v1.NameTable")
			s.give(clusterType, cluster("a", "1"), cluster("b", "1"))
		}, kept},
		{"secrets without consent", true, true, func(s *stream) { s.give(secretType, secret("s", "hidden")) }, kept},
		{"a private key without consent", true, true, func(s *stream) {
			s.give(clusterType, cluster("a", "1"), cluster("b", "-----BEGIN PRIVATE KEY-----"))
		}, with(clusterType, map[string]string{"a": "1", "b": "withheld"})},
	}
}

// TestRecord records streams and checks the stored state after each of them.
func TestRecord(t *testing.T) {
	t.Parallel()
	kept := firstKept()
	for _, tc := range recordCases() {
		for _, isDelta := range []bool{true, false} {
			if isDelta && !tc.delta || !isDelta && !tc.sotw {
				continue
			}
			t.Run(tc.name+map[bool]string{true: ", delta", false: ", state of the world"}[isDelta], func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := open(t, config(t))
					stop := run(t, store)
					defer stop()
					s := newStream(t, store, isDelta)
					firstState(s)
					pass(2 * time.Second)
					if diff := cmp.Diff(kept, stored(t, store)); diff != "" {
						t.Fatalf("after the start (-want +got):\n%s", diff)
					}
					tc.then(s)
					pass(2 * time.Second)
					if diff := cmp.Diff(tc.want, stored(t, store)); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
					// A new process loads the same state.
					stop()
					again := open(t, store.cfg)
					if diff := cmp.Diff(tc.want, stored(t, again)); diff != "" {
						t.Errorf("after a restart (-want +got):\n%s", diff)
					}
				})
			})
		}
	}
}

// pass waits until everything that is due has happened.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestUnsettled checks that no state is stored while responses are unacknowledged or resources are
// missing.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	kept := contents{clusterType: {"a": "1"}, endpointType: {"a": "1"}, listenerType: {"l": "1"}}
	for _, tc := range []struct {
		name string
		then func(s *stream)
		// wait is the time after which a state is stored; zero means never.
		wait time.Duration
		want contents
	}{
		{"no answer yet", func(s *stream) {
			s.give(clusterType, cluster("a", "2"))
			s.give(endpointType, endpoints("a", "2"))
			s.ask(listenerType)
			s.respond(listenerType, nil, listener("l", "2"))
		}, 0, nil},
		{"a new envoy that got clusters only", func(s *stream) { s.give(clusterType, cluster("a", "2")) }, 0, nil},
		{"endpoints are missing", func(s *stream) {
			s.give(clusterType, cluster("a", "2"))
			s.ask(endpointType, "a", "b")
			s.ack(endpointType, s.respond(endpointType, nil, endpoints("a", "2")), "", "a", "b")
			s.give(listenerType, listener("l", "2"))
		}, patience + 5*time.Second, contents{clusterType: {"a": "2"}, endpointType: {"a": "2"}, listenerType: {"l": "2"}}},
		{"a type that is not needed anymore", func(s *stream) {
			s.give(clusterType, cluster("a", "2"))
			s.give(listenerType, listener("l", "2"))
		}, 3 * time.Second, contents{clusterType: {"a": "2"}, listenerType: {"l": "2"}}},
	} {
		for _, isDelta := range []bool{true, false} {
			t.Run(tc.name+map[bool]string{true: ", delta", false: ", state of the world"}[isDelta], func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := open(t, config(t))
					stop := run(t, store)
					defer stop()
					s := newStream(t, store, isDelta)
					s.give(clusterType, cluster("a", "1"))
					s.give(endpointType, endpoints("a", "1"))
					s.give(listenerType, listener("l", "1"))
					pass(2 * time.Second)
					s.rec.Close()
					tc.then(newStream(t, store, isDelta))
					pass(max(tc.wait-patience, time.Second))
					if diff := cmp.Diff(kept, stored(t, store)); tc.wait != 3*time.Second && diff != "" {
						t.Errorf("too early (-want +got):\n%s", diff)
					}
					want := tc.want
					if want == nil {
						want = kept
					}
					pass(max(tc.wait, time.Hour/2))
					if diff := cmp.Diff(want, stored(t, store)); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
				})
			})
		}
	}
}

// TestResume reconnects an Envoy with its resources.
func TestResume(t *testing.T) {
	t.Parallel()
	a1, b1 := versionOf(toAny(t, cluster("a", "1"))), versionOf(toAny(t, cluster("b", "1")))
	l1 := map[string]string{"l": versionOf(toAny(t, listener("l", "1")))}
	for _, tc := range []struct {
		name string
		has  map[string]string
		then func(s *stream)
		want map[string]string
	}{
		{"nothing new", map[string]string{"a": a1, "b": b1}, func(*stream) {}, map[string]string{"a": "1", "b": "1"}},
		{"what was served", map[string]string{"a": servedVersion, "b": servedVersion}, func(*stream) {}, map[string]string{"a": "1", "b": "1"}},
		{"one was removed", map[string]string{"a": a1}, func(*stream) {}, map[string]string{"a": "1"}},
		{"a change", map[string]string{"a": a1, "b": b1}, func(s *stream) { s.give(clusterType, cluster("b", "2")) }, map[string]string{"a": "1", "b": "2"}},
		{"one that is not stored", map[string]string{"a": a1, "b": "other"}, func(s *stream) { s.give(clusterType, cluster("a", "2")) }, map[string]string{"a": "1", "b": "1"}},
		{"one that is sent again", map[string]string{"a": a1, "b": "other"}, func(s *stream) { s.give(clusterType, cluster("b", "3")) }, map[string]string{"a": "1", "b": "3"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := open(t, config(t))
				stop := run(t, store)
				defer stop()
				s := newStream(t, store, true)
				s.give(clusterType, cluster("a", "1"), cluster("b", "1"))
				s.give(listenerType, listener("l", "1"))
				pass(2 * time.Second)
				s.rec.Close()
				s = newStream(t, store, true)
				s.resume(clusterType, tc.has)
				s.resume(listenerType, l1)
				s.ack(listenerType, s.respond(listenerType, nil), "")
				tc.then(s)
				pass(time.Minute)
				if diff := cmp.Diff(tc.want, stored(t, store)[clusterType]); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestTouch checks that a confirmed snapshot does not age, and that a stream which the control
// plane rejects confirms nothing.
func TestTouch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, config(t))
		stop := run(t, store)
		defer stop()
		s := newStream(t, store, true)
		s.give(clusterType, cluster("a", "1"))
		s.give(listenerType, listener("l", "1"))
		pass(10 * time.Hour)
		if age := store.Age(); age > confirmEvery {
			t.Errorf("%s old while a stream is open", age)
		}
		s.rec.Close()
		pass(30 * time.Minute)
		if age := store.Age(); age < 30*time.Minute || store.Usable() != nil {
			t.Errorf("%s old half an hour after the stream ended: %v", age, store.Usable())
		}
		refused := newStream(t, store, true)
		refused.resume(clusterType, map[string]string{"a": versionOf(toAny(t, cluster("a", "1")))})
		refused.resume(listenerType, map[string]string{"l": versionOf(toAny(t, listener("l", "1")))})
		refused.rec.Close()
		pass(31 * time.Minute)
		err := store.Usable()
		if err == nil || !strings.Contains(err.Error(), "at most 1h0m0s are allowed") {
			t.Errorf("an hour and a minute after the last message of the control plane: %v", err)
		}
	})
}

// TestVirtualHosts checks that virtual hosts belong to their route configuration.
func TestVirtualHosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, config(t))
		stop := run(t, store)
		defer stop()
		s := newStream(t, store, true)
		s.give(clusterType, cluster("a", "1"))
		s.give(listenerType, listener("l", "1"))
		s.ask(virtualHostType, "r1", "r2")
		s.ack(virtualHostType, s.respond(virtualHostType, nil, virtualHost("r1/x", "1"), virtualHost("r1/y", "1"), virtualHost("r2/x", "1"), virtualHost("r3/x", "1")), "")
		pass(2 * time.Second)
		want := map[string]string{"r1/x": "1", "r1/y": "1", "r2/x": "1"}
		if diff := cmp.Diff(want, stored(t, store)[virtualHostType]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		// Unsubscribe and subscribe again, then with fewer virtual hosts.
		s.rec.Request(frame(t, delta(virtualHostType, "", nil, []string{"r1"})))
		s.rec.Request(frame(t, delta(virtualHostType, "", []string{"r1"}, nil)))
		s.ack(virtualHostType, s.respond(virtualHostType, nil, virtualHost("r1/y", "2")), "")
		pass(2 * time.Second)
		want = map[string]string{"r1/y": "2", "r2/x": "1"}
		if diff := cmp.Diff(want, stored(t, store)[virtualHostType]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestConsent checks that secrets are stored with consent; if consent is withdrawn, they are no
// longer used and are removed.
func TestConsent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(t, func(c *Config) { c.Secrets = true })
		store := open(t, cfg)
		stop := run(t, store)
		s := newStream(t, store, true)
		private := "-----BEGIN EC PRIVATE KEY-----"
		s.give(clusterType, cluster("a", private), cluster("b", "1"))
		s.give(listenerType, listener("l", "1"))
		s.give(secretType, secret("s", "hidden"))
		pass(2 * time.Second)
		stop()
		want := contents{clusterType: {"a": private, "b": "1"}, listenerType: {"l": "1"}, secretType: {"s": "hidden"}}
		if diff := cmp.Diff(want, stored(t, open(t, cfg))); diff != "" {
			t.Errorf("with consent (-want +got):\n%s", diff)
		}
		cfg.Secrets = false
		store = open(t, cfg)
		want = contents{clusterType: {"a": "withheld", "b": "1"}, listenerType: {"l": "1"}}
		if diff := cmp.Diff(want, stored(t, store)); diff != "" {
			t.Errorf("without consent (-want +got):\n%s", diff)
		}
		// The next write removes them from the disk.
		stop = run(t, store)
		s = newStream(t, store, true)
		s.give(clusterType, cluster("b", "1"))
		s.give(listenerType, listener("l", "1"))
		pass(2 * time.Second)
		stop()
		cfg.Secrets = true
		want = contents{clusterType: {"b": "1"}, listenerType: {"l": "1"}}
		if diff := cmp.Diff(want, stored(t, open(t, cfg))); diff != "" {
			t.Errorf("consent once more (-want +got):\n%s", diff)
		}
	})
}

// TestHotRestart checks that the newer of two Envoys is recorded.
func TestHotRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, config(t))
		stop := run(t, store)
		defer stop()
		old := newStream(t, store, true)
		old.give(clusterType, cluster("a", "1"))
		old.give(listenerType, listener("l", "1"))
		pass(2 * time.Second)
		young := newStream(t, store, true)
		young.give(clusterType, cluster("a", "2"))
		old.give(clusterType, cluster("old", "1"))
		young.give(listenerType, listener("l", "2"))
		pass(2 * time.Second)
		want := contents{clusterType: {"a": "2"}, listenerType: {"l": "2"}}
		if diff := cmp.Diff(want, stored(t, store)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestWriteRate checks that a continuously changing configuration is written at a rate that depends
// on its size, and at the end of the stream. An unchanged configuration is not written.
func TestWriteRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, config(t))
		stop := run(t, store)
		defer stop()
		s := newStream(t, store, true)
		big := strings.Repeat("x", 10*writeRate)
		s.give(clusterType, cluster("a", big), cluster("b", "0"))
		s.give(listenerType, listener("l", "1"))
		path := filepath.Join(store.cfg.Dir, snapshotFile)
		var last fs.FileInfo
		written := 0
		look := func() {
			pass(time.Second)
			if info, err := os.Stat(path); err == nil && (last == nil || !os.SameFile(info, last)) {
				last = info
				written++
			}
		}
		for n := range 600 {
			s.give(clusterType, cluster("b", strconv.Itoa(n%599)))
			look()
		}
		if written < 55 || written > 61 {
			t.Errorf("%d snapshots in 600 s, want one each 10 s", written)
		}
		s.rec.Close()
		pass(0)
		if got := stored(t, store)[clusterType]["b"]; got != "0" {
			t.Errorf("at the end of the stream: %s", got)
		}
		look()
		written = 0
		s = newStream(t, store, true)
		for range 40 {
			s.give(clusterType, cluster("a", big), cluster("b", "0"))
			s.give(listenerType, listener("l", "1"))
			look()
		}
		pass(3 * confirmEvery)
		if written > 0 {
			t.Errorf("%d snapshots of an unchanged configuration, want none", written)
		}
		if age := store.Age(); age > confirmEvery {
			t.Errorf("the snapshot is %s old", age)
		}
	})
}

func delta(typeURL, nonce string, subscribe, unsubscribe []string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe}
}
