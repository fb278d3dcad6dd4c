// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xds

import (
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func key(name string) model.Key {
	return model.Key{Kind: model.ServiceEntry, Namespace: "default", Name: name}
}

func sourcesOf(names ...string) (out Sources) {
	for _, name := range names {
		out.Add(key(name))
	}
	return out
}

// TestSourcesOfEqualContent checks that resources with equal content and different sources are
// different but share their bytes and hash, and that resources with equal sources are identical.
func TestSourcesOfEqualContent(t *testing.T) {
	t.Parallel()
	table := NewTable()
	put := func(from Sources) *Resource {
		t.Helper()
		r, err := table.Put(TypeCluster, "c", &clusterv3.Cluster{Name: "c"}, from)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b := put(sourcesOf("a")), put(sourcesOf("b"))
	if a == b || !a.Sources.Has(key("a")) || !b.Sources.Has(key("b")) || b.Sources.Has(key("a")) {
		t.Errorf("sources: got %v and %v", a.Sources.Keys(), b.Sources.Keys())
	}
	if !Same(a, b) || &a.Any[0] != &b.Any[0] {
		t.Error("resources with equal content do not share their hash or bytes")
	}
	if put(sourcesOf("a")) != a || put(sourcesOf("b")) != b {
		t.Error("equal resources are not shared")
	}
	if changed, gone := Diff(&Set{Resources: []*Resource{a}}, &Set{Resources: []*Resource{b}}); len(changed)+len(gone) != 0 {
		t.Error("Diff reports resources that differ only in their sources")
	}
	if first, second := NewSet(nil, []*Resource{a}, nil), NewSet(nil, []*Resource{b}, nil); first.Version != second.Version {
		t.Error("sets that differ only in sources have different versions")
	}
	of := func(input string, from Sources) *Resource {
		t.Helper()
		r, err := table.Get(input, TypeCluster, "c", func() (proto.Message, Sources) { return &clusterv3.Cluster{Name: "c"}, from })
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if of("one", sourcesOf("b")) != b || of("two", sourcesOf("a")) != a || of("one", nil) != b {
		t.Error("resources built from an input are not shared with equal ones that were put")
	}
}

func TestSourcesAreSorted(t *testing.T) {
	t.Parallel()
	from := sourcesOf("b", "a", "b")
	from.Add(model.Key{}) // an empty key
	from.AddConfigs(&model.Config{Key: key("made"), From: []model.Key{key("c")}}, &model.Config{Key: key("a")})
	r, err := NewTable().Put(TypeCluster, "c", &clusterv3.Cluster{Name: "c"}, from)
	if err != nil {
		t.Fatal(err)
	}
	if want := []model.Key{key("a"), key("b"), key("c")}; !slices.Equal(r.Sources.Keys(), want) {
		t.Errorf("got %v, want %v", r.Sources.Keys(), want)
	}
}
