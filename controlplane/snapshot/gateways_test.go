// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// A VirtualService that names a Gateway which does not exist says so, until it
// does.
func TestMissingGateways(t *testing.T) {
	t.Parallel()
	key := model.Key{Kind: model.VirtualService, Namespace: "shop", Name: "edge"}
	objects := map[model.Kind][]*model.Config{model.VirtualService: {{Key: key, Spec: &networkingv1alpha3.VirtualService{
		Hosts: []string{"edge.test"}, Gateways: []string{"mesh", "a", "./b", "edge/c", "d.edge.svc.cluster.local"},
	}}}}
	in := Input{List: func(kind model.Kind) []*model.Config { return objects[kind] }}
	missing := func(m *Mesh) (names string) {
		for _, p := range m.Problems {
			if _, name, ok := strings.Cut(p.Reason, "there is no Gateway "); ok && p.Object == key && p.Dangling {
				name, _, _ = strings.Cut(name, ",")
				names += name + " "
			}
		}
		return names
	}
	first := Build(nil, in, model.Change{All: true})
	if got := missing(first); got != "shop/a shop/b edge/c edge/d " {
		t.Errorf("missing are %q", got)
	}
	of := func(namespace, name string) *model.Config {
		return &model.Config{Key: model.Key{Kind: model.Gateway, Namespace: namespace, Name: name}, Spec: &networkingv1alpha3.Gateway{}}
	}
	objects[model.Gateway] = []*model.Config{of("shop", "a"), of("edge", "c"), of("edge", "d")}
	second := Build(first, in, model.NewChange(objects[model.Gateway][0].Key))
	if got := missing(second); got != "shop/b " {
		t.Errorf("missing are %q, want shop/b", got)
	}
	third := Build(second, in, model.NewChange(model.Key{Kind: model.Sidecar, Name: "x"}))
	if got := missing(third); got != "shop/b " {
		t.Errorf("after another change missing are %q, want shop/b", got)
	}
	if InForce(model.Gateway) || !InForce(model.VirtualService) {
		t.Error("kinds in force are not those that snapshots are made of")
	}
}
