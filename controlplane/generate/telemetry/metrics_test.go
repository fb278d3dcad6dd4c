// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"math"
	"strings"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// TestMetricsOf merges the objects of the levels of a workload.
func TestMetricsOf(t *testing.T) {
	t.Parallel()
	const provider = "providers: [{name: prometheus}]"
	for _, c := range []struct {
		name, defaults string
		levels         []string
		client, server string
	}{
		{"nothing selected", "", nil, "-", "-"},
		{"by the mesh config", "prometheus", nil, "+", "+"},
		{"by an object", "", []string{provider}, "+", "+"},
		{"overrides without a provider", "", []string{"overrides: [{disabled: true}]"}, "-", "-"},
		{"another provider", "prometheus", []string{"providers: [{name: other}]"}, "-", "-"},
		{"an unknown provider", "", []string{"providers: [{name: nobody}]"}, "-", "-"},
		{"the last level names the provider", "", []string{"providers: [{name: other}]", provider}, "+", "+"},
		{"a level without providers inherits", "", []string{provider, "overrides: [{disabled: true, match: {mode: CLIENT}}]"}, "-", "+"},
		{"all off", "prometheus", []string{"overrides: [{disabled: true}]"}, "-", "-"},
		{"off and on again", "prometheus", []string{"overrides: [{disabled: true}]", "overrides: [{disabled: false}]"}, "+", "+"},
		{"naming the provider again does not switch on", "prometheus", []string{"overrides: [{disabled: true}]", provider}, "-", "-"},
		{
			"one metric and direction", "prometheus",
			[]string{"overrides: [{match: {metric: REQUEST_SIZE, mode: SERVER}, disabled: true}]"},
			"+", "+istio_request_bytestrue",
		},
		{
			"tags accumulate, the last one wins", "prometheus",
			[]string{
				"overrides: [{match: {metric: REQUEST_COUNT, mode: CLIENT}, tagOverrides: {a: {value: request.host}, b: {operation: REMOVE}}}]",
				"overrides: [{match: {metric: REQUEST_COUNT}, tagOverrides: {a: {value: request.path}}}, {match: {metric: REQUEST_COUNT, mode: SERVER}, disabled: true}]",
			},
			`+istio_requests_totalfalse"a"="request.path""b"=""`, `+istio_requests_totaltrue"a"="request.path"`,
		},
		{"a custom metric by either name", "prometheus", []string{"overrides: [{match: {customMetric: requests_total, mode: CLIENT}, disabled: true}, {match: {customMetric: istio_requests_total, mode: SERVER}, disabled: true}]"}, "+istio_requests_totaltrue", "+istio_requests_totaltrue"},
		{"an unknown custom metric", "prometheus", []string{"overrides: [{match: {customMetric: mine}, disabled: true}]"}, "+", "+"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			settings := "extensionProviders: [{name: other, stackdriver: {}}]\n"
			if c.defaults != "" {
				settings += "defaultProviders: {metrics: [" + c.defaults + "]}\n"
			}
			mesh, err := meshconfig.Parse([]byte(settings))
			if err != nil {
				t.Fatal(err)
			}
			client, server := metricsOf(mesh, levelsOf(t, c.levels), bounded)
			if client.key() != c.client || server.key() != c.server {
				t.Errorf("%s and %s, want %s and %s", client.key(), server.key(), c.client, c.server)
			}
		})
	}
}

// levelsOf returns objects with one element of spec.metrics each.
func levelsOf(t *testing.T, metrics []string) []*snapshot.Telemetry {
	t.Helper()
	var out []*snapshot.Telemetry
	for i, text := range metrics {
		m := &telemetryv1alpha1.Metrics{}
		j, err := yaml.YAMLToJSON([]byte("{" + text + "}"))
		if err == nil {
			err = m.UnmarshalJSON(j)
		}
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		spec := &telemetryv1alpha1.Telemetry{Metrics: []*telemetryv1alpha1.Metrics{m}}
		out = append(out, &snapshot.Telemetry{Spec: spec, Config: &model.Config{Key: model.Key{Kind: model.Telemetry, Name: string(rune('a' + i))}}})
	}
	return out
}

// TestOfOldEnvoys says what each version of Envoy gets.
func TestOfOldEnvoys(t *testing.T) {
	t.Parallel()
	config := &meshv1alpha1.MeshConfig{
		DefaultProviders: &meshv1alpha1.MeshConfig_DefaultProviders{Metrics: []string{"prometheus"}}, ExtensionProviders: meshconfig.Default().GetExtensionProviders(),
	}
	object := &model.Config{Key: model.Key{Kind: model.Telemetry, Namespace: "istio-system", Name: "x"}, Spec: levelsOf(t, []string{"providers: [{name: prometheus}]"})[0].Spec}
	mesh := snapshot.Build(nil, snapshot.Input{Mesh: config, List: func(kind model.Kind) []*model.Config {
		if kind == model.Telemetry {
			return []*model.Config{object}
		}
		return nil
	}}, model.Change{All: true})
	keys := map[string]bool{}
	for version, counts := range map[string]bool{"1.36.2": false, "1.37.0": true, "1.39.3": true, "": true} {
		e := Of(mesh, &model.Proxy{Envoy: version, Namespace: "default"}, nil)
		log := e.Observe(Chain{Server: &Server{MutualTLS: true}}).RequestLog
		if (len(log) > 0) != counts || (len(e.Problems) > 0) == counts {
			t.Errorf("Envoy %q: %d loggers, problems %v", version, len(log), e.Problems)
		}
		keys[e.Key] = true
	}
	if len(keys) != 3 { // an unknown version is a new one
		t.Errorf("%d keys: %v", len(keys), keys)
	}
}

// TestUnlimitedTags leaves out tags whose values clients choose if Envoy cannot limit their number.
func TestUnlimitedTags(t *testing.T) {
	t.Parallel()
	levels := levelsOf(t, []string{"providers: [{name: prometheus}], overrides: [{tagOverrides: {path: {value: request.path}, code: {value: string(response.code)}, gone: {operation: REMOVE}}}]"})
	mesh := meshconfig.Default()
	for envoy, want := range map[support]int{unbounded: 2, bounded: 3} {
		client, _ := metricsOf(mesh, levels, envoy)
		if got := client.overrides[requests].tags; len(got) != want {
			t.Errorf("an Envoy that supports %d changes the tags %q, want %d", envoy, got, want)
		}
	}
	problems := unlimited(levels[0])
	if len(problems) != 1 || !strings.HasPrefix(problems[0].Reason, `spec.metrics[0].overrides[0].tagOverrides[path].value is "request.path": proxies with an Envoy before 1.39`) {
		t.Errorf("problems %v, want one of the tag path", problems)
	}
}

// TestClashingTags leaves out tags with the labels of others, and with those that Prometheus reserves.
func TestClashingTags(t *testing.T) {
	t.Parallel()
	levels := levelsOf(t, []string{
		"providers: [{name: prometheus}], overrides: [{tagOverrides: {a_b: {value: request.method}, le: {value: request.method}, response_code: {value: '1'}}}]",
		"overrides: [{tagOverrides: {a.b: {value: request.path}, a-b: {operation: REMOVE}, response.code: {value: request.path}, 1x: {value: '1'}, __name__: {value: '1'}}}]",
	})
	var e Effective
	e.client, e.server = metricsOf(meshconfig.Default(), levels, bounded)
	labels := map[string]int{}
	for _, tag := range change(tagsOf(Chain{}, false), e.client.overrides[requests].tags) {
		labels[label(tag.name)]++
	}
	if labels["a_b"] != 1 || labels["response_code"] != 1 || labels["le"]+labels["1x"]+labels["__name__"] > 0 {
		t.Errorf("labels %v", labels)
	}
	for i, want := range [][]string{
		{"[a_b] has no effect, because its label a_b is that of the tag a.b", "[le] has no effect, because Prometheus reserves its label le"},
		{"[1x] has no effect, because Prometheus reserves", "[__name__] has no effect, because Prometheus reserves", "[response.code] has no effect, because its label response_code is that of the tag response_code"},
	} {
		problems := e.clashes(levels[i])
		if len(problems) != len(want) {
			t.Errorf("problems %v, want %q", problems, want)
			continue
		}
		for j, p := range problems {
			if !strings.Contains(p.Reason, want[j]) || p.Object != levels[i].Config.Key {
				t.Errorf("problem %v, want %q", p, want[j])
			}
		}
	}
}

// TestTooNew says what older Envoys cannot do about spans, at the object that asks for it.
func TestTooNew(t *testing.T) {
	t.Parallel()
	spec := &telemetryv1alpha1.Telemetry{}
	if err := spec.UnmarshalJSON([]byte(`{"tracing": [{"disableContextPropagation": true, "customTags": {"code": {"formatter": {"value": "%RESPONSE_CODE%"}}}}]}`)); err != nil {
		t.Fatal(err)
	}
	object := &model.Config{Key: model.Key{Kind: model.Telemetry, Namespace: "istio-system", Name: "x"}, Spec: spec}
	mesh := snapshot.Build(nil, snapshot.Input{Mesh: &meshv1alpha1.MeshConfig{}, List: func(kind model.Kind) []*model.Config {
		if kind == model.Telemetry {
			return []*model.Config{object}
		}
		return nil
	}}, model.Change{All: true})
	const propagation = "spec.tracing[0].disableContextPropagation: proxies with an Envoy before 1.38"
	for version, want := range map[string][]string{
		"1.36.2": {propagation, "spec.tracing[0].customTags[code].formatter: proxies with an Envoy before 1.37"},
		"1.37.0": {propagation}, "1.38.3": nil, "": nil,
	} {
		e := Of(mesh, &model.Proxy{Envoy: version, Namespace: "default"}, nil)
		if len(e.Problems) != len(want) {
			t.Errorf("Envoy %q: problems %v, want %q", version, e.Problems, want)
			continue
		}
		for i, p := range e.Problems {
			if !strings.HasPrefix(p.Reason, want[i]) || p.Object != object.Key || !p.Warning {
				t.Errorf("Envoy %q: problem %v, want %q", version, p, want[i])
			}
		}
	}
}

// TestSampling bounds the percentage of a ProxyConfig, which nothing has checked.
func TestSampling(t *testing.T) {
	t.Parallel()
	for own, want := range map[float64]float64{0: 1, -5: 1, 0.5: 0.5, 100: 100, 1e300: 100, math.NaN(): 1} {
		got := tracingOf(&meshv1alpha1.MeshConfig{EnableTracing: true}, &meshv1alpha1.Tracing{Sampling: own}, nil, false)
		if !got.on || got.sampling != want {
			t.Errorf("sampling %v: %v, %v, want %v", own, got.on, got.sampling, want)
		}
	}
}
