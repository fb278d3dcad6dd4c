// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// TestPlaceOf checks that the label of the workload takes precedence over the locality of the
// machine.
func TestPlaceOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		label string
		at    *corev3.Locality
		want  string
	}{
		{"", nil, ""},
		{"", &corev3.Locality{Region: "eu"}, "eu"},
		{"", &corev3.Locality{Region: "eu", Zone: "a", SubZone: "1"}, "eu/a/1"},
		{"us.b.2", &corev3.Locality{Region: "eu"}, "us/b/2"},
		{"us/b.2", nil, "us/b.2"},
	} {
		meta := &node.Metadata{Labels: map[string]string{"istio-locality": tc.label}}
		if got := workloadLocality(&corev3.Node{Locality: tc.at}, meta); got != tc.want {
			t.Errorf("label %q at %v: %q, want %q", tc.label, tc.at, got, tc.want)
		}
	}
}
