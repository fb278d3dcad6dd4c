// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"maps"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// FuzzRequest checks that the readers read the same as the generated types.
func FuzzRequest(f *testing.F) {
	for _, m := range []proto.Message{
		&discoveryv3.DiscoveryRequest{
			VersionInfo: "v", Node: &corev3.Node{Id: "n"}, TypeUrl: "t", ResourceNames: []string{"a", "b"}, ResponseNonce: "1",
			ErrorDetail: &rpcstatus.Status{Code: 3, Message: "m"},
		},
		&discoveryv3.DeltaDiscoveryRequest{
			Node: &corev3.Node{Id: "n"}, TypeUrl: "t", ResourceNamesSubscribe: []string{"a"}, ResourceNamesUnsubscribe: []string{"b"},
			InitialResourceVersions: map[string]string{"a": "1"}, ResponseNonce: "1", ErrorDetail: &rpcstatus.Status{Code: 3},
		},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s discoveryv3.DiscoveryRequest
		if q, err := readSotW(b); proto.Unmarshal(b, &s) == nil && err == nil {
			if !slices.Equal(q.names(), s.GetResourceNames()) || q.named != len(s.GetResourceNames()) || q.version != s.GetVersionInfo() {
				t.Errorf("read %+v from %v", q, &s)
			}
			compareRequest(t, q, s.GetTypeUrl(), s.GetResponseNonce(), s.GetErrorDetail() != nil)
		}
		var d discoveryv3.DeltaDiscoveryRequest
		if q, err := readDelta(b); proto.Unmarshal(b, &d) == nil && err == nil {
			if !slices.Equal(q.subscribe, d.GetResourceNamesSubscribe()) || !slices.Equal(q.unsubscribe, d.GetResourceNamesUnsubscribe()) ||
				!maps.Equal(q.versions, d.GetInitialResourceVersions()) {
				t.Errorf("read %+v from %v", q, &d)
			}
			compareRequest(t, q, d.GetTypeUrl(), d.GetResponseNonce(), d.GetErrorDetail() != nil)
		}
	})
}

func compareRequest(t *testing.T, q *request, typeURL, nonce string, rejected bool) {
	t.Helper()
	if q.typeURL != typeURL || q.nonce != nonce || (q.rejected != "") != rejected {
		t.Errorf("read %+v, want type %q, nonce %q, rejected %t", q, typeURL, nonce, rejected)
	}
}
