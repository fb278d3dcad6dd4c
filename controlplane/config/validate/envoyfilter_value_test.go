// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// TestPatchDurations reads durations in Go's syntax, at the top level, nested and in an Any.
func TestPatchDurations(t *testing.T) {
	t.Parallel()
	value := &structpb.Struct{}
	if err := protojson.Unmarshal([]byte(`{"name": "500ms", "connect_timeout": "500ms", "outlierDetection": {"interval": "1m30s"},
		"health_checks": [{"timeout": "1.5s"}], "typed_extension_protocol_options": {"http": {
		"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
		"common_http_protocol_options": {"idle_timeout": "250us"}}}}`), value); err != nil {
		t.Fatal(err)
	}
	before := proto.CloneOf(value)
	m, err := PatchMessage(networkingv1alpha3.EnvoyFilter_CLUSTER, value)
	if err != nil {
		t.Fatal(err)
	}
	c, options := m.(*clusterv3.Cluster), &httpv3.HttpProtocolOptions{}
	if err := c.GetTypedExtensionProtocolOptions()["http"].UnmarshalTo(options); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][2]time.Duration{
		"connect_timeout": {c.GetConnectTimeout().AsDuration(), 500 * time.Millisecond},
		"interval":        {c.GetOutlierDetection().GetInterval().AsDuration(), 90 * time.Second},
		"timeout":         {c.GetHealthChecks()[0].GetTimeout().AsDuration(), 1500 * time.Millisecond},
		"idle_timeout":    {options.GetCommonHttpProtocolOptions().GetIdleTimeout().AsDuration(), 250 * time.Microsecond},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: got %s, want %s", name, got[0], got[1])
		}
	}
	if c.GetName() != "500ms" || !proto.Equal(before, value) {
		t.Errorf("the name is %q, want 500ms; the input was changed to %s", c.GetName(), value)
	}
}
