// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// FuzzDecode checks that Decode returns a valid object or an error for anything that a server
// sends. An object must keep its meaning when it is sent on.
func FuzzDecode(f *testing.F) {
	for i, sch := range schema.All() {
		c := &model.Config{Key: model.Key{Kind: sch.Kind, Namespace: "a", Name: "b"}, Labels: map[string]string{"a": "b"}, Spec: sch.NewSpec()}
		if sch.Cluster {
			c.Namespace = ""
		}
		if sch.Kind == model.WorkloadEntry {
			c = workload("a", "10.0.0.1")
		}
		m, err := Encode(c)
		if err != nil {
			f.Fatal(err)
		}
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), raw)
	}
	f.Add(uint8(0), []byte{0xff})
	f.Fuzz(func(t *testing.T, kind uint8, raw []byte) {
		all := schema.All()
		sch := all[int(kind)%len(all)]
		c, key, err := decode(sch, "", &anypb.Any{TypeUrl: resourceType, Value: raw})
		if (c == nil) == (err == nil) || key.Kind != sch.Kind {
			t.Fatalf("Decode() = %v, %v, %v", c, key, err)
		}
		if err != nil {
			return
		}
		if errs, _ := validate.Object(c); len(errs) > 0 || c.Key != key {
			t.Fatalf("%v is invalid: %v", c.Key, errs)
		}
		m, err := Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		d, _, err := decode(sch, "", &anypb.Any{TypeUrl: resourceType, Value: again})
		if err != nil || !config.SameContent(c, d) || !c.Created.Equal(d.Created) || c.ResourceVersion != d.ResourceVersion {
			t.Fatalf("%v differs after encoding and decoding: %v, %v", c, d, err)
		}
	})
}
