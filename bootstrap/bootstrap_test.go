// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

func proxyConfig(t *testing.T, doc string) *meshv1alpha1.ProxyConfig {
	t.Helper()
	pc, err := meshconfig.ApplyProxyConfig(meshconfig.DefaultProxyConfig(), doc)
	if err != nil {
		t.Fatal(err)
	}
	return pc
}

func TestNodeMetadataErrors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		variables     map[string]string
		proxyMetadata string
		want          string
	}{
		"boolean":            {map[string]string{"ISTIO_META_DNS_CAPTURE": "yes"}, "", "node metadata DNS_CAPTURE: \"yes\" is not a boolean"},
		"ports":              {map[string]string{"ISTIO_META_POD_PORTS": "["}, "", "node metadata POD_PORTS"},
		"from proxyMetadata": {nil, "proxyMetadata: {ISTIO_META_ENABLE_HBONE: maybe}", "node metadata ENABLE_HBONE"},
		"from JSON":          {map[string]string{"ISTIO_METAJSON_X": `{"NAME":{}}`}, "", "node metadata NAME"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := NodeMetadata(MetadataInput{Variables: tc.variables, ProxyConfig: proxyConfig(t, tc.proxyMetadata)})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestNodeMetadataSources(t *testing.T) {
	t.Parallel()
	got, warnings, err := NodeMetadata(MetadataInput{
		Variables: map[string]string{
			"ISTIO_META_NAME": "loses", "ISTIO_META_X": "plain wins", "ISTIO_METAJSON_A": `{"X":"json","Y":"json"}`,
			"ISTIO_METAJSON_BAD": "{", "ISTIO_META_": "no key", "OTHER": "not metadata",
		},
		Own:         node.Metadata{Name: "own wins"},
		ProxyConfig: proxyConfig(t, "proxyMetadata: {ISTIO_META_Y: from config, ISTIO_META_X: loses}\ndiscoveryAddress: localhost:15012"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ISTIO_METAJSON_BAD is ignored: its value is not a JSON object"}, warnings); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]any{"X": "plain wins", "Y": "from config"}, got.Raw); diff != "" {
		t.Error(diff)
	}
	if got.Name != "own wins" {
		t.Errorf("NAME is %q", got.Name)
	}
	if diff := cmp.Diff([]string{"istiod.istio-system.svc"}, got.PilotSAN); diff != "" {
		t.Error(diff)
	}
}

func TestServiceCluster(t *testing.T) {
	t.Parallel()
	labelled := &node.Metadata{Namespace: "ns", Labels: map[string]string{"app": "shop", "app.kubernetes.io/name": "canon"}, WorkloadName: "w"}
	for name, tc := range map[string]struct {
		config string
		m      *node.Metadata
		want   string
	}{
		"configured":           {"serviceCluster: mine", labelled, "mine"},
		"default, app label":   {"", labelled, "shop.ns"},
		"empty, workload name": {"serviceCluster: ''", &node.Metadata{Namespace: "ns", WorkloadName: "w"}, "w.ns"},
		"nothing known":        {"", &node.Metadata{}, "istio-proxy"},
		"only a namespace":     {"", &node.Metadata{Namespace: "ns"}, "istio-proxy.ns"},
		"app and namespace":    {"tracingServiceName: APP_LABEL_AND_NAMESPACE", labelled, "shop.ns"},
		"canonical":            {"tracingServiceName: CANONICAL_NAME_ONLY", labelled, "canon"},
		"canonical, unknown":   {"tracingServiceName: CANONICAL_NAME_ONLY", &node.Metadata{Namespace: "ns"}, "istio-proxy.ns"},
		"canonical in ns":      {"tracingServiceName: CANONICAL_NAME_AND_NAMESPACE", labelled, "canon.ns"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := serviceCluster(proxyConfig(t, tc.config), tc.m); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]string{
		"customConfigFile: /x.json":                                                              `customConfigFile is "/x.json": nothing is rendered`,
		"tracing: {stackdriver: {}}":                                                             "Envoy has no Stackdriver tracer any more; send spans to an OpenTelemetry collector",
		"tracing: {lightstep: {accessToken: secret}}":                                            "tracing.lightstep.accessToken is set: Envoy has no Lightstep tracer",
		"tracing: {zipkin: {address: x}}":                                                        `ProxyConfig tracing.zipkin.address is "x": it must be host:port`,
		"tracing: {datadog: {address: 'x:0'}}":                                                   `tracing.datadog.address is "x:0": the port "0"`,
		"tracing: {datadog: {address: '$(HOST_IP):1'}}":                                          `environment variable HOST_IP is ""`,
		"tracing: {openCensusAgent: {address: 'unix:/x'}}":                                       `openCensusAgent.address is "unix:/x"; it must be host:port or dns://server/host:port`,
		"tracing: {openCensusAgent: {address: 'dns://x:1'}}":                                     `openCensusAgent.address is "dns://x:1"; it must be host:port or dns://`,
		"tracing: {openCensusAgent: {address: 'dns:///x'}}":                                      `openCensusAgent.address is "x": it must be host:port`,
		"tracing: {zipkin: {address: 'x:1'}, tlsSettings: {mode: MUTUAL}}":                       `tracing.tlsSettings.clientCertificate is "", mode MUTUAL`,
		"tracing: {zipkin: {address: 'x:1'}, tlsSettings: {mode: MUTUAL, clientCertificate: x}}": "tracing.tlsSettings.privateKey",
		"tracing: {zipkin: {address: 'x:1'}, tlsSettings: {mode: SIMPLE}}":                       "name a file of root certificates",
		"envoyMetricsService: {address: 'x:1', tlsSettings: {mode: SIMPLE, credentialName: c}}":  `envoyMetricsService.tlsSettings.credentialName is "c"`,
		"envoyMetricsService: {address: 'x:1', tcpKeepalive: {time: 0.5s}}":                      "envoyMetricsService.tcpKeepalive.time is 500ms",
		"envoyAccessLogService: {address: x}":                                                    `envoyAccessLogService.address is "x"`,
		"statsdUdpAddress: 'statsd:1'":                                                           `statsdUdpAddress is "statsd:1", its host must have been resolved`,
		"runtimeValues: {" + maxConnectionsKey + ": many}":                                       "runtimeValues " + maxConnectionsKey + ` is "many"`,
	} {
		t.Run(config, func(t *testing.T) {
			t.Parallel()
			_, err := Render(Input{ProxyConfig: proxyConfig(t, config), Metadata: &node.Metadata{}, TracingSet: true})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		})
	}
	if _, err := Render(Input{ProxyConfig: proxyConfig(t, ""), Metadata: &node.Metadata{}, BindAddress: "localhost"}); err == nil {
		t.Error("a bind address that is a name was taken")
	}
	if _, err := Render(Input{}); err == nil {
		t.Error("an empty input was taken")
	}
}

// TestOpenCensusAddress checks that all forms of a gRPC target name lead to the same address.
func TestOpenCensusAddress(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"collector:4317": "collector:4317", "dns:collector:4317": "collector:4317", "dns:///collector:4317": "collector:4317",
		"dns://10.0.0.10/collector:4317": "collector:4317", "dns://[fd00::1]:53/collector:4317": "collector:4317",
		"ipv4:10.0.0.9:4317": "10.0.0.9:4317", "ipv6:[fd00::9]:4317": "[fd00::9]:4317",
	} {
		if got, err := grpcTarget(target); err != nil || got != want {
			t.Errorf("%s: %q, %v", target, got, err)
		}
	}
}

func TestReplaced(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]int{
		"": 0, "tracing: {zipkin: {address: 'a:1'}}": 0, "tracing: {lightstep: {address: 'a:1'}}": 1, "tracing: {openCensusAgent: {address: 'a:1'}}": 1,
	} {
		got := Replaced(proxyConfig(t, config))
		if len(got) != want || (want == 1 && !strings.Contains(got[0], "spans go to a:1 as OTLP")) {
			t.Errorf("%s: %q", config, got)
		}
	}
}

// TestDefaultTracing checks that the default tracing setting does not create a tracer, but that the
// same value set by a user does.
func TestDefaultTracing(t *testing.T) {
	t.Parallel()
	for _, set := range []bool{false, true} {
		got, err := Render(Input{ProxyConfig: proxyConfig(t, ""), Metadata: &node.Metadata{}, TracingSet: set})
		if err != nil || strings.Contains(string(got), "envoy.tracers.zipkin") != set {
			t.Errorf("set %v: %v\n%s", set, err, got)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	got := Files(proxyConfig(t, "tracing: {zipkin: {}, tlsSettings: {mode: MUTUAL, caCertificates: ca, clientCertificate: c, privateKey: k}}\n"+
		"envoyMetricsService: {tlsSettings: {mode: SIMPLE}}\nenvoyAccessLogService: {tlsSettings: {mode: ISTIO_MUTUAL, caCertificates: unused}}"), &node.Metadata{TLSClientKey: "own"})
	const prefix = "ProxyConfig tracing.tlsSettings."
	if diff := cmp.Diff([]File{{prefix + "caCertificates", "ca"}, {prefix + "clientCertificate", "c"}, {"node metadata TLS_CLIENT_KEY (ISTIO_META_TLS_CLIENT_KEY)", "own"}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestLocalAddress(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		bind string
		ips  []string
		dual bool
		want string
	}{
		{"127.1.0.2", []string{"::1"}, true, "127.1.0.2"},
		{"", nil, true, "127.0.0.1"},
		{"", []string{"fd00::1"}, false, "::1"},
		{"", []string{"fd00::1", "10.0.0.1"}, false, "127.0.0.1"},
		{"", []string{"fd00::1", "10.0.0.1"}, true, "::1"},
		{"", []string{"10.0.0.1", "fd00::1"}, true, "127.0.0.1"},
	} {
		if got := LocalAddress(tc.bind, tc.ips, tc.dual); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}

func TestParsePodInfo(t *testing.T) {
	t.Parallel()
	got, err := ParsePodInfo("app=\"shop\"\n\nistio.io/rev=\"a=b\\n\\\"c\\\"\"\nempty=\"\"\n")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"app": "shop", "istio.io/rev": "a=b\n\"c\"", "empty": ""}, got); diff != "" {
		t.Error(diff)
	}
	for in, want := range map[string]string{"app": "line 1", "a=\"b\"\nc=d": "line 2: the value of c must be in double quotes", "=\"x\"": "line 1"} {
		if _, err := ParsePodInfo(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", in, err, want)
		}
	}
}

func TestOnlyIPv6(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		ips  []string
		want bool
	}{{nil, false}, {[]string{"::1"}, true}, {[]string{"::1", "1.1.1.1"}, false}, {[]string{"x"}, false}} {
		if got := OnlyIPv6(tc.ips); got != tc.want {
			t.Errorf("OnlyIPv6(%v) = %v", tc.ips, got)
		}
	}
}

func FuzzParsePodInfo(f *testing.F) {
	f.Add("a=\"b\"\n")
	f.Fuzz(func(t *testing.T, data string) {
		values, err := ParsePodInfo(data)
		if err == nil && len(values) > strings.Count(data, "=") {
			t.Errorf("%q resulted in %v", data, values)
		}
	})
}
