// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// TestSharedGeneratorEqualsFresh applies random changes with one Generator for many random
// proxies, and with snapshots that reuse unchanged parts. Each proxy must receive what a new
// Generator builds for it alone from a new snapshot: nothing of another proxy, nothing outdated,
// and current sources.
func TestSharedGeneratorEqualsFresh(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			sharedEqualsFresh(t, seed, 12)
		})
	}
}

func FuzzSharedGenerator(f *testing.F) {
	f.Add(uint64(1000))
	f.Fuzz(func(t *testing.T, seed uint64) { sharedEqualsFresh(t, seed, 6) })
}

func sharedEqualsFresh(t *testing.T, seed uint64, steps int) {
	t.Helper()
	w := newRandomWorld(seed)
	types := append(slices.Clone(xds.Types), xds.TypeNameTable)
	shared := New(Config{FilterGatewayClusters: seed%2 == 0, GatewaysOwnNamespace: seed%3 == 0})
	var mesh *snapshot.Mesh
	var proxies []*model.Proxy
	change := model.Change{All: true}
	for step := range steps {
		in := w.input()
		mesh = snapshot.Build(mesh, in, change)
		whole := snapshot.Build(nil, in, model.Change{All: true})
		proxies = append(proxies, w.proxy(), w.proxy(), w.proxy())
		for i, proxy := range proxies {
			fresh := New(shared.cfg)
			for _, typeURL := range types {
				got, want := shared.Generate(mesh, proxy, typeURL), fresh.Generate(mesh, proxy, typeURL)
				differs(t, fmt.Sprintf("step %d, proxy %d %+v, shared", step, i, proxy), want, got)
				differs(t, fmt.Sprintf("step %d, proxy %d %+v, incremental", step, i, proxy), fresh.Generate(whole, proxy, typeURL), want)
			}
			if t.Failed() {
				return
			}
		}
		change = w.change(1 + w.IntN(3))
	}
}

// differs reports which resources and problems differ from the expected ones.
func differs(t *testing.T, where string, want, got *xds.Set) {
	t.Helper()
	for _, r := range want.Resources {
		other := got.Get(r.Name)
		switch {
		case other == nil || !bytes.Equal(other.Any, r.Any):
			t.Errorf("%s: %s is another:\n%v", where, r.Name, diffText(t, r, other))
		case !slices.Equal(other.Sources, r.Sources):
			t.Errorf("%s: %s comes from %v, want %v", where, r.Name, other.Sources, r.Sources)
		}
	}
	for _, r := range got.Resources {
		if want.Get(r.Name) == nil {
			t.Errorf("%s: there should be no %s", where, r.Name)
		}
	}
	if !slices.Equal(want.Problems, got.Problems) {
		t.Errorf("%s: problems\n%v, want\n%v", where, got.Problems, want.Problems)
	}
}

func diffText(t *testing.T, want, got *xds.Resource) string {
	t.Helper()
	if got == nil {
		return "none"
	}
	if want.Name == nameTableName {
		return fmt.Sprintf("%q, want\n%q", got.Any, want.Any)
	}
	return cmp.Diff(protojson.Format(unpack(t, want)), protojson.Format(unpack(t, got)))
}

// TestEnvoyAcceptsRandomMeshes validates the resources of random proxies in random meshes with the
// real Envoy.
func TestEnvoyAcceptsRandomMeshes(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newRandomWorld(2000 + seed)
			mesh := snapshot.Build(nil, w.input(), model.Change{All: true})
			proxy := w.proxy()
			proxy.Proxyless, proxy.VHDS = false, false // limited to what a static configuration can contain
			validateWithEnvoy(t, binary, mesh, proxy)
		})
	}
}
