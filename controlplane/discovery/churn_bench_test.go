// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// BenchmarkChurn is what a push costs a stream, without gRPC: 150 of 600 endpoint
// resources have changed, for a thousand proxies.
func BenchmarkChurn(b *testing.B) {
	g := &table{}
	s, err := New(Config{Generator: g, Workers: 1, Registerer: prometheus.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	const proxies, services = 1000, 600
	content := map[string]string{}
	var names []string
	for i := range services {
		name := fmt.Sprintf("outbound|80||service-%d.default.svc.cluster.local", i)
		names = append(names, name)
		content[name] = fmt.Sprintf("%0400d", i)
	}
	g.set(xds.TypeEndpoint, content)
	s.Push(&snapshot.Mesh{}, model.Change{All: true})
	mesh := s.mesh.Load()
	var all []*stream
	for range proxies {
		st := &stream{server: s, proxy: &model.Proxy{}, delta: true, log: s.log, subs: map[string]*subscription{}, mesh: mesh, sendMsg: func(any) error { return nil }}
		sub := st.subscribe(xds.TypeEndpoint)
		sub.addNames(names, noResources)
		all = append(all, st)
	}
	b.ReportAllocs()
	round := 0
	for b.Loop() {
		b.StopTimer()
		for i := range 150 {
			content[names[(round*150+i)%services]] = fmt.Sprintf("%0400d", round+1000)
		}
		round++
		g.set(xds.TypeEndpoint, content)
		s.Push(&snapshot.Mesh{}, model.Change{All: true})
		set := g.sets[xds.TypeEndpoint]
		b.StartTimer()
		for _, st := range all {
			sub := st.subs[xds.TypeEndpoint]
			if err := st.send(sub, set, st.diff(sub, set)); err != nil {
				b.Fatal(err)
			}
			st.acks.answered(sub.ack, "", nil)
		}
	}
}
