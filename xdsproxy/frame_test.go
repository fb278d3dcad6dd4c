// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// A type URL that is no text must not end the agent: as the label of a metric
// it would.
func TestTypeURLBecomesALabel(t *testing.T) {
	t.Parallel()
	b := protowire.AppendTag(nil, sotwTypeURL, protowire.BytesType)
	b = protowire.AppendBytes(b, []byte("type\xff"))
	r := readRequest(b, false)
	newMetrics(nil).rejected.WithLabelValues(r.typeURL).Inc()
	if r.typeURL != "type?" {
		t.Errorf("type URL %q", r.typeURL)
	}
}
