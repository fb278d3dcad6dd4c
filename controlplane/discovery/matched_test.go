// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"testing"

	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestMatched checks where patches are said to have an effect: by version of the agents, with the
// resources, and none for what no proxy has.
func TestMatched(t *testing.T) {
	t.Parallel()
	h := &harness{}
	h.serve(t, Config{Generator: generate.New(generate.Config{}), Workers: 2}, nil, insecure.NewCredentials(), insecure.NewCredentials())
	value, err := structpb.NewStruct(map[string]any{"alt_stat_name": "x"})
	if err != nil {
		t.Fatal(err)
	}
	merge := func(cluster string) *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch {
		return &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{
			ApplyTo: networkingv1alpha3.EnvoyFilter_CLUSTER,
			Match: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch{ObjectTypes: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_Cluster{
				Cluster: &networkingv1alpha3.EnvoyFilter_ClusterMatch{Name: cluster},
			}},
			Patch: &networkingv1alpha3.EnvoyFilter_Patch{Operation: networkingv1alpha3.EnvoyFilter_Patch_MERGE, Value: value},
		}
	}
	key := model.Key{Kind: model.EnvoyFilter, Namespace: "default", Name: "f"}
	mesh := snapshotOf(nil, nil, debugtest.External("a", "240.0.0.1"), &model.Config{Key: key, Spec: &networkingv1alpha3.EnvoyFilter{
		ConfigPatches: []*networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{merge("PassthroughCluster"), merge("nothing")},
	}})
	h.server.Push(mesh, model.Change{All: true})
	if got := h.server.Matched(); len(got) != 0 {
		t.Errorf("without proxies: %v", got)
	}
	for _, version := range []string{"1.18.2", "1.30.0", "1.30.0"} {
		p := h.connect(t, true)
		p.node = shopNode(t, map[string]any{"ISTIO_VERSION": version, "INTERCEPTION_MODE": "REDIRECT"})
		p.describer = agentWord
		p.subscribe(xds.TypeCluster)
		p.ack(p.any())
	}
	want := Matched{
		Selected: 3, Idle: 1,
		Text: "spec.configPatches[0] (CLUSTER MERGE): 3 of 3 proxies (1.30.0: 2, 1.18.2: 1), such as PassthroughCluster; spec.configPatches[1] (CLUSTER MERGE): none of 3 proxies",
	}
	if got := h.server.Matched()[key]; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
