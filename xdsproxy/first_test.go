// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"os"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// reject rejects a response.
func (e *envoy) reject(typeURL, nonce, reason string, names ...string) {
	e.t.Helper()
	detail := &rpcstatus.Status{Code: 13, Message: reason}
	if e.delta {
		e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ErrorDetail: detail})
	} else {
		e.send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ErrorDetail: detail, ResourceNames: names})
	}
}

// TestConfigured checks that an Envoy that rejects its first configuration of a type is not
// configured until it accepts resources of the type, unsubscribes from them, or accepts their
// removal. Rejections after an acceptance do not count, nor do types that are not required for
// serving.
func TestConfigured(t *testing.T) {
	const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	const sent = "push"   // the control plane sends a response to Envoy
	const gone = "remove" // the control plane removes a resource, or without delta all of them
	type step struct{ what, nonce, resource string }
	for name, tc := range map[string]struct {
		typeURL string
		steps   []step
		want    string // part of the error; empty if Envoy is configured
		sotw    string // the same without delta, if it differs; "none" means no error
	}{
		"nothing asked":        {routeType, nil, "", ""},
		"accepted":             {routeType, []step{{sent, "1", "r"}, {"ack", "1", ""}}, "", ""},
		"not answered":         {routeType, []step{{sent, "1", "r"}}, "not yet responded to its first routes (RDS)", ""},
		"rejected":             {routeType, []step{{sent, "1", "r"}, {"nack", "1", ""}}, "rejected its first routes (RDS) and has accepted none since: bad things", ""},
		"clusters rejected":    {clusterType, []step{{sent, "1", "c"}, {"nack", "1", ""}}, "clusters (CDS)", ""},
		"withdrawn":            {routeType, []step{{sent, "1", "r"}, {"nack", "1", ""}, {sent, "2", ""}, {"ack", "2", ""}}, "rejected its first routes", ""},
		"corrected":            {routeType, []step{{sent, "1", "r"}, {"nack", "1", ""}, {sent, "2", "r"}, {"ack", "2", ""}}, "", ""},
		"no longer wanted":     {routeType, []step{{sent, "1", "r"}, {"nack", "1", ""}, {"leave", "", "r"}}, "", ""},
		"rejected later":       {routeType, []step{{sent, "1", "r"}, {"ack", "1", ""}, {sent, "2", "r"}, {"nack", "2", ""}}, "", ""},
		"nothing, then reject": {routeType, []step{{sent, "1", ""}, {"ack", "1", ""}, {sent, "2", "r"}, {"nack", "2", ""}}, "rejected its first routes", ""},
		"a secret":             {secretType, []step{{sent, "1", "s"}, {"nack", "1", ""}}, "", ""},
		"more is asked for":    {routeType, []step{{sent, "1", "r"}, {"nack", "1", ""}, {"more", "1", ""}}, "rejected its first routes", ""},
		"a route is removed":   {routeType, []step{{sent, "1", "r"}, {"nack", "1", ""}, {gone, "2", "r"}, {"ack", "2", ""}}, "rejected its first routes", ""},
		"all are removed":      {listenerType, []step{{sent, "1", "l"}, {"nack", "1", ""}, {gone, "2", "l"}, {"ack", "2", ""}}, "", ""},
		"a removal is pending": {listenerType, []step{{sent, "1", "l"}, {"nack", "1", ""}, {gone, "2", "l"}}, "rejected its first listeners", ""},
		"another is removed":   {listenerType, []step{{sent, "1", "l"}, {"nack", "1", ""}, {gone, "2", "k"}, {"ack", "2", ""}}, "rejected its first listeners", "none"},
		"one of two is left":   {clusterType, []step{{sent, "1", "a b"}, {"nack", "1", ""}, {gone, "2", "a"}, {"ack", "2", ""}}, "rejected its first clusters", "none"},
		"one after the other":  {clusterType, []step{{sent, "1", "a b"}, {"nack", "1", ""}, {gone, "2", "a"}, {"ack", "2", ""}, {gone, "3", "b"}, {"ack", "3", ""}}, "", ""},
		"a part is accepted":   {clusterType, []step{{sent, "1", "a b"}, {"nack", "1", ""}, {sent, "2", "a"}, {"ack", "2", ""}}, "", ""},
		"both are, in parts":   {clusterType, []step{{sent, "1", "a b"}, {"nack", "1", ""}, {sent, "2", "b"}, {"nack", "2", ""}, {gone, "3", "b"}, {"ack", "3", ""}}, "rejected its first clusters", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			bothVariants(t, func(t *testing.T, delta bool) {
				r := startRig(t, Config{}, delta)
				e := r.envoy(t)
				e.ask(tc.typeURL, "r")
				r.nextOf(t, tc.typeURL)
				for _, s := range tc.steps {
					switch s.what {
					case sent:
						r.push(tc.typeURL, s.nonce, s.nonce, strings.Fields(s.resource)...)
						e.wants(tc.typeURL, s.nonce)
						continue
					case gone:
						if delta {
							r.answers <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: tc.typeURL, Nonce: s.nonce, RemovedResources: []string{s.resource}}
						} else {
							r.push(tc.typeURL, s.nonce, s.nonce)
						}
						e.wants(tc.typeURL, s.nonce)
						continue
					case "more":
						if e.ask(tc.typeURL, "r", "q"); !delta {
							r.nextOf(t, tc.typeURL)
							e.send(&discoveryv3.DiscoveryRequest{TypeUrl: tc.typeURL, ResponseNonce: s.nonce, ResourceNames: []string{"r", "q"}})
						}
					case "ack":
						e.take(tc.typeURL, s.nonce, s.nonce, "r")
					case "nack":
						e.reject(tc.typeURL, s.nonce, "bad\nthings", "r")
					case "leave":
						if delta {
							e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: tc.typeURL, ResourceNamesUnsubscribe: []string{s.resource}})
						} else {
							e.send(&discoveryv3.DiscoveryRequest{TypeUrl: tc.typeURL, ResponseNonce: "1"})
						}
					}
					r.nextOf(t, tc.typeURL) // the relay has seen the request
				}
				err, want := r.proxy.Configured(os.Getpid()), tc.want
				if !delta && tc.sotw != "" {
					want = strings.TrimSuffix(tc.sotw, "none")
				}
				if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
				if err := r.proxy.Configured(os.Getpid() + 1); err != nil {
					t.Errorf("another process: %v", err)
				}
			})
		})
	}
}

// TestConfiguredByLastGood checks that an Envoy that rejects a part of the last good configuration
// is not configured until it accepts the configuration of the control plane. Missing extensions do
// not count.
func TestConfiguredByLastGood(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		dir := t.TempDir()
		remember(t, dir, delta)
		_, last := openStored(t, dir)
		address := closedAddress(t)
		r := startRig(t, Config{LastGood: last, Upstream: UpstreamConfig{Address: address}}, delta)
		says := func(want string) func() bool {
			return func() bool {
				err := r.proxy.Configured(os.Getpid())
				return want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want)
			}
		}
		e := r.envoy(t)
		e.ask(clusterType)
		e.take(clusterType, "x", anyOf(t, e, clusterType))
		e.ask(extensionType, "missing")
		e.reject(extensionType, anyOf(t, e, extensionType), "no such thing", "missing")
		e.ask(listenerType)
		nonce := anyOf(t, e, listenerType)
		eventually(t, "only listeners are awaited", says("not yet responded to its first listeners"))
		e.reject(listenerType, nonce, "bad things")
		eventually(t, "listeners are rejected", says("rejected its last good listeners (LDS) and has accepted none since: bad things"))

		r.start(t, listen(t, address))
		r.nextOf(t, clusterType)
		r.push(clusterType, "v9", "9", "")
		if _, err := e.recv(); grpcstatus.Code(err) != codes.Unavailable {
			t.Fatalf("envoy's stream ended with %v", err)
		}
		// Otherwise the old stream of the control plane could take responses meant for the new one.
		eventually(t, "the stream to the control plane has ended", func() bool { return r.streams.Load() == 0 })
		e = r.envoy(t)
		e.ask(listenerType)
		eventually(t, "the control plane has not answered", says("last good listeners"))
		for r.next(t, "request for listeners").typeURL != listenerType { // skip the request for clusters of the probing stream
		}
		r.push(listenerType, "v9", "10", "")
		e.wants(listenerType, "10")
		eventually(t, "envoy has not answered", says("not yet responded to its first listeners"))
		e.take(listenerType, "v9", "10")
		eventually(t, "listeners are accepted", says(""))
	})
}
