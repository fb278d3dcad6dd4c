// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// benchServices is the number of services of the benchmarks. They have 600 clusters.
const benchServices = 500

func BenchmarkCold(b *testing.B) {
	w := newWorld(b, benchServices)
	for _, typeURL := range append([]string{"all"}, xds.Types...) {
		b.Run(typeURL[len(typeURL)-min(len(typeURL), 10):], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				g := New(Config{})
				if typeURL == "all" {
					generateAll(g, w.mesh, proxyAt("127.1.0.2"))
				} else {
					g.Generate(w.mesh, proxyAt("127.1.0.2"), typeURL)
				}
			}
		})
	}
}

// BenchmarkOneEndpoint measures the move of one endpoint: building the snapshot and all types of
// one proxy.
func BenchmarkOneEndpoint(b *testing.B) {
	w, g := newWorld(b, benchServices), New(Config{})
	b.ReportAllocs()
	version := 1
	for b.Loop() {
		version = 3 - version
		w.moveEndpoint(7, version)
		generateAll(g, w.mesh, proxyAt("127.1.0.2"))
	}
}

// BenchmarkOneEndpoint1000Proxies measures the move of one endpoint for 1000 proxies of one
// namespace, each with its own address.
func BenchmarkOneEndpoint1000Proxies(b *testing.B) {
	w, g := newWorld(b, benchServices), New(Config{})
	proxies := make([]*model.Proxy, 1000)
	for i := range proxies {
		proxies[i] = proxyAt(fmt.Sprintf("127.1.%d.%d", i/250, i%250+1))
		generateAll(g, w.mesh, proxies[i])
	}
	b.ReportAllocs()
	version := 1
	for b.Loop() {
		version = 3 - version
		w.moveEndpoint(7, version)
		for _, p := range proxies {
			generateAll(g, w.mesh, p)
		}
	}
}

// TestProxiesShareWork checks that a change that concerns no proxy in particular costs little more for
// many proxies than for one.
func TestProxiesShareWork(t *testing.T) {
	w, g := newWorld(t, benchServices), New(Config{})
	proxies := make([]*model.Proxy, 200)
	for i := range proxies {
		proxies[i] = proxyAt(fmt.Sprintf("127.1.%d.%d", i/250, i%250+1))
	}
	version := 1
	push := func(proxies []*model.Proxy) float64 {
		return testing.AllocsPerRun(5, func() {
			version = 3 - version
			w.moveEndpoint(7, version)
			for _, p := range proxies {
				generateAll(g, w.mesh, p)
			}
		})
	}
	push(proxies) // fills the caches
	const most = 50
	if each := (push(proxies) - push(proxies[:1])) / float64(len(proxies)-1); each > most {
		t.Errorf("%.0f allocations for one more proxy, at most %d are allowed", each, most)
	} else {
		t.Logf("%.0f allocations for one more proxy", each)
	}
}

func BenchmarkSnapshotWhole(b *testing.B) {
	w := newWorld(b, benchServices)
	b.ReportAllocs()
	for b.Loop() {
		snapshot.Build(nil, inputOf(w.objects, w.mesh.Config), model.Change{All: true})
	}
}
