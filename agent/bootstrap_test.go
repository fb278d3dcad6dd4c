// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestCustomConfigFile checks that the agent neither generates nor writes nor removes the bootstrap
// if the user provides one.
func TestCustomConfigFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "own.yaml")
	if err := os.WriteFile(path, []byte("admin: {}"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The file takes precedence over the template, and the unsupported tracer causes no warning.
	cfg, warnings, err := resolve(t.Context(), testSources(map[string]string{path: "admin: {}"},
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
	cfg := &settings{bootstrap: []byte("{}"), bootstrapFile: filepath.Join(t.TempDir(), "envoy-rev.json")}
	remove, err := writeBootstrap(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(cfg.bootstrapFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	remove()
	if _, err := os.Stat(cfg.bootstrapFile); !os.IsNotExist(err) {
		t.Errorf("the bootstrap was not removed: %v", err)
	}
}

func TestBootstrapOverride(t *testing.T) {
	t.Parallel()
	cfg, warnings, err := resolve(t.Context(), testSources(map[string]string{"o.yaml": "admin: {}"}, "ISTIO_BOOTSTRAP_OVERRIDE=o.yaml"))
	if err != nil || len(warnings) != 0 {
		t.Fatal(err, warnings)
	}
	if i := slices.Index(cfg.envoyArgs, "--config-yaml"); i < 0 || cfg.envoyArgs[i+1] != "admin: {}" {
		t.Errorf("arguments of Envoy: %q", cfg.envoyArgs)
	}
}

// TestTemplate checks that a template of the user replaces the built-in bootstrap. customConfigFile
// takes precedence over the environment, the environment over the flag, and the flag over the
// ProxyConfig.
func TestTemplate(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"a": `{"a": "{{ .nodeID }} {{ .xds_root_cert }}"}`, "b.yaml": "b: {{ .localhost }}", "c.yaml.tmpl": "c: 1", "own": "admin: {}", "bad": "{", "gone": "{{ .config.GetX }}",
		istioTemplate: "broken",
	}
	custom, field := "PROXY_CONFIG={customConfigFile: own}", "PROXY_CONFIG={proxyBootstrapTemplatePath: a}"
	const ours = "etc/istio/proxy/envoy-rev.json"
	for name, tc := range map[string]struct {
		environ, flag string
		file, want    string // the file that Envoy reads, and a part of its content
		warning, err  string
	}{
		"nothing":             {file: ours, want: "xds-grpc"},
		"environment":         {environ: "ISTIO_BOOTSTRAP=a", flag: "b.yaml", file: ours, want: `{"a": "sidecar~10.0.0.1~p.ns~ns.svc.cluster.local ` + meshRootFile + `"}`},
		"flag":                {environ: field, flag: "b.yaml", file: "etc/istio/proxy/envoy-rev.yaml", want: "b: 127.0.0.1"},
		"ProxyConfig":         {environ: field, file: ours, want: `{"a": "sidecar~`},
		"custom over flag":    {environ: custom, flag: "a", file: "own"},
		"YAML template":       {flag: "c.yaml.tmpl", file: "etc/istio/proxy/envoy-rev.yaml", want: "c: 1"},
		"environment, custom": {environ: "ISTIO_BOOTSTRAP=a\n" + custom, file: "own", warning: `environment variable ISTIO_BOOTSTRAP is "a": it is not used, ProxyConfig customConfigFile "own"`},
		"Istio's own":         {environ: "ISTIO_BOOTSTRAP=" + istioTemplate, file: ours, want: "xds-grpc", warning: "the template of Istio's bootstrap: it is replaced by the built-in bootstrap"},
		"Istio's own, custom": {environ: "ISTIO_BOOTSTRAP=" + istioTemplate + "\n" + custom, file: "own", warning: "it is not used"},
		"Istio's own, flag":   {environ: field, flag: "." + istioTemplate, file: ours, want: "xds-grpc", warning: "--templateFile is"},
		"no such file":        {flag: "none", err: `--templateFile is "none"; it must be a template of Envoy's bootstrap: open none`},
		"no JSON":             {environ: "ISTIO_BOOTSTRAP=bad", err: `environment variable ISTIO_BOOTSTRAP: template bad renders JSON that cannot be read: line 1 of the output, "{"`},
		"a method":            {environ: "PROXY_CONFIG={proxyBootstrapTemplatePath: gone}", err: "ProxyConfig proxyBootstrapTemplatePath: template gone line 1 at <.config.GetX>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := testSources(files, strings.Split(tc.environ, "\n")...)
			src.Flags.TemplateFile = tc.flag
			cfg, warnings, err := resolve(t.Context(), src)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(warnings) > 1 || (len(warnings) == 1) != (tc.warning != "") || !strings.Contains(strings.Join(warnings, ""), tc.warning) {
				t.Errorf("warnings %q, want one with %q", warnings, tc.warning)
			}
			if cfg.bootstrapFile != tc.file || !strings.Contains(string(cfg.bootstrap), tc.want) || !slices.Equal(cfg.envoyArgs[:2], []string{"-c", tc.file}) {
				t.Errorf("file %s, bootstrap %.200s, arguments %q", cfg.bootstrapFile, cfg.bootstrap, cfg.envoyArgs[:2])
			}
		})
	}
}

// TestTracingSet checks that the default tracing setting creates no tracer, but the same value set
// in any source does.
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
			cfg, _, err := resolve(t.Context(), testSources(tc.files, tc.environ))
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
			src.lookup = func(_ context.Context, host string) ([]string, error) {
				switch host {
				case "statsd":
					return []string{"fd00::7", "10.0.0.7"}, nil
				case "six":
					return []string{"fd00::7"}, nil
				}
				return nil, nil
			}
			cfg, warnings, err := resolve(t.Context(), src)
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
		cfg, _, err := resolve(t.Context(), src)
		if err != nil || cfg.local != want {
			t.Errorf("%s: %v, %v", dual, cfg, err)
		}
	}
}

// TestStatsdLookupEnds checks that a lookup of statsd that hangs ends with the agent or after a
// timeout, and that the agent starts without statsd.
func TestStatsdLookupEnds(t *testing.T) {
	t.Parallel()
	hangs := func(ctx context.Context, _ string) ([]string, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, ends := range map[string]time.Duration{"end of the agent": time.Second, "timeout": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				src := testSources(nil, "PROXY_CONFIG={statsdUdpAddress: 'statsd:1'}")
				src.lookup = hangs
				ctx, cancel := context.WithTimeout(t.Context(), ends)
				defer cancel()
				began := time.Now()
				cfg, warnings, err := resolve(ctx, src)
				if err != nil || len(warnings) != 1 || cfg.proxyConfig.GetStatsdUdpAddress() != "" {
					t.Errorf("%q, %v", warnings, err)
				}
				if took := time.Since(began); took != min(ends, lookupTimeout) {
					t.Errorf("the lookup took %s, want %s", took, min(ends, lookupTimeout))
				}
			})
		})
	}
}

// TestNewEndsWithItsContext checks that the end of the context, as on SIGTERM, ends the lookup at
// once. The test is not parallel, because it replaces the resolver of the process.
func TestNewEndsWithItsContext(t *testing.T) {
	before := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = before })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ends := make(chan error, 100)
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(lookup context.Context, _, _ string) (net.Conn, error) {
		cancel()
		<-lookup.Done() // no server answers
		ends <- lookup.Err()
		return nil, lookup.Err()
	}}
	c := testSources(nil, "PROXY_CONFIG={statsdUdpAddress: 'statsd.example.com:1'}").Config
	c.Logger, c.Environ.Cloud.Platform = slog.New(slog.DiscardHandler), "none"
	_, err := New(ctx, c)
	if ctx.Err() == nil {
		t.Fatalf("statsd was not looked up: %v", err)
	}
	if err := <-ends; !errors.Is(err, context.Canceled) {
		t.Errorf("the lookup ended with %v, want %v", err, context.Canceled)
	}
}

// TestRunAfterTheEnd checks that Run starts nothing if its context has already ended.
func TestRunAfterTheEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	cfg, _, err := resolve(t.Context(), testSources(nil, "PROXY_CONFIG={configPath: '"+dir+"'}"))
	if err != nil {
		t.Fatal(err)
	}
	if err := (&Agent{settings: cfg, log: slog.New(slog.DiscardHandler)}).Run(ctx); err != nil {
		t.Error(err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("files: %v, %v", files, err)
	}
}
