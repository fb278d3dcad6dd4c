// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/certs"
)

// testSources returns the sources of a sidecar whose files are in a map.
func testSources(files map[string]string, variables ...string) sources {
	env, _ := environ.Read(append([]string{"POD_NAME=p", "POD_NAMESPACE=ns", "SERVICE_ACCOUNT=sa", "INSTANCE_IP=10.0.0.1"}, variables...))
	return sources{
		Config: Config{
			Role: "sidecar", Environ: env,
			Flags: Flags{MeshConfig: "mesh", ProxyLogLevel: "warning,misc:error", ServiceCluster: "istio-proxy"},
		},
		read: func(path string) ([]byte, error) {
			if text, ok := files[path]; ok {
				return []byte(text), nil
			}
			if path == meshRootFile {
				return []byte("roots"), nil
			}
			return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
		},
		interfaces: func() []networkInterface {
			return []networkInterface{{name: "eth0", ips: []string{"10.0.0.1"}}, {name: "net1", ips: []string{"10.0.0.2"}}}
		},
		lookup: func(context.Context, string) ([]string, error) { return nil, errors.New("no such host") },
	}
}

// TestResolveDurations checks that durations in all sources use Go's units, as in Istio.
func TestResolveDurations(t *testing.T) {
	t.Parallel()
	const bad = "terminationDrainDuration: 1x"
	for name, tc := range map[string]struct{ mesh, environ, annotation, want string }{
		"mesh config": {mesh: "defaultConfig: {terminationDrainDuration: 1m30s}", want: "1m30s"},
		"environment": {environ: `{"terminationDrainDuration":"1500ms"}`, want: "1.5s"},
		"annotation":  {annotation: "terminationDrainDuration: 1h", want: "1h0m0s"},
		"bad mesh config": {
			mesh: "defaultConfig: {" + bad + "}",
			want: `--meshConfig mesh: mesh config: field defaultConfig.terminationDrainDuration is "1x"; it must be a duration`,
		},
		"bad environment": {environ: bad, want: `environment variable PROXY_CONFIG: field terminationDrainDuration is "1x"; it must be a duration`},
		"bad annotation":  {annotation: bad, want: `annotation proxy.istio.io/config: field terminationDrainDuration is "1x"; it must be a duration`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{"mesh": tc.mesh, annotationsFile: "proxy.istio.io/config=" + strconv.Quote(tc.annotation)}
			cfg, _, err := resolve(t.Context(), testSources(files, "PROXY_CONFIG="+tc.environ))
			switch {
			case err != nil && (!strings.HasPrefix(name, "bad ") || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want %q", err, tc.want)
			case err == nil && cfg.drain().Duration.String() != tc.want:
				t.Errorf("drain %s, want %s", cfg.drain().Duration, tc.want)
			}
		})
	}
}

// TestResolvePrecedence checks that later sources take precedence: defaults, mesh file,
// environment, annotations, flags.
func TestResolvePrecedence(t *testing.T) {
	t.Parallel()
	src := testSources(map[string]string{
		"mesh":          "defaultConfig: {drainDuration: 10s, statusPort: 1, discoveryAddress: mesh:1, proxyMetadata: {A: mesh, B: mesh}}",
		annotationsFile: "proxy.istio.io/config=\"discoveryAddress: annotation:3\\nproxyMetadata: {C: annotation}\"\nstatus.sidecar.istio.io/port=\"15099\"\n",
		labelsFile:      "app=\"shop\"\n",
	}, "PROXY_CONFIG={statusPort: 2, discoveryAddress: 'env:2', proxyMetadata: {B: env}}", "ISTIO_CPU_LIMIT=3")
	src.Flags.Concurrency = 5
	cfg, warnings, err := resolve(t.Context(), src)
	if err != nil || len(warnings) != 0 {
		t.Fatal(err, warnings)
	}
	pc := cfg.proxyConfig
	if got := pc.GetDrainDuration().AsDuration().String(); got != "10s" {
		t.Errorf("drainDuration %s", got)
	}
	if pc.GetStatusPort() != 15099 || pc.GetDiscoveryAddress() != "annotation:3" || pc.GetConcurrency().GetValue() != 5 {
		t.Errorf("got %v", pc)
	}
	if diff := cmp.Diff(map[string]string{"A": "mesh", "B": "env", "C": "annotation"}, pc.GetProxyMetadata()); diff != "" {
		t.Error(diff)
	}
	if cfg.node.String() != "sidecar~10.0.0.1~p.ns~ns.svc.cluster.local" || cfg.metadata.Labels["app"] != "shop" || cfg.metadata.Name != "p" {
		t.Errorf("node %s, metadata %+v", cfg.node, cfg.metadata)
	}
	if diff := cmp.Diff([]string{"10.0.0.1", "10.0.0.2"}, []string(cfg.metadata.InstanceIPs)); diff != "" {
		t.Error(diff)
	}
	if want := (upstream{address: "annotation:3", serverName: "annotation", roots: meshRootFile}); cfg.xds != want || cfg.ca != want {
		t.Errorf("upstreams %+v %+v", cfg.xds, cfg.ca)
	}
	if i := slices.Index(cfg.envoyArgs, "--concurrency"); i < 0 || cfg.envoyArgs[i+1] != "5" {
		t.Errorf("arguments of Envoy: %q", cfg.envoyArgs)
	}
}

func TestResolveUpstreams(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		files   map[string]string
		environ []string
		xds, ca upstream
	}{
		"defaults": {
			xds: upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: meshRootFile},
			ca:  upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: meshRootFile},
		},
		"localhost, another authority": {
			environ: []string{"PROXY_CONFIG={discoveryAddress: 'localhost:1'}", "CA_ADDR=ca:2", "CA_ROOT_CA=SYSTEM"},
			xds:     upstream{address: "localhost:1", serverName: "istiod.istio-system.svc", roots: meshRootFile},
			ca:      upstream{address: "ca:2", serverName: "ca", roots: "SYSTEM"},
		},
		"a name for the control plane only": {
			environ: []string{"ISTIOD_SAN=x", "CA_ADDR=ca:15010"},
			xds:     upstream{address: "istiod.istio-system.svc:15012", serverName: "x", roots: meshRootFile},
			ca:      upstream{address: "ca:15010", serverName: "ca"},
		},
		"plaintext": {
			environ: []string{"PROXY_CONFIG={controlPlaneAuthPolicy: NONE}"},
			xds:     upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc"},
			ca:      upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc"},
		},
		"old files and a provisioned certificate": {
			files:   map[string]string{oldRootFile: "old", "prov/root-cert.pem": "prov"},
			environ: []string{"PROV_CERT=prov"},
			xds:     upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: oldRootFile, chain: "prov/cert-chain.pem", key: "prov/key.pem"},
			ca:      upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: "prov/root-cert.pem", chain: "prov/cert-chain.pem", key: "prov/key.pem"},
		},
		"roots of Kubernetes": {
			files:   map[string]string{serviceAccountRootFile: "k8s"},
			environ: []string{"PILOT_CERT_PROVIDER=kubernetes"},
			xds:     upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: serviceAccountRootFile},
			ca:      upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: serviceAccountRootFile},
		},
		"mounted roots of Kubernetes": {
			files:   map[string]string{serviceAccountRootFile: "k8s", kubeRootFile: "mounted", oldRootFile: "old"},
			environ: []string{"PILOT_CERT_PROVIDER=kubernetes"},
			xds:     upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: oldRootFile},
			ca:      upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: kubeRootFile},
		},
		"custom roots": {
			files:   map[string]string{oldRootFile: "old"},
			environ: []string{"PILOT_CERT_PROVIDER=custom"},
			xds:     upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: oldRootFile},
			ca:      upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: oldRootFile},
		},
		"mounted files, no authority": {
			files:   map[string]string{"c/root": "mine"},
			environ: []string{"FILE_MOUNTED_CERTS=true", "PROXY_CONFIG={proxyMetadata: {ISTIO_META_TLS_CLIENT_CERT_CHAIN: c/chain, ISTIO_META_TLS_CLIENT_KEY: c/key, ISTIO_META_TLS_CLIENT_ROOT_CERT: c/root}}"},
			xds:     upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: "c/root", chain: "c/chain", key: "c/key"},
			ca:      upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", chain: "c/chain", key: "c/key"},
		},
		"a machine that keeps its certificate": {
			environ: []string{"PROV_CERT=etc/certs", "OUTPUT_CERTS=./etc/certs"},
			xds:     upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: meshRootFile, chain: "etc/certs/cert-chain.pem", key: "etc/certs/key.pem", ownFirst: true},
			ca:      upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: meshRootFile, chain: "etc/certs/cert-chain.pem", key: "etc/certs/key.pem", ownFirst: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, _, err := resolve(t.Context(), testSources(tc.files, tc.environ...))
			if err != nil {
				t.Fatal(err)
			}
			if cfg.xds != tc.xds || cfg.ca != tc.ca {
				t.Errorf("xds %+v, ca %+v", cfg.xds, cfg.ca)
			}
			if plain := cfg.xds.tlsConfig(nil) == nil; plain != (tc.xds.roots == "") {
				t.Errorf("plaintext is %v", plain)
			}
		})
	}
}

func TestResolveWarnsAndRefuses(t *testing.T) {
	t.Parallel()
	src := testSources(map[string]string{labelsFile: "broken"}, "PROXY_CONFIG={statsdUdpAddress: 'a:1'}", "XDS_AUTH_PROVIDER=gcp", "ISTIO_METAJSON_X={", "ISTIO_BOOTSTRAP_OVERRIDE=/none")
	src.Flags.ProxyLogLevel = "info,loud"
	_, warnings, err := resolve(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"./etc/istio/pod/labels is ignored", "statsdUdpAddress", "XDS_AUTH_PROVIDER", "ISTIO_METAJSON_X", "--proxyLogLevel", "ISTIO_BOOTSTRAP_OVERRIDE"} {
		if i >= len(warnings) || !strings.Contains(warnings[i], want) {
			t.Errorf("warning %d of %q does not name %s", i, warnings, want)
		}
	}
	for entry, want := range map[string]string{
		"WORKLOAD_IDENTITY_SOCKET_FILE=a/b":                        `WORKLOAD_IDENTITY_SOCKET_FILE is "a/b"; it must be the name of a file in ./var/run/secrets/workload-spiffe-uds`,
		"COMPLIANCE_POLICY=fips":                                   `COMPLIANCE_POLICY is "fips": write fips-140-2, fips-140-3 or pqc, or unset it`,
		"WORKLOAD_IDENTITY_SOCKET_FILE=..":                         `WORKLOAD_IDENTITY_SOCKET_FILE is ".."; it must be the name of a file`,
		"WORKLOAD_IDENTITY_SOCKET_FILE=" + strings.Repeat("a", 70): "WORKLOAD_IDENTITY_SOCKET_FILE has 70 characters",
		"PROXY_CONFIG=[":                                           "environment variable PROXY_CONFIG",
		"PROXY_CONFIG={discoveryAddress: x}":                       `ProxyConfig: discoveryAddress is "x"`,
		"INSTANCE_IP=me":                                           "INSTANCE_IP is \"me\"",
		"OUTRIGGER_BIND_ADDRESS=localhost":                         "OUTRIGGER_BIND_ADDRESS",
		"CA_ADDR=ca":                                               "CA_ADDR is \"ca\"",
		"ECC_SIGNATURE_ALGORITHM=ED25519":                          "ECC_SIGNATURE_ALGORITHM",
		"WORKLOAD_RSA_KEY_SIZE=1024":                               "WORKLOAD_RSA_KEY_SIZE is 1024",
		"ISTIO_META_DNS_CAPTURE=yes":                               "DNS_CAPTURE",
		"PROXY_CONFIG={customConfigFile: none}":                    `ProxyConfig customConfigFile is "none"`,
		"ISTIO_BOOTSTRAP=/x":                                       `ISTIO_BOOTSTRAP is "/x"; it must be a template of Envoy's bootstrap`,
		"PROXY_CONFIG={statsdUdpAddress: x}":                       `ProxyConfig statsdUdpAddress is "x": it must be host:port`,
		"PROXY_CONFIG={envoyMetricsService: {address: 'a:1', tlsSettings: {mode: SIMPLE, caCertificates: none}}}": `envoyMetricsService.tlsSettings.caCertificates is "none"; it must be a file`,
		"POD_NAMESPACE=":                        "POD_NAMESPACE is not set",
		`ISTIO_PROMETHEUS_ANNOTATIONS={"port":`: "ISTIO_PROMETHEUS_ANNOTATIONS",
	} {
		if _, _, err := resolve(t.Context(), testSources(nil, entry)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", entry, err, want)
		}
	}
	src = testSources(nil)
	src.read = func(path string) ([]byte, error) {
		if path == "mesh" {
			return nil, errors.New("permission denied")
		}
		return nil, os.ErrNotExist
	}
	if _, _, err := resolve(t.Context(), src); err == nil || !strings.Contains(err.Error(), "--meshConfig: permission denied") {
		t.Errorf("unreadable mesh file: %v", err)
	}
}

func TestKeyType(t *testing.T) {
	t.Parallel()
	for entries, want := range map[string]certs.KeyType{
		"":                            certs.ECDSAP256,
		"ECC_CURVE=P384":              certs.ECDSAP384,
		"ECC_SIGNATURE_ALGORITHM=RSA": certs.RSA2048,
		"WORKLOAD_RSA_KEY_SIZE=4096":  certs.RSA4096,
		"WORKLOAD_RSA_KEY_SIZE=3072":  certs.RSA3072,
		"ECC_SIGNATURE_ALGORITHM=ECDSA WORKLOAD_RSA_KEY_SIZE=2048": certs.ECDSAP256,
	} {
		e, _ := environ.Read(strings.Fields(entries))
		if got, err := keyType(e); err != nil || got != want {
			t.Errorf("%q: %v, %v", entries, got, err)
		}
	}
}

func TestListenUnix(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run", "s")
	l, err := listenUnix(t.Context(), path, ownMode, 0o750)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != ownMode {
		t.Errorf("socket: %v, %v", info, err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("directory: %v, %v", info, err)
	}
	if _, err := listenUnix(t.Context(), path, ownMode, 0o750); err == nil || !strings.Contains(err.Error(), "another process serves it") {
		t.Errorf("a socket in use: %v", err)
	}
	unix, ok := l.(*net.UnixListener)
	if !ok {
		t.Fatalf("listener is %T", l)
	}
	unix.SetUnlinkOnClose(false)
	_ = l.Close() // leaves a dead socket
	l, err = listenUnix(t.Context(), path, ownMode, 0o750)
	if err != nil {
		t.Fatalf("a dead socket: %v", err)
	}
	_ = l.Close() // nothing was sent
	if _, err := listenUnix(t.Context(), "/"+strings.Repeat("x", maxSocketPath), ownMode, 0o750); err == nil || !strings.Contains(err.Error(), "the kernel's limit is 107") {
		t.Errorf("a long path: %v", err)
	}
}

// TestClientCertificate checks that a client certificate that cannot be used does not prevent
// connections.
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	if err := os.WriteFile(filepath.Join(dir, "roots.pem"), certs.EncodeChain(server.Certificate()), 0o600); err != nil {
		t.Fatal(err)
	}
	own := &tls.Certificate{}
	for name, tc := range map[string]struct {
		workload *tls.Certificate
	}{"workload certificate": {own}, "none": {nil}} {
		config, err := upstream{
			roots: filepath.Join(dir, "roots.pem"), chain: filepath.Join(dir, "cert-chain.pem"), key: filepath.Join(dir, "key.pem"),
		}.tlsConfig(func() *tls.Certificate { return tc.workload })()
		if err != nil {
			t.Fatal(err)
		}
		got, err := config.GetClientCertificate(nil)
		if err != nil || got == nil || (tc.workload != nil && got != tc.workload) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, path := range []string{filepath.Join(dir, "none"), os.Args[0]} {
		if _, err := (upstream{roots: path}).tlsConfig(nil)(); err == nil {
			t.Errorf("the roots in %s were accepted", path)
		}
	}
}

// TestUpstreamCompliance connects to control planes with and without the curves of a policy.
func TestUpstreamCompliance(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "roots.pem")
	for policy, curves := range map[string][]tls.CurveID{
		"fips-140-2": {tls.CurveP256}, "fips-140-3": {tls.CurveP256, tls.CurveP384}, "pqc": {tls.X25519MLKEM768}, "": {tls.X25519, tls.CurveP256, tls.X25519MLKEM768},
	} {
		for _, curve := range []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.X25519MLKEM768} {
			server := httptest.NewUnstartedServer(nil)
			server.Config.ErrorLog = log.New(io.Discard, "", 0) // some handshakes are expected to fail
			server.TLS = &tls.Config{CurvePreferences: []tls.CurveID{curve}}
			server.StartTLS()
			t.Cleanup(server.Close)
			if err := os.WriteFile(file, certs.EncodeChain(server.Certificate()), 0o600); err != nil {
				t.Fatal(err)
			}
			src := testSources(map[string]string{file: "roots"}, "COMPLIANCE_POLICY="+policy, "XDS_ROOT_CA="+file, "PROXY_CONFIG={discoveryAddress: '"+server.Listener.Addr().String()+"'}")
			cfg, _, err := resolve(t.Context(), src)
			if err != nil {
				t.Fatal(err)
			}
			config, err := cfg.xds.tlsConfig(func() *tls.Certificate { return nil })()
			if err != nil {
				t.Fatal(err)
			}
			config.ServerName = "example.com" // of the server's certificate
			conn, err := tls.Dial("tcp", server.Listener.Addr().String(), config)
			if err == nil {
				_ = conn.Close()
			}
			if want := policy == "" || slices.Contains(curves, curve); (err == nil) != want {
				t.Errorf("policy %q and a server with %s: %v, want a connection: %t", policy, curve, err, want)
			}
		}
	}
}

func TestComplianceOfKeys(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]string{"fips-140-2": "ECC_CURVE is P384, and COMPLIANCE_POLICY fips-140-2 has P256 only", "fips-140-3": "", "pqc": ""} {
		_, _, err := resolve(t.Context(), testSources(nil, "COMPLIANCE_POLICY="+policy, "ECC_SIGNATURE_ALGORITHM=ECDSA", "ECC_CURVE=P384"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", policy, err, want)
		}
	}
}

func TestRedacted(t *testing.T) {
	t.Parallel()
	cfg, _, err := resolve(t.Context(), testSources(nil, `PROXY_CONFIG={proxyMetadata: {PASSWORD: hunter2}, tracing: {zipkin: {address: 'hunter2:1'}}}`))
	if err != nil {
		t.Fatal(err)
	}
	got := redacted(cfg)
	if strings.Contains(got, "hunter2") || !strings.Contains(got, `"proxyMetadata":["PASSWORD"]`) || !strings.Contains(got, "istiod.istio-system.svc:15012") {
		t.Error(got)
	}
}

// TestResolveIdentity checks where the workload's identity comes from.
func TestResolveIdentity(t *testing.T) {
	t.Parallel()
	pair := map[string]string{"etc/certs/cert-chain.pem": "c", "etc/certs/key.pem": "k"}
	workload := map[string]string{}
	for _, name := range []string{"cert-chain.pem", "key.pem", "root-cert.pem"} {
		workload[filepath.Join(workloadCertDir, name)] = "x"
	}
	for name, tc := range map[string]struct {
		files   map[string]string
		environ []string
		want    identitySource
		err     string
	}{
		"the authority":                    {},
		"the authority, kept on a machine": {environ: []string{"OUTPUT_CERTS=out"}, want: identitySource{saved: "out"}},
		"the authority, in Kubernetes":     {environ: []string{"OUTPUT_CERTS=out", "KUBERNETES_SERVICE_HOST=10.0.0.1"}},
		"mounted":                          {environ: []string{"FILE_MOUNTED_CERTS=true"}, want: identitySource{dir: mountedCertDir}},
		"mounted without a word":           {files: pair, want: identitySource{dir: mountedCertDir}},
		"our own of an earlier life":       {files: pair, environ: []string{"OUTPUT_CERTS=./etc/certs", "PROV_CERT=./etc/certs"}, want: identitySource{saved: "./etc/certs"}},
		"credentials of the workload":      {files: workload, environ: []string{"FILE_MOUNTED_CERTS=true"}, want: identitySource{dir: workloadCertDir}},
		"revoked certificates":             {files: map[string]string{crlFile: "crl"}, want: identitySource{crl: crlFile}},
		"mounted and provisioned":          {environ: []string{"FILE_MOUNTED_CERTS=true", "PROV_CERT=x"}, err: "FILE_MOUNTED_CERTS and PROV_CERT"},
		"written where they come from":     {environ: []string{"FILE_MOUNTED_CERTS=true", "OUTPUT_CERTS=etc/certs"}, err: `OUTPUT_CERTS is "etc/certs": the certificates are read from there`},
		"no service account":               {environ: []string{"SERVICE_ACCOUNT="}, err: "environment variable SERVICE_ACCOUNT is not set"},
		"no service account, but files":    {environ: []string{"SERVICE_ACCOUNT=", "FILE_MOUNTED_CERTS=true"}, want: identitySource{dir: mountedCertDir}},
		"a trust domain that is none":      {environ: []string{"TRUST_DOMAIN=a/b"}, err: "environment variables TRUST_DOMAIN, POD_NAMESPACE and SERVICE_ACCOUNT"},
	} {
		files := map[string]string{}
		for path, text := range tc.files {
			files[path] = text
		}
		cfg, _, err := resolve(t.Context(), testSources(files, tc.environ...))
		switch {
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error %v, want one with %q", name, err, tc.err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case cfg.source != tc.want:
			t.Errorf("%s: %+v, want %+v", name, cfg.source, tc.want)
		}
	}
}
