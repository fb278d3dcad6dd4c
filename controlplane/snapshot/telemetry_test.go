// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"strings"
	"testing"
	"time"

	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// telemetry returns an object that is the given number of days old.
func telemetry(namespace, name string, days int, spec *telemetryv1alpha1.Telemetry) *model.Config {
	return &model.Config{
		Key:     model.Key{Kind: model.Telemetry, Namespace: namespace, Name: name},
		Created: time.Date(2026, 6, 30, 0, 0, 0, 0, time.UTC).AddDate(0, 0, -days), Spec: spec,
	}
}

func telemetryOf(labels map[string]string) *telemetryv1alpha1.Telemetry {
	return &telemetryv1alpha1.Telemetry{Selector: &typev1beta1.WorkloadSelector{MatchLabels: labels}}
}

func targeting(kind, name string) *telemetryv1alpha1.Telemetry {
	group := gatewayAPIGroup
	if kind == string(model.KubernetesService) {
		group = ""
	}
	return &telemetryv1alpha1.Telemetry{TargetRefs: []*typev1beta1.PolicyTargetReference{{Group: group, Kind: kind, Name: name}}}
}

func telemetries(objs ...*model.Config) *Telemetries {
	return newTelemetries(nil, canonical(objs), settings{root: "istio-system"})
}

func TestTelemetriesOfWorkload(t *testing.T) {
	t.Parallel()
	app := map[string]string{"app": "a"}
	all := telemetries(
		telemetry("istio-system", "mesh", 1, &telemetryv1alpha1.Telemetry{}),
		telemetry("istio-system", "selects-in-root", 9, telemetryOf(app)),
		telemetry("x", "new", 1, &telemetryv1alpha1.Telemetry{}),
		telemetry("x", "old", 2, &telemetryv1alpha1.Telemetry{}),
		telemetry("x", "newer", 1, telemetryOf(app)),
		telemetry("x", "older", 3, telemetryOf(map[string]string{"app": "a", "version": "v1"})),
		telemetry("x", "gateway", 9, targeting("Gateway", "edge")),
		telemetry("x", "service", 9, targeting("Service", "a")),
		telemetry("y", "selects", 9, telemetryOf(app)),
	)
	for _, c := range []struct{ namespace, labels, levels, hidden string }{
		{"x", "app=a", "mesh old newer", ""},
		{"x", "app=a,version=v1", "mesh old older", "newer"},
		{"x", "app=b", "mesh old", ""},
		{"x", "app=a,gateway.networking.k8s.io/gateway-name=edge", "mesh old gateway", "newer"},
		{"y", "app=a", "mesh selects", ""},
		{"z", "app=a", "mesh", ""},
		{"istio-system", "app=a", "mesh selects-in-root", ""},
		{"istio-system", "", "mesh", ""},
	} {
		labels := map[string]string{}
		for pair := range strings.SplitSeq(c.labels, ",") {
			k, v, _ := strings.Cut(pair, "=")
			labels[k] = v
		}
		names := func(list []*Telemetry) string {
			var out []string
			for _, entry := range list {
				out = append(out, entry.Config.Name)
			}
			return strings.Join(out, " ")
		}
		levels, hidden := all.For(c.namespace, labels)
		if names(levels) != c.levels || names(hidden) != c.hidden {
			t.Errorf("%s %s: got %q, hidden %q; want %q and %q", c.namespace, c.labels, names(levels), names(hidden), c.levels, c.hidden)
		}
	}
	var got []string
	for _, p := range all.problems {
		got = append(got, p.Object.Name+": "+p.Reason)
	}
	if len(got) != 2 || !strings.HasPrefix(got[0], "new: has no effect where Telemetry old applies") || !strings.Contains(got[1], "service: spec.targetRefs[0]: Service \"a\": only the waypoints") {
		t.Errorf("problems: got %q", got)
	}
}

// TestTelemetriesOfManyNamespaces looks up the objects of a workload among 10,000. It counts
// allocations, so it must not run in parallel with other tests.
func TestTelemetriesOfManyNamespaces(t *testing.T) {
	objs := []*model.Config{telemetry("istio-system", "mesh", 1, &telemetryv1alpha1.Telemetry{})}
	for i := range 10_000 {
		objs = append(objs, telemetry(fmt.Sprintf("ns-%d", i/10), fmt.Sprintf("t-%d", i), 1, telemetryOf(map[string]string{"app": fmt.Sprintf("a-%d", i)})))
	}
	all := telemetries(objs...)
	allocated := testing.AllocsPerRun(100, func() {
		if levels, _ := all.For("ns-700", map[string]string{"app": "a-7001", "version": "v1"}); len(levels) != 2 {
			t.Fatalf("%d objects, want 2", len(levels))
		}
	})
	if allocated > 30 {
		t.Errorf("%v allocations per look-up, want at most 30", allocated)
	}
}
