// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestBytesAreEqual builds every case repeatedly, from shuffled and copied objects, with new and
// old generators. The bytes must not differ.
func TestBytesAreEqual(t *testing.T) {
	t.Parallel()
	for _, c := range testCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want := generateAll(New(Config{}), c.build(), c.proxy)
			rnd := rand.New(rand.NewPCG(1, 2))
			for range 10 {
				objects := make([]*model.Config, len(c.objects))
				for i, o := range c.objects {
					copied := *o
					copied.Spec = model.CloneSpec(o.Spec)
					objects[i] = &copied
				}
				rnd.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
				mesh := snapshot.Build(nil, inputOf(objects, c.mesh), model.Change{All: true})
				got := generateAll(New(Config{}), mesh, c.proxy)
				for i, typeURL := range xds.Types {
					sameSet(t, typeURL, want[i], got[i])
				}
			}
		})
	}
}

// TestIncrementalEqualsWhole removes the objects and adds them again one by one. The same objects
// must always result in the same bytes.
func TestIncrementalEqualsWhole(t *testing.T) {
	t.Parallel()
	for _, c := range testCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := New(Config{})
			mesh := c.build()
			step := func(objects []*model.Config, changed model.Key) {
				in := inputOf(objects, c.mesh)
				mesh = snapshot.Build(mesh, in, model.NewChange(changed))
				whole := snapshot.Build(nil, in, model.Change{All: true})
				got, want := generateAll(g, mesh, c.proxy), generateAll(New(Config{}), whole, c.proxy)
				for i, typeURL := range xds.Types {
					sameSet(t, typeURL, want[i], got[i])
				}
				if len(mesh.Problems) != len(whole.Problems) {
					t.Errorf("after a change of %s: problems %v, want %v", changed, mesh.Problems, whole.Problems)
				}
			}
			for i, o := range c.objects {
				step(slices.Delete(slices.Clone(c.objects), i, i+1), o.Key)
				step(c.objects, o.Key)
			}
		})
	}
}

func generateAll(g *Generator, mesh *snapshot.Mesh, proxy *model.Proxy) []*xds.Set {
	sets := make([]*xds.Set, 0, len(xds.Types))
	for _, typeURL := range xds.Types {
		sets = append(sets, g.Generate(mesh, proxy, typeURL))
	}
	return sets
}

func sameSet(t *testing.T, typeURL string, want, got *xds.Set) {
	t.Helper()
	if want.Version != got.Version {
		t.Errorf("%s: version %s, want %s", typeURL, got.Version, want.Version)
	}
	equal := slices.EqualFunc(want.Resources, got.Resources, func(a, b *xds.Resource) bool {
		return a.Name == b.Name && a.Hash == b.Hash && bytes.Equal(a.Any, b.Any)
	})
	if !equal {
		t.Errorf("%s: the bytes of two builds differ", typeURL)
	}
}
