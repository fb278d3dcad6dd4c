// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A bootstrap of the user's own is neither made nor written nor removed.
func TestCustomConfigFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "own.yaml")
	if err := os.WriteFile(path, []byte("admin: {}"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A template loses against it, a tracer that is gone is not looked at.
	cfg, warnings, err := resolve(testSources(map[string]string{path: "admin: {}"},
		"PROXY_CONFIG={customConfigFile: '"+path+"', proxyBootstrapTemplatePath: x, tracing: {stackdriver: {}}}"))
	if err != nil || len(warnings) != 0 {
		t.Fatal(err, warnings)
	}
	if cfg.bootstrap != nil || !slices.Equal(cfg.envoyArgs[:2], []string{"-c", path}) {
		t.Errorf("bootstrap %q, arguments %q", cfg.bootstrap, cfg.envoyArgs)
	}
	remove, err := writeBootstrap(cfg)
	if err != nil {
		t.Fatal(err)
	}
	remove()
	if got, err := os.ReadFile(path); err != nil || string(got) != "admin: {}" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWriteBootstrap(t *testing.T) {
	t.Parallel()
	cfg := &config{bootstrap: []byte("{}"), bootstrapFile: filepath.Join(t.TempDir(), "envoy-rev.json")}
	remove, err := writeBootstrap(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(cfg.bootstrapFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	remove()
	if _, err := os.Stat(cfg.bootstrapFile); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestBootstrapOverride(t *testing.T) {
	t.Parallel()
	cfg, warnings, err := resolve(testSources(map[string]string{"o.yaml": "admin: {}"}, "ISTIO_BOOTSTRAP_OVERRIDE=o.yaml", "ISTIO_BOOTSTRAP="+istioTemplate))
	if err != nil || len(warnings) != 0 {
		t.Fatal(err, warnings)
	}
	if i := slices.Index(cfg.envoyArgs, "--config-yaml"); i < 0 || cfg.envoyArgs[i+1] != "admin: {}" {
		t.Errorf("arguments of Envoy: %q", cfg.envoyArgs)
	}
}

// The default of tracing makes no tracer, the same value in any of the
// sources does.
func TestTracingSet(t *testing.T) {
	t.Parallel()
	const zipkin = "tracing: {zipkin: {address: 'zipkin.istio-system:9411'}}"
	for name, tc := range map[string]struct {
		files   map[string]string
		environ string
		want    bool
	}{
		"nowhere":     {want: false},
		"mesh file":   {files: map[string]string{"mesh": "defaultConfig: {" + zipkin + "}"}, want: true},
		"environment": {environ: "PROXY_CONFIG={" + zipkin + "}", want: true},
		"annotation":  {files: map[string]string{annotationsFile: annotationProxyConfig + "=\"" + zipkin + "\"\n"}, want: true},
		"no tracer":   {environ: "PROXY_CONFIG={tracing: {sampling: 1}}", want: false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, _, err := resolve(testSources(tc.files, tc.environ))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(string(cfg.bootstrap), "envoy.tracers.zipkin"); got != tc.want {
				t.Errorf("a tracer: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestStatsd(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"statsd:1": "10.0.0.7:1", "[fd00::1]:1": "[fd00::1]:1", "$(HOST_IP):1": "10.9.9.9:1", "six:1": "[fd00::7]:1", "none:1": "",
	} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			src := testSources(nil, "PROXY_CONFIG={statsdUdpAddress: '"+address+"'}", "HOST_IP=10.9.9.9")
			src.lookup = func(host string) ([]string, error) {
				switch host {
				case "statsd":
					return []string{"fd00::7", "10.0.0.7"}, nil
				case "six":
					return []string{"fd00::7"}, nil
				}
				return nil, nil
			}
			cfg, warnings, err := resolve(src)
			if err != nil {
				t.Fatal(err)
			}
			if got := cfg.proxyConfig.GetStatsdUdpAddress(); got != want {
				t.Errorf("address %q, want %q", got, want)
			}
			if sink := strings.Contains(string(cfg.bootstrap), "StatsdSink"); sink != (want != "") || len(warnings) > 0 == sink {
				t.Errorf("a sink: %v, warnings %q", sink, warnings)
			}
		})
	}
}

func TestDualStack(t *testing.T) {
	t.Parallel()
	for dual, want := range map[string]string{"false": "127.0.0.1", "true": "::1"} {
		src := testSources(nil, "ISTIO_DUAL_STACK="+dual, "INSTANCE_IP=fd00::1")
		cfg, _, err := resolve(src)
		if err != nil || cfg.local != want {
			t.Errorf("%s: %v, %v", dual, cfg, err)
		}
	}
}
