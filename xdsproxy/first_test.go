// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"os"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
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

// An Envoy that rejects its first configuration of a type is not configured until
// it takes resources of the type, or wants those no longer. Rejections that follow
// an acceptance, and types that it does not serve by, do not count.
func TestConfigured(t *testing.T) {
	const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	const sent = "push" // the control plane sends a response to Envoy
	type step struct{ what, nonce, resource string }
	for name, tc := range map[string]struct {
		typeURL string
		steps   []step
		want    string // of the error, "" for none
	}{
		"nothing asked":        {routeType, nil, ""},
		"accepted":             {routeType, []step{{sent, "1", "r"}, {"ack", "1", ""}}, ""},
		"not answered":         {routeType, []step{{sent, "1", "r"}}, "not answered yet to its first routes (RDS)"},
		"rejected":             {routeType, []step{{sent, "1", "r"}, {"nack", "1", ""}}, "rejected its first routes (RDS) and has none in force: bad things"},
		"clusters rejected":    {clusterType, []step{{sent, "1", "c"}, {"nack", "1", ""}}, "clusters (CDS)"},
		"withdrawn":            {routeType, []step{{sent, "1", "r"}, {"nack", "1", ""}, {sent, "2", ""}, {"ack", "2", ""}}, "rejected its first routes"},
		"corrected":            {routeType, []step{{sent, "1", "r"}, {"nack", "1", ""}, {sent, "2", "r"}, {"ack", "2", ""}}, ""},
		"no longer wanted":     {routeType, []step{{sent, "1", "r"}, {"nack", "1", ""}, {"leave", "", "r"}}, ""},
		"rejected later":       {routeType, []step{{sent, "1", "r"}, {"ack", "1", ""}, {sent, "2", "r"}, {"nack", "2", ""}}, ""},
		"nothing, then reject": {routeType, []step{{sent, "1", ""}, {"ack", "1", ""}, {sent, "2", "r"}, {"nack", "2", ""}}, "rejected its first routes"},
		"a secret":             {secretType, []step{{sent, "1", "s"}, {"nack", "1", ""}}, ""},
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
						var values []string
						if s.resource != "" {
							values = []string{s.resource}
						}
						r.push(tc.typeURL, s.nonce, s.nonce, values...)
						e.wants(tc.typeURL, s.nonce)
						continue
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
					r.nextOf(t, tc.typeURL) // the relay has seen it
				}
				err := r.proxy.Configured(os.Getpid())
				if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				if err := r.proxy.Configured(os.Getpid() + 1); err != nil {
					t.Errorf("another process: %v", err)
				}
			})
		})
	}
}
