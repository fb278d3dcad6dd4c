// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in   string
		want func(*meshv1alpha1.MeshConfig)
	}{
		"empty": {in: "", want: func(*meshv1alpha1.MeshConfig) {}},
		"zero values replace the default": {
			in: "enableTracing: false\nenableAutoMtls: false\ndefaultServiceExportTo: []\nprotocolDetectionTimeout: 5s\n",
			want: func(m *meshv1alpha1.MeshConfig) {
				m.EnableTracing = false
				m.EnableAutoMtls = wrapperspb.Bool(false)
				m.DefaultServiceExportTo = nil
				m.ProtocolDetectionTimeout = durationpb.New(5 * time.Second)
			},
		},
		"null leaves the default": {in: "connectTimeout: null\ndefaultConfig: null\n", want: func(*meshv1alpha1.MeshConfig) {}},
		"unknown fields": {
			in:   "noSuchField: 1\nproxyHttpPort: 15080\noutboundTrafficPolicy: {mode: REGISTRY_ONLY, new: x}\n",
			want: func(m *meshv1alpha1.MeshConfig) { m.ProxyHttpPort = 15080; m.OutboundTrafficPolicy.Mode = 0 },
		},
		"both spellings, proxy config merges": {
			in: "trust_domain: example.org\ndefaultConfig:\n  statusPort: 1\n  proxyMetadata: {A: b}\n",
			want: func(m *meshv1alpha1.MeshConfig) {
				m.TrustDomain = "example.org"
				m.DefaultConfig.StatusPort = 1
				m.DefaultConfig.ProxyMetadata = map[string]string{"A": "b"}
			},
		},
		"providers merge by name, aliases are a set": {
			in: "extensionProviders:\n- {name: envoy, envoyFileAccessLog: {path: /x}}\n- {name: new, prometheus: {}}\n" +
				"defaultProviders: {accessLogging: [envoy]}\ntrustDomainAliases: [b, a, b]\n",
			want: func(m *meshv1alpha1.MeshConfig) {
				m.ExtensionProviders[2].GetEnvoyFileAccessLog().Path = "/x"
				added, _ := proto.Clone(m.ExtensionProviders[0]).(*meshv1alpha1.MeshConfig_ExtensionProvider)
				added.Name = "new"
				m.ExtensionProviders = append(m.ExtensionProviders, added)
				m.DefaultProviders.AccessLogging = []string{"envoy"}
				m.TrustDomainAliases = []string{"a", "b"}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse([]byte(tc.in))
			if err != nil {
				t.Fatal(err)
			}
			want := Default()
			tc.want(want)
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ in, want string }{
		"not YAML":            {"a: [", "line 1"},
		"a list":              {"[1]", "must be a mapping of fields"},
		"wrong type":          {"proxyHttpPort: abc", `field proxyHttpPort: invalid value for int32`},
		"wrong type below":    {"defaultConfig: {statusPort: {}}", "field defaultConfig.statusPort:"},
		"not a mapping below": {"defaultConfig: 3", "field defaultConfig must be a mapping"},
		"bad duration":        {"connectTimeout: 5", "field connectTimeout is 5; it must be a duration with its unit"},
		"port out of range":   {"proxyHttpPort: 70000", "proxyHttpPort is 70000; it must be from 1 to 65535"},
		"two faults at once":  {"trustDomain: ''\nrootNamespace: ''", "trustDomain is empty; it must be a domain such as cluster.local\nrootNamespace is empty"},
		"a flag for a text":   {"defaultConfig: {proxyMetadata: {A: b, B: true}}", "field defaultConfig.proxyMetadata: the value of B is not text; write it in quotes"},
		"a text for texts":    {"defaultConfig: {proxyMetadata: PASSWORD}", "field defaultConfig.proxyMetadata must be a mapping of names to texts"},
		"a number for a text": {"defaultConfig: {runtime_values: {a: 12345}}", "field defaultConfig.runtime_values: the value of a is not text"},
		"slow connect":        {"connectTimeout: 31s", "connectTimeout is 31s; it must be from 1ms to 30s"},
		"quick connect":       {"connectTimeout: 0.0001s", "connectTimeout is 100µs; it must be from 1ms to 30s"},
		"trust domain":        {"trustDomain: a_b", `trustDomain is "a_b"; it must be a domain such as cluster.local`},
		"alias":               {"trustDomainAliases: [b.c, -a.b]", `one of trustDomainAliases is "-a.b"; it must be a domain such as cluster.local`},
		"listen port":         {"proxyListenPort: 0", "proxyListenPort is 0; it must be from 1 to 65535"},
		"address below":       {"defaultConfig: {discoveryAddress: a}", `discoveryAddress is "a": it must be host:port`},
		"admin port below":    {"defaultConfig: {proxyAdminPort: 70000}", "proxyAdminPort is 70000"},
		"status port below":   {"defaultConfig: {statusPort: -1}", "statusPort is -1"},
		"bad drain":           {"defaultConfig: {drainDuration: 1.5s}", "drainDuration is 1.5s; it must be whole seconds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(tc.in))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), "PASSWORD") || strings.Contains(err.Error(), "12345")) {
				t.Errorf("the error shows a value: %v", err)
			}
		})
	}
}

func TestApplyProxyConfig(t *testing.T) {
	t.Parallel()
	base := DefaultProxyConfig()
	base.ProxyMetadata = map[string]string{"A": "base", "B": "base"}
	base.RuntimeValues = map[string]string{"x": "1"}
	before := proto.Clone(base)
	got, err := ApplyProxyConfig(base, `{"proxyMetadata":{"B":"over","C":"over"},"runtime_values":{"y":"2"},"serviceCluster":"",`+
		`"tracing":{"sampling":5},"drainDuration":"10s","concurrency":0,"unknown":{"deep":[1]}}`)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := proto.Clone(before).(*meshv1alpha1.ProxyConfig)
	want.ProxyMetadata = map[string]string{"A": "base", "B": "over", "C": "over"}
	want.RuntimeValues = map[string]string{"y": "2"}
	want.ClusterName = &meshv1alpha1.ProxyConfig_ServiceCluster{}
	want.Tracing = &meshv1alpha1.Tracing{Sampling: 5}
	want.DrainDuration = durationpb.New(10 * time.Second)
	want.Concurrency = wrapperspb.Int32(0)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before, base, protocmp.Transform()); diff != "" {
		t.Errorf("the base changed: %s", diff)
	}
	got, err = ApplyProxyConfig(base, "tracingServiceName: CANONICAL_NAME_ONLY")
	if err != nil || got.GetTracingServiceName() != meshv1alpha1.ProxyConfig_CANONICAL_NAME_ONLY || got.GetServiceCluster() != "" {
		t.Errorf("got %v, %v", got.GetClusterName(), err)
	}
}

func TestValidateProxyConfig(t *testing.T) {
	t.Parallel()
	if err := ValidateProxyConfig(DefaultProxyConfig()); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for in, want := range map[string]string{
		"configPath: ''":                  "configPath is empty",
		"binaryPath: ''":                  "binaryPath is empty",
		"drainDuration: 7200s":            "drainDuration is 2h0m0s",
		"drainDuration: 0.5s":             "drainDuration is 500ms",
		"terminationDrainDuration: -1s":   "terminationDrainDuration is -1s",
		"discoveryAddress: istiod":        `discoveryAddress is "istiod": it must be host:port`,
		"discoveryAddress: 'istiod:http'": `the port "http" must be from 1 to 65535`,
		"discoveryAddress: ':15012'":      "it must be host:port",
		"proxyAdminPort: 0":               "proxyAdminPort is 0",
		"statusPort: 65536":               "statusPort is 65536",
		"concurrency: -1":                 "concurrency is -1",
	} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			pc, err := ApplyProxyConfig(DefaultProxyConfig(), in)
			if err != nil {
				t.Fatal(err)
			}
			if err := ValidateProxyConfig(pc); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("trustDomain: a\ndefaultConfig: {proxyMetadata: {A: b}}"))
	f.Add([]byte(`{"extensionProviders":[{"name":"x"}],"1":{2:3}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		mesh, err := Parse(doc)
		if err == nil && (mesh.GetDefaultConfig() == nil || mesh.GetTrustDomain() == "") {
			t.Errorf("invalid result: %v", mesh)
		}
	})
}

func TestHasField(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]bool{
		"": false, "[": false, "defaultConfig: {tracing: {}}": true, "default_config: {tracing: {}}": true, "defaultConfig: {tracing: null}": false,
		"defaultConfig: 1": false, "tracing: {}": false,
	} {
		if got := HasField([]byte(doc), "defaultConfig", "tracing"); got != want {
			t.Errorf("%q: %v", doc, got)
		}
	}
}

// TestUnusableExtensionProvider checks that an extension provider that cannot be used is not an
// error. Objects that refer to it report the problem.
func TestUnusableExtensionProvider(t *testing.T) {
	t.Parallel()
	if _, err := Parse([]byte("extensionProviders: [{name: a}, {name: b, zipkin: {}}]")); err != nil {
		t.Error(err)
	}
}
