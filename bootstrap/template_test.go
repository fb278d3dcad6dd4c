// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// templateCase is a golden case with its template.
func templateCase(t *testing.T, file string) (Input, Template) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var named struct{ Template string }
	if err := json.Unmarshal(data, &named); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("testdata/templates", named.Template))
	if err != nil {
		t.Fatal(err)
	}
	return readInput(t, file), Template{Path: "/etc/" + named.Template, Text: text}
}

func TestTemplateGolden(t *testing.T) {
	t.Parallel()
	envoy := findEnvoy()
	files, err := filepath.Glob("testdata/templates/*/in.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden cases: %v", err)
	}
	given, used := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		in, tmpl := templateCase(t, file)
		params, err := templateParams(in, tmpl.Text)
		if err != nil {
			t.Fatal(file, err)
		}
		for name := range params {
			given[name] = true
			if regexp.MustCompile(`[ $]?\.` + name + `\b`).Match(tmpl.Text) {
				used[name] = true
			}
		}
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			t.Parallel()
			got, warnings, err := RenderTemplate(in, tmpl)
			if err != nil || len(warnings) > 0 {
				t.Fatal(err, warnings)
			}
			want := filepath.Join(filepath.Dir(file), "want"+filepath.Ext(tmpl.Output()))
			if *update {
				if err := os.WriteFile(want, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(golden), string(got)); diff != "" {
				t.Errorf("differs from %s, run with -update if that is intended:\n%s", want, diff)
			}
			if again, _, err := RenderTemplate(in, tmpl); err != nil || !bytes.Equal(got, again) {
				t.Error("a second run returned other bytes", err)
			}
			t.Run("envoy", func(t *testing.T) {
				if envoy == "" {
					t.Skip("no Envoy found: run `make envoy` or set ENVOY")
				}
				validate(t, envoy, want)
			})
		})
	}
	// The parameters defined by Istio 1.18, and those of later versions that templates need.
	all := strings.Fields(`nodeID nodeType cluster region zone sub_zone meta_json_str metadata config runtime_flags xds_type metadata_discovery
		pilot_SAN discovery_host discovery_address pilot_grpc_address xds_root_cert localhost wildcard dns_lookup_family outlier_log_path
		envoy_status_port envoy_prometheus_port workload_identity_socket_file statsd zipkin lightstep lightstepToken datadog openCensusAgent openCensusAgentContexts
		stackdriver stackdriverProjectID stackdriverDebug stackdriverMaxAnnotations stackdriverMaxAttributes stackdriverMaxEvents
		tracing_tls envoy_metrics_service_address envoy_metrics_service_tls envoy_metrics_service_tcp_keepalive
		envoy_accesslog_service_address envoy_accesslog_service_tls envoy_accesslog_service_tcp_keepalive
		extraStatTags inclusionPrefix inclusionSuffix inclusionRegexps sts sts_port gcp_project_id gcp_project_number
		load_stats_config_json_str histogram_buckets stats_flush_interval stats_eviction_interval global_downstream_max_connections`)
	slices.Sort(all)
	if diff := cmp.Diff(all, slices.Sorted(maps.Keys(given))); diff != "" {
		t.Errorf("parameters:\n%s", diff)
	}
	if diff := cmp.Diff(all, slices.Sorted(maps.Keys(used))); diff != "" {
		t.Errorf("parameters in the templates:\n%s", diff)
	}
}

// TestTemplateRoundTrip checks that a template can generate the same bootstrap as Render.
func TestTemplateRoundTrip(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"usual", "usual-ipv6"} {
		in, tmpl := templateCase(t, filepath.Join("testdata/templates", name, "in.json"))
		made, _, err := RenderTemplate(in, tmpl)
		if err != nil {
			t.Fatal(err)
		}
		usual, err := Render(in)
		if err != nil {
			t.Fatal(err)
		}
		var got, want map[string]any
		for doc, value := range map[string]*map[string]any{string(made): &got, string(usual): &want} {
			if err := json.Unmarshal([]byte(doc), value); err != nil {
				t.Fatal(err)
			}
		}
		for _, part := range []string{"node", "admin", "dynamic_resources", "static_resources", "overload_manager", "layered_runtime"} {
			if diff := cmp.Diff(want[part], got[part]); diff != "" {
				t.Errorf("%s %s:\n%s", name, part, diff)
			}
		}
	}
}

func TestTemplateErrors(t *testing.T) {
	t.Parallel()
	render := func(path, config, text string) ([]string, error) {
		_, warnings, err := RenderTemplate(Input{
			Node: node.ID{Role: "sidecar"}, ProxyConfig: proxyConfig(t, config), Metadata: &node.Metadata{},
		}, Template{Path: path, Text: []byte(text)})
		return warnings, err
	}
	for _, tc := range []struct{ path, config, text, want string }{
		{"/t.json", "", "{\n\"a\": 1,\n}", `template /t.json renders JSON that cannot be read: line 3 of the output, "}": invalid character '}'`},
		{"/t.json", "", "{\"a\": {{ .zone }}}", `line 1 of the output, "{\"a\": <no value>}": invalid character '<'`},
		{"/t.json", "", "{}\n{}", "line 2 of the output"},
		{"/t.json", "", "{\"a\": [", `"{\"a\": [": unexpected end of JSON input; check commas`},
		{"/t.json", "", "[1]", "does not render a JSON object"},
		{"/t.json", "", " ", "line 1 of the output"},
		{"/t.json", "", "{}", "does not render a JSON object"},
		{"/t.yaml", "", "", "does not render a YAML mapping"},
		{"/t.yaml", "", "a: 1\n b: 2", "template /t.yaml renders YAML that cannot be read: yaml:"},
		{"/t.yaml", "", "a: &a " + strings.Repeat("x", 50_000) + "\nb: [" + strings.Repeat("*a, ", 1000) + "]", "renders YAML that cannot be read: line 2: the aliases"},
		{"/t.json", "", "{\n{{ .config.GetStatusPort }}", "template /t.json line 2 at <.config.GetStatusPort>: can't evaluate field GetStatusPort"},
		{"/t.json", "", "{{ .config.DrainDuration.AsDuration }}", "can't evaluate field AsDuration in type *durationpb.Duration: it is not a field"},
		{"/t.json", "", "{{ .config.EnvoyMetricsService.Address }}", "nil pointer evaluating *v1alpha1.RemoteService.Address: it is not set"},
		{"/t.json", "statsdUdpAddress: x", "{}", `ProxyConfig statsdUdpAddress is "x"`},
		{"/t.json", "tracing: {stackdriver: {}}", "{}", "the platform metadata has no gcp_project"},
		{"/t.json", "tracing: {zipkin: {address: 'x:1'}, tlsSettings: {mode: MUTUAL}}", "{}", "tracing.tlsSettings.clientCertificate"},
		{"/t.json", "envoyMetricsService: {address: 'x:1', tcpKeepalive: {time: 0.5s}}", "{}", "tcpKeepalive.time is 500ms"},
	} {
		if _, err := render(tc.path, tc.config, tc.text); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s %.100q: error %v, want one with %q", tc.config, tc.text, err, tc.want)
		}
	}
	for text, want := range map[string]string{
		`{"a": 1}`:                          "",
		"{\n\"a\": \"{{ .typo }}\"}":        "template /t.json: line 2 of its output has <no value>",
		`{"a": "envoy.tracers.opencensus"}`: "Envoy 1.39 refuses the OpenCensus tracer",
		`{"@type": "type.googleapis.com/envoy.api.v2.auth.Context"}`: "a type of version 2 of its API",
	} {
		warnings, err := render("/t.json", "", text)
		if err != nil || (want == "") != (len(warnings) == 0) || want != "" && !strings.Contains(warnings[0], want) {
			t.Errorf("%s: %q, %v, want %q", text, warnings, err, want)
		}
	}
	if _, _, err := RenderTemplate(Input{}, Template{}); err == nil {
		t.Error("an empty input was taken")
	}
	if _, err := render("/t.json", "", `{"a": {{ toJSON .openCensusAgentContexts }}}`); err != nil {
		t.Error(err)
	}
}

// TestTemplateRemoved checks that stock Envoy does not start with the settings of other Envoy builds,
// so that the warning is correct. Up to 1.37, validation skips bootstrap extensions.
func TestTemplateRemoved(t *testing.T) {
	t.Parallel()
	envoy := findEnvoy()
	if envoy == "" {
		t.Skip("no Envoy found: run `make envoy` or set ENVOY")
	}
	for _, doc := range []string{
		`{"tracing":{"http":{"name":"envoy.tracers.opencensus","typed_config":{"@type":"type.googleapis.com/envoy.config.trace.v3.OpenCensusConfig"}}}}`,
		`{"tracing":{"http":{"name":"envoy.tracers.lightstep","typed_config":{"@type":"type.googleapis.com/envoy.config.trace.v3.LightstepConfig","collector_cluster":"x","access_token_file":"/dev/null"}}}}`,
		`{"bootstrap_extensions":[{"name":"x","typed_config":{"@type":"type.googleapis.com/udpa.type.v1.TypedStruct","type_url":"type.googleapis.com/istio.workload.BootstrapExtension","value":{}}}]}`,
		`{"stats_sinks":[{"name":"x","typed_config":{"@type":"type.googleapis.com/envoy.config.metrics.v2.MetricsServiceConfig"}}]}`,
	} {
		if len((Template{}).doubts([]byte(doc))) != 1 {
			t.Errorf("not exactly one sentence about %s", doc)
		}
		file := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		err := exec.CommandContext(ctx, envoy, "-c", file, "-l", "off", "--use-dynamic-base-id").Run()
		if err == nil || ctx.Err() != nil {
			t.Errorf("envoy starts with %s", doc)
		}
		cancel()
	}
}

func TestTemplateOutput(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/a.json": "envoy-rev.json", "/a.yaml": "envoy-rev.yaml", "/a.yaml.tmpl": "envoy-rev.yaml", "/a.json.tmpl": "envoy-rev.json", "a.yml": "envoy-rev.json", "": "envoy-rev.json",
	} {
		if got := (Template{Path: path}).Output(); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// FuzzTemplate checks that any template results in a document that can be parsed, or in an error.
func FuzzTemplate(f *testing.F) {
	// Use short seeds: with whole templates, the engine would minimize for minutes.
	f.Add([]byte(`{"id": "{{ .nodeID }}", "m": {{ .meta_json_str }}, "r": {{ .runtime_flags }}}`), false)
	f.Add([]byte(`{"p": {{ .config.ProxyAdminPort }}{{ range .inclusionSuffix }}, "{{ . }}": {{ toJSON . }}{{ end }}}`), false)
	f.Add([]byte("a: {{ .metadata.Namespace | quote }}\nb:\n{{ indent 2 .localhost }}"), true)
	f.Fuzz(func(t *testing.T, text []byte, yaml bool) {
		tmpl := Template{Path: "/t.json", Text: text}
		if yaml {
			tmpl.Path = "/t.yaml"
		}
		doc, _, err := RenderTemplate(Input{ProxyConfig: meshconfig.DefaultProxyConfig(), Metadata: &node.Metadata{Namespace: "ns"}}, tmpl)
		if err == nil && !yaml && !json.Valid(doc) {
			t.Errorf("no JSON: %q", doc)
		}
	})
}

// TestTemplateOfWaypoint checks that a waypoint always uses delta, also with a template.
func TestTemplateOfWaypoint(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]string{node.Sidecar: "GRPC", node.Waypoint: "DELTA_GRPC"} {
		in := readInput(t, "testdata/waypoint/in.json")
		in.StateOfTheWorld, in.Node.Role = true, role
		doc, _, err := RenderTemplate(in, Template{Path: "x.json", Text: []byte(`{"xds": "{{ .xds_type }}"}`)})
		if err != nil || string(doc) != `{"xds": "`+want+`"}` {
			t.Errorf("%s: %s, %v", role, doc, err)
		}
	}
}
