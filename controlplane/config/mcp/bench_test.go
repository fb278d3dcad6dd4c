// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// BenchmarkApply applies a response in which one of 10,000 objects changed, once as full state and
// once as a delta.
func BenchmarkApply(b *testing.B) {
	const objects = 10_000
	resource := func(i, address int) named {
		m, err := Encode(workload(fmt.Sprintf("w%d", i), fmt.Sprintf("10.%d.0.1", address)))
		if err != nil {
			b.Fatal(err)
		}
		raw, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		return named{name: m.GetMetadata().GetName(), resource: &anypb.Any{TypeUrl: resourceType, Value: raw}}
	}
	for _, delta := range []bool{false, true} {
		b.Run(fmt.Sprintf("delta=%v", delta), func(b *testing.B) {
			s := newStore(options{}, Config{}, nil)
			all := make([]named, objects)
			for i := range all {
				all[i] = resource(i, 0)
				all[i].name = ""
			}
			if err := s.apply(&response{typeURL: workloadType, full: true, resources: all}); err != nil {
				b.Fatal(err)
			}
			for n := 0; b.Loop(); n++ {
				r := &response{typeURL: workloadType, full: !delta, resources: []named{resource(0, n%200)}}
				if !delta {
					r.resources[0].name = ""
					r.resources = append(r.resources, all[1:]...)
				}
				if err := s.apply(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
