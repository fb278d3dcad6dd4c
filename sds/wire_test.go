// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// FuzzRead compares the readers with the generated types.
func FuzzRead(f *testing.F) {
	for _, m := range []proto.Message{
		&discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResourceNames: []string{"a", "b"}, ResponseNonce: "1", ErrorDetail: &status.Status{Code: 3, Message: "m"}},
		&discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: secretType, ResourceNamesSubscribe: []string{"a"}, ResourceNamesUnsubscribe: []string{"b"},
			InitialResourceVersions: map[string]string{"a": "1"}, ResponseNonce: "1", ErrorDetail: &status.Status{Code: 3},
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
		if got, err := readSotW(b); proto.Unmarshal(b, &s) == nil {
			want := newSubscription()
			want.replace(s.GetResourceNames())
			compare(t, got, err, s.GetTypeUrl(), s.GetResponseNonce(), s.GetErrorDetail(), want)
		}
		var d discoveryv3.DeltaDiscoveryRequest
		if got, err := readDelta(b); proto.Unmarshal(b, &d) == nil {
			want := newSubscription()
			want.remove(d.GetResourceNamesUnsubscribe())
			want.add(d.GetResourceNamesSubscribe(), d.GetInitialResourceVersions())
			compare(t, got, err, d.GetTypeUrl(), d.GetResponseNonce(), d.GetErrorDetail(), want)
		}
	})
}

func compare(t *testing.T, got *request, err error, typeURL, nonce string, detail *status.Status, want *subscription) {
	t.Helper()
	if err != nil {
		t.Fatalf("a message that protobuf reads: %v", err)
	}
	if got.typeURL != typeURL || got.nonce != nonce {
		t.Errorf("read type %q and nonce %q, want %q and %q", got.typeURL, got.nonce, typeURL, nonce)
	}
	// Detail that stands twice is merged by protobuf; Envoy never writes it.
	if (got.rejection != "") != (detail != nil) {
		t.Errorf("read the rejection %q from %v", got.rejection, detail)
	}
	sub := newSubscription()
	got.subscribe(sub)
	if diff := cmp.Diff(want.sent, sub.sent); diff != "" {
		t.Errorf("subscription (-want +got):\n%s", diff)
	}
}
