// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"encoding/json"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// TestReadableClientConfig checks that protobuf's own JSON decoder reads the output for users.
func TestReadableClientConfig(t *testing.T) {
	t.Parallel()
	want := &discoveryv3.DiscoveryResponse{VersionInfo: "v", TypeUrl: debugPrefix + "/syncz", Nonce: "n"}
	for _, id := range []string{"a.default", ""} {
		c := &statusv3.ClientConfig{Node: &corev3.Node{Id: id, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"CLUSTER_ID": structpb.NewStringValue("here")}}}}
		for i := range statusv3.ConfigStatus_name {
			c.GenericXdsConfigs = append(c.GenericXdsConfigs, &statusv3.ClientConfig_GenericXdsConfig{
				TypeUrl: clusterType, Name: "x", VersionInfo: "1", ConfigStatus: statusv3.ConfigStatus(i),
			})
		}
		a, err := anypb.New(c)
		if err != nil {
			t.Fatal(err)
		}
		want.Resources = append(want.Resources, a)
	}
	b, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(readable(b))
	if err != nil {
		t.Fatal(err)
	}
	got := &discoveryv3.DiscoveryResponse{}
	if err := protojson.Unmarshal(text, got); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// FuzzReadable checks that arbitrary bytes result in valid JSON.
func FuzzReadable(f *testing.F) {
	f.Add([]byte("\x12\x44\x0a\x38" + clientConfigType + "\x12\x06\x0a\x04\x0a\x02id"))
	f.Add([]byte("\x12\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := json.Marshal(readable(b)); err != nil {
			t.Fatal(err)
		}
		_, _ = readClientConfig(b)
	})
}
