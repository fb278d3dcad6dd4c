// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestWideFieldsAreNumbers checks that fields of 64 bits are written as numbers, because
// Kubernetes' definitions require that; the JSON mapping of protobuf would write strings. Labels
// that have the name of such a field remain strings.
func TestWideFieldsAreNumbers(t *testing.T) {
	t.Parallel()
	const text = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a}
spec:
  host: a
  subsets:
  - name: v1
    labels: {tableSize: "17"}
    trafficPolicy:
      portLevelSettings:
      - port: {number: 80}
        loadBalancer: {consistentHash: {httpHeaderName: x, maglev: {tableSize: 65537}}}
  trafficPolicy:
    loadBalancer: {consistentHash: {httpHeaderName: x, ringHash: {minimumRingSize: 9007199254740993}}}
`
	objects, problems := Decode("a.yaml", []byte(text))
	if len(objects) != 1 {
		t.Fatal(problems)
	}
	raw, err := EncodeSpec(objects[0].Spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"tableSize":65537`, `"minimumRingSize":9007199254740993`, `"tableSize":"17"`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the encoding does not contain %s: %s", want, raw)
		}
	}
	sch, _ := schema.Of(model.DestinationRule)
	back, err := sch.DecodeSpec(raw)
	if err != nil {
		t.Fatal(err)
	}
	if !model.SameSpec(back, objects[0].Spec) {
		t.Errorf("decoding the encoding returned %v", back)
	}
}
