// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gateway

import (
	"strings"
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// TestNarrowerFirst checks the order of objects for one host: those for the namespace of the
// gateway only, then those for it among others, then those for all; within each group, the oldest
// first. Other objects are not visible.
func TestNarrowerFirst(t *testing.T) {
	t.Parallel()
	var objects []*model.Config
	for i, words := range []string{"a public *", "b public", "b other c", "b shown edge,c", "edge private .", "edge named edge", "edge shared edge,b"} {
		w := strings.Fields(words + " ")
		vs := &networkingv1alpha3.VirtualService{Hosts: []string{"web.test"}, Gateways: []string{"edge/gw"}}
		if len(w) > 2 {
			vs.ExportTo = strings.Split(w[2], ",")
		}
		objects = append(objects, &model.Config{Key: model.Key{Kind: model.VirtualService, Namespace: w[0], Name: w[1]}, Created: time.Unix(int64(i), 0), Spec: vs})
	}
	mesh := snapshot.Build(nil, snapshot.Input{List: func(kind model.Kind) []*model.Config {
		if kind == model.VirtualService {
			return objects
		}
		return nil
	}}, model.Change{All: true})
	in := &Source{Mesh: mesh, Proxy: &model.Proxy{Namespace: "edge"}}
	var got []string
	for _, vs := range in.virtualServices(&snapshot.Gateway{Name: "edge/gw"}) {
		got = append(got, vs.Config.Namespace+"/"+vs.Config.Name)
	}
	if s, want := strings.Join(got, " "), "edge/private edge/named edge/shared b/shown a/public b/public"; s != want {
		t.Errorf("the order is %s, want %s", s, want)
	}
}
