// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestLastValidVersion edits an EnvoyFilter and checks which version of its patch is in force.
func TestLastValidVersion(t *testing.T) {
	t.Parallel()
	const merges = "- {applyTo: CLUSTER, patch: {operation: MERGE, value: {"
	const added = "- {applyTo: CLUSTER, patch: {operation: MERGE, value: {lb_policy: RANDOM}}}\n"
	var last *Filter
	for _, step := range []struct{ name, patches, inForce, problem string }{
		{"valid", merges + "alt_stat_name: one}}}\n", "one", ""},
		{"refused", merges + "alt_stat_name: two, connect_timeout: 0s}}}\n", "one", "its last valid version stays in force: "},
		{"refused again", merges + "alt_stat_name: three, connect_timeout: 0s}}}\n", "one", "its last valid version stays in force: "},
		{"no cluster", merges + "alt_stat_name: 4}}}\n", "one", "its last valid version stays in force"},
		{"no cluster again", merges + "alt_stat_name: 5}}}\n", "one", "its last valid version stays in force"},
		{"valid again", merges + "alt_stat_name: six}}}\n", "six", ""},
		{"other patches", merges + "alt_stat_name: seven, connect_timeout: 0s}}}\n" + added, "six", "its last valid version stays in force: "},
		{"gone", "- {applyTo: CLUSTER, match: {cluster: {name: other}}, patch: {operation: MERGE, value: {alt_stat_name: eight, connect_timeout: 0s}}}\n", "", ""},
		{"back", merges + "alt_stat_name: nine, connect_timeout: 0s}}}\n", "", "it is not applied: "},
	} {
		spec := message(t, &networkingv1alpha3.EnvoyFilter{}, "configPatches:\n"+step.patches)
		key := model.Key{Kind: model.EnvoyFilter, Namespace: "default", Name: "f"}
		f, problems := Parse(&model.Config{Key: key, Spec: spec}, spec, Limits{}, last)
		patches := Of([]*Filter{f}, "istio-system", &model.Proxy{})
		if last != nil && last.version == f.version {
			t.Errorf("%s: the version did not change", step.name)
		}
		c := &clusterv3.Cluster{Name: "outbound|80||x", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}}
		out := patches.Cluster(c, Place{Context: networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND})
		problems = append(problems, out.Problems...)
		if got := out.Message.GetAltStatName(); got != step.inForce {
			t.Errorf("%s: in force: got %q, want %q", step.name, got, step.inForce)
		}
		if len(problems) > 1 || (len(problems) == 1) != (step.problem != "") || step.problem != "" && !strings.Contains(problems[0].Reason, step.problem) {
			t.Errorf("%s: problems: got %v, want %q", step.name, problems, step.problem)
		}
		last = f
	}
}

// TestLastValidOfSeveral applies a patch whose earlier versions were never applied, as after a start:
// the newest valid one is in force.
func TestLastValidOfSeveral(t *testing.T) {
	t.Parallel()
	var last *Filter
	for _, value := range []string{"alt_stat_name: one", "alt_stat_name: two", "alt_stat_name: three, connect_timeout: 0s", "alt_stat_name: four, connect_timeout: 0s", "alt_stat_name: four, connect_timeout: 0s"} {
		spec := message(t, &networkingv1alpha3.EnvoyFilter{}, "configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {"+value+"}}}]")
		key := model.Key{Kind: model.EnvoyFilter, Namespace: "default", Name: "f"}
		last, _ = Parse(&model.Config{Key: key, Spec: spec}, spec, Limits{}, last)
	}
	c := &clusterv3.Cluster{Name: "outbound|80||x", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}}
	out := Of([]*Filter{last}, "istio-system", &model.Proxy{}).Cluster(c, Place{Context: networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND})
	if out.Message.GetAltStatName() != "two" || len(out.Problems) != 1 || !strings.Contains(out.Problems[0].Reason, "its last valid version stays in force: ") {
		t.Errorf("in force: got %q, problems %v", out.Message.GetAltStatName(), out.Problems)
	}
}
