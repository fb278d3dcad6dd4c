// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// keep makes a store save resources, and stops it.
func keep(t testing.TB, cfg Config, what func(s *stream)) *Store {
	t.Helper()
	store := open(t, cfg)
	stop := run(t, store)
	s := newStream(t, store, true)
	what(s)
	s.rec.Close()
	eventually(t, "a snapshot", func() bool { return store.Usable() == nil })
	stop()
	store = open(t, cfg)
	t.Cleanup(func() {
		if store.found != nil { // Run has not taken it over
			_ = store.found.file.Close() // read-only: closing cannot lose data
		}
	})
	return store
}

// something is the state that most tests store.
func something(s *stream) {
	s.give(clusterType, cluster("a", "1"), cluster("b", "1"))
	s.give(endpointType, endpoints("a", "1"), endpoints("b", "1"))
	s.give(listenerType, listener("l", "1"))
	s.give(routeType, route("r", "1"))
	s.ask(virtualHostType)
	s.ack(virtualHostType, s.respond(virtualHostType, nil, virtualHost("r/x", "1"), virtualHost("r/y", "1")), "")
}

// TestServeStateOfTheWorld is a dialog with an Envoy.
func TestServeStateOfTheWorld(t *testing.T) {
	t.Parallel()
	d := serve(t, keep(t, config(t), something), false)
	ask := func(typeURL, nonce string, names ...string) {
		t.Helper()
		d.send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ResourceNames: names})
	}
	want := func(what string, resources map[string]string) string {
		t.Helper()
		r, got := d.sotw()
		if diff := cmp.Diff(resources, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if r.GetNonce() == "" || r.GetVersionInfo() != servedVersion {
			t.Errorf("%s: nonce %q, version %q", what, r.GetNonce(), r.GetVersionInfo())
		}
		return r.GetNonce()
	}
	ask(clusterType, "")
	nonce := want("clusters", map[string]string{"a": "1", "b": "1"})
	ask(clusterType, nonce)
	d.silent()
	ask(endpointType, "", "a")
	nonce = want("endpoints", map[string]string{"a": "1"})
	ask(endpointType, nonce, "a", "b", "missing")
	next := want("more endpoints, and some that are missing", map[string]string{"b": "1", "missing": ""})
	ask(endpointType, nonce, "a", "b", "missing", "stale")
	d.silent()
	ask(endpointType, next, "a", "b", "missing")
	d.silent()
	ask(endpointType, next, "b")
	d.silent()
	ask(endpointType, next, "a", "b")
	next = want("endpoints that were given up", map[string]string{"a": "1"})
	ask(endpointType, next, "a", "b")
	d.silent()
	ask(endpointType, next, "a", "b")
	want("the same once more", map[string]string{"a": "1", "b": "1"})
	ask(routeType, "", "r", "none")
	nonce = want("routes, and some that are missing", map[string]string{"r": "1", "none": ""})
	d.send(&discoveryv3.DiscoveryRequest{TypeUrl: routeType, ResponseNonce: nonce, ResourceNames: []string{"r", "none"}, ErrorDetail: &status.Status{Message: "bad"}})
	d.silent()
	d.send(&discoveryv3.DiscoveryRequest{TypeUrl: listenerType, VersionInfo: "of the control plane"})
	d.silent()
	ask(extensionType, "", "e")
	want("an extension that is missing, to be rejected", map[string]string{"e": unknown})
	close(d.requests)
	if err := <-d.end; err != nil {
		t.Errorf("at the end of the stream: %v", err)
	}
}

// TestServeDelta is a dialog with an Envoy.
func TestServeDelta(t *testing.T) {
	t.Parallel()
	store := keep(t, config(t), something)
	type answer struct {
		resources map[string]string
		removed   []string
	}
	for _, tc := range []struct {
		name  string
		sends []*discoveryv3.DeltaDiscoveryRequest
		want  []answer
	}{
		{
			"all clusters",
			[]*discoveryv3.DeltaDiscoveryRequest{delta(clusterType, "", nil, nil)},
			[]answer{{map[string]string{"a": "1", "b": "1"}, nil}},
		},
		{
			"what envoy has is left alone",
			[]*discoveryv3.DeltaDiscoveryRequest{{TypeUrl: clusterType, InitialResourceVersions: map[string]string{"a": "7", "other": "8"}}},
			[]answer{{map[string]string{"b": "1"}, nil}},
		},
		{
			"an acknowledgement",
			[]*discoveryv3.DeltaDiscoveryRequest{delta(clusterType, "", nil, nil), delta(clusterType, "last-good-1", nil, nil)},
			[]answer{{map[string]string{"a": "1", "b": "1"}, nil}},
		},
		{
			"a rejection with names",
			[]*discoveryv3.DeltaDiscoveryRequest{
				delta(endpointType, "", []string{"a"}, nil),
				{TypeUrl: endpointType, ResponseNonce: "last-good-1", ErrorDetail: &status.Status{Message: "bad"}, ResourceNamesSubscribe: []string{"b"}},
			},
			[]answer{{map[string]string{"a": "1"}, nil}, {map[string]string{"b": "1"}, nil}},
		},
		{
			"endpoints that are missing",
			[]*discoveryv3.DeltaDiscoveryRequest{delta(endpointType, "", []string{"a", "missing"}, nil)},
			[]answer{{map[string]string{"a": "1"}, []string{"missing"}}},
		},
		{
			"the same once more",
			[]*discoveryv3.DeltaDiscoveryRequest{delta(endpointType, "", []string{"a"}, nil), delta(endpointType, "", nil, []string{"a"}), delta(endpointType, "", []string{"a"}, nil)},
			[]answer{{map[string]string{"a": "1"}, nil}, {map[string]string{"a": "1"}, nil}},
		},
		{
			"routes that are missing",
			[]*discoveryv3.DeltaDiscoveryRequest{delta(routeType, "", []string{"none", "r"}, nil)},
			[]answer{{map[string]string{"r": "1", "none": ""}, nil}},
		},
		{
			"virtual hosts of all, and of routes that have none",
			[]*discoveryv3.DeltaDiscoveryRequest{delta(routeType, "", []string{"r", "none"}, nil), delta(virtualHostType, "", nil, nil), delta(routeType, "", []string{"later"}, nil)},
			[]answer{{map[string]string{"r": "1", "none": ""}, nil}, {map[string]string{"r/x": "1", "r/y": "1"}, []string{"none/"}}, {map[string]string{"later": ""}, nil}, {map[string]string{}, []string{"later/"}}},
		},
		{
			"virtual hosts by name",
			[]*discoveryv3.DeltaDiscoveryRequest{delta(virtualHostType, "", []string{"r/x", "r/none"}, nil), delta(virtualHostType, "", []string{"r"}, nil)},
			[]answer{{map[string]string{"r/x": "1", "r/none": "nothing"}, nil}, {map[string]string{"r/x": "1", "r/y": "1"}, nil}},
		},
		{
			"a type that is not stored",
			[]*discoveryv3.DeltaDiscoveryRequest{delta(secretType, "", []string{"s"}, nil)},
			[]answer{{map[string]string{"s": unknown}, nil}},
		},
		{
			"with an asterisk",
			[]*discoveryv3.DeltaDiscoveryRequest{delta(listenerType, "", []string{"*", "none"}, nil)},
			[]answer{{map[string]string{"l": "1"}, []string{"none"}}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := serve(t, store, true)
			for _, m := range tc.sends {
				d.send(m)
			}
			for n, want := range tc.want {
				r, got := d.incremental()
				if diff := cmp.Diff(want, answer{got, r.GetRemovedResources()}, cmp.AllowUnexported(answer{})); diff != "" {
					t.Errorf("answer %d (-want +got):\n%s", n, diff)
				}
				for _, res := range r.GetResources() {
					if res.GetVersion() != servedVersion {
						t.Errorf("version %q of %s", res.GetVersion(), res.GetName())
					}
				}
			}
			d.silent()
		})
	}
}

// TestServeWithoutListeners checks that a state without one of the basic types is not served: Envoy
// would be ready but useless.
func TestServeWithoutListeners(t *testing.T) {
	t.Parallel()
	for _, isDelta := range []bool{true, false} {
		store := keep(t, config(t), func(s *stream) { s.give(clusterType, cluster("a", "1")) })
		d := serve(t, store, isDelta)
		if isDelta {
			d.send(delta(listenerType, "", nil, nil))
		} else {
			d.send(&discoveryv3.DiscoveryRequest{TypeUrl: listenerType})
		}
		d.silent()
	}
}

// TestServeInParts checks that resources requested by name are sent in several responses.
func TestServeInParts(t *testing.T) {
	t.Parallel()
	var all []proto.Message
	var names []string
	want := map[string]string{}
	for n := range 50 {
		detail := strconv.Itoa(n) + strings.Repeat("x", 100_000)
		names = append(names, strconv.Itoa(n))
		all, want[names[n]] = append(all, endpoints(names[n], detail)), detail
	}
	store := keep(t, config(t), func(s *stream) {
		s.give(clusterType, cluster("a", "1"))
		s.give(endpointType, all...)
		s.give(listenerType, listener("l", "1"))
	})
	for _, isDelta := range []bool{true, false} {
		d := serve(t, store, isDelta)
		if isDelta {
			d.send(delta(endpointType, "", names, nil))
		} else {
			d.send(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names})
		}
		got, parts := map[string]string{}, 0
		for len(got) < len(want) {
			var part map[string]string
			if isDelta {
				_, part = d.incremental()
			} else {
				_, part = d.sotw()
			}
			maps.Copy(got, part)
			parts++
		}
		if !maps.Equal(got, want) || parts < 5 || parts > 6 {
			t.Errorf("delta=%t: got %d responses, want 5 or 6 with the stored resources", isDelta, parts)
		}
	}
}

// TestServeEnds checks that Serve returns the cause at once when ctx is done, and also ends on an
// invalid request.
func TestServeEnds(t *testing.T) {
	t.Parallel()
	store := keep(t, config(t), something)
	better := errors.New("the control plane is reachable")
	ctx, cancel := context.WithCancelCause(context.Background())
	hold := make(chan struct{})
	defer close(hold)
	end := make(chan error, 1)
	go func() {
		end <- store.Serve(ctx, true, func() ([]byte, error) { <-hold; return nil, errors.New("over") }, nil)
	}()
	cancel(better)
	select {
	case err := <-end:
		if !errors.Is(err, better) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("Serve waits for a request instead of returning")
	}
	d := serve(t, store, true)
	d.requests <- []byte("\xff\xff")
	if err := <-d.end; !errors.Is(err, errMalformed) {
		t.Errorf("after an invalid request: %v", err)
	}
}

// TestServeWhileWriting checks that states recorded meanwhile do not affect what is served.
func TestServeWhileWriting(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	store := open(t, cfg)
	run(t, store)
	s := newStream(t, store, true)
	something(s)
	eventually(t, "a snapshot", func() bool { return store.Usable() == nil })
	d := serve(t, store, true)
	d.send(delta(clusterType, "", nil, nil))
	_, got := d.incremental()
	if want := map[string]string{"a": "1", "b": "1"}; !maps.Equal(got, want) {
		t.Errorf("clusters: %v", got)
	}
	// The file is replaced while Serve runs.
	for n := range 3 {
		since := store.From()
		for range 30 {
			s.give(clusterType, cluster("a", strings.Repeat("x", 100_000)), cluster("b", strconv.Itoa(n)))
		}
		s.give(listenerType, listener("l", "2"))
		saved(t, store, since)
	}
	d.send(delta(listenerType, "", nil, nil))
	if _, got := d.incremental(); !maps.Equal(got, map[string]string{"l": "1"}) {
		t.Errorf("listeners of another state: %v", got)
	}
	keys := slices.Sorted(maps.Keys(stored(t, store)[clusterType]))
	if diff := cmp.Diff([]string{"a", "b"}, keys); diff != "" {
		t.Error(diff)
	}
}
