// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/xds"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/certs"
)

// writePair writes a workload certificate with its key and roots, and returns the serial number in
// Envoy's format.
func (c *controlPlane) writePair(t *testing.T, dir string) (serial string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := url.Parse("spiffe://cluster.local/ns/default/sa/shop")
	if err != nil {
		t.Fatal(err)
	}
	leaf := c.certify(t, &x509.Certificate{URIs: []*url.URL{id}, KeyUsage: x509.KeyUsageDigitalSignature}, c.root, key)
	keyPEM, err := certs.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	// The key is written first, as a careless user may do; the agent must wait for the certificate.
	writeIn(t, dir, "key.pem", keyPEM)
	writeIn(t, dir, "cert-chain.pem", certs.EncodeChain(leaf))
	writeIn(t, dir, "root-cert.pem", c.rootPEM())
	return leaf.SerialNumber.Text(16)
}

// exists reports whether a file exists below the agent's directory.
func (a *runningAgent) exists(path string) bool {
	_, err := os.Stat(filepath.Join(a.dir, path))
	return err == nil
}

// TestProxyWithoutEnvoy checks that without Envoy the agent writes certificates to files for
// applications that use gRPC themselves, and relays their streams.
func TestProxyWithoutEnvoy(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	dir := t.TempDir()
	a := startAgent(t, "127.77.44.1", "", cp, "DISABLE_ENVOY=true", "ISTIO_META_GENERATOR=grpc", "OUTPUT_CERTS="+dir, "KUBERNETES_SERVICE_HOST=10.0.0.1")
	eventually(t, "the status port says ready", func() bool {
		code, _ := a.get(15020, "/healthz/ready")
		return code == http.StatusOK
	})
	for _, name := range []string{"key.pem", "cert-chain.pem", "root-cert.pem"} {
		path := filepath.Join(dir, name)
		eventually(t, path, func() bool {
			info, err := os.Stat(path)
			return err == nil && info.Size() > 0 && info.Mode().Perm() == 0o644
		})
	}
	if info, err := os.Stat(filepath.Join(a.dir, "etc/istio/proxy/XDS")); err != nil || info.Mode()&fs.ModeSocket == 0 || info.Mode().Perm() != 0o666 {
		t.Errorf("the XDS socket: got %v, error %v", info, err)
	}
	for _, path := range []string{"etc/istio/proxy/envoy-rev.json", "var/run/secrets/workload-spiffe-uds/socket"} {
		if a.exists(path) {
			t.Errorf("%s exists, but only Envoy needs it", path)
		}
	}
	bootstrap, err := os.ReadFile(filepath.Join(a.dir, environ.DefaultGRPCBootstrap))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(bootstrap), dir+"/cert-chain.pem") {
		t.Errorf("the bootstrap of gRPC lacks the certificate: %s", bootstrap)
	}
	// gRPC's own client must accept the file, including the certificates.
	if _, err := xds.NewXDSResolverWithConfigForTesting(bootstrap); err != nil {
		t.Errorf("gRPC's client rejects the bootstrap: %v", err)
	}
	if code, body := a.get(15020, "/stats/prometheus"); code != http.StatusOK || !strings.Contains(body, "istio_agent_cert_expiry_seconds") {
		t.Errorf("metrics: got %d %s", code, body)
	}
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(exitOK)
}

// TestProxyMountedCertificates checks that Envoy receives the certificates of another program, also
// replaced ones, and that no certificate is requested.
func TestProxyMountedCertificates(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	dir := t.TempDir()
	writeIn(t, dir, "override.yaml", []byte(secretUser))
	writeIn(t, dir, "etc/istio/pod/labels", []byte("app=\"shop\"\n"))
	mounted := filepath.Join(dir, "etc/certs")
	first := cp.writePair(t, mounted)
	a := startAgentIn(t, dir, "127.77.44.2", `,"proxyMetadata":{"ISTIO_META_TLS_CLIENT_CERT_CHAIN":"etc/certs/cert-chain.pem","ISTIO_META_TLS_CLIENT_KEY":"etc/certs/key.pem"}`,
		cp, "FILE_MOUNTED_CERTS=true", "ISTIO_BOOTSTRAP_OVERRIDE="+dir+"/override.yaml")
	a.waitReady()
	has := func(serial string) func() bool {
		return func() bool {
			_, body := a.get(15000, "/certs")
			return strings.Contains(body, serial)
		}
	}
	eventually(t, "Envoy has the first certificate", has(first))
	eventually(t, "Envoy has the second certificate", has(cp.writePair(t, mounted)))
	signed, streams, _ := cp.calls()
	if len(signed) != 0 || len(streams) == 0 || streams[0].identity != "spiffe://cluster.local/ns/default/sa/shop" {
		t.Errorf("got certificate requests %v, streams %+v", signed, streams)
	}
}

// anyNode uses the same snapshot for every node.
type anyNode struct{}

func (anyNode) ID(*corev3.Node) string { return "any" }

// serveSecrets runs go-control-plane's SDS server on a socket.
func serveSecrets(t *testing.T, socket string, cp *controlPlane) {
	t.Helper()
	pair := t.TempDir()
	cp.writePair(t, pair)
	inline := func(name string) *corev3.DataSource {
		doc, err := os.ReadFile(filepath.Join(pair, name))
		if err != nil {
			t.Fatal(err)
		}
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: doc}}
	}
	snapshot, err := cachev3.NewSnapshot("1", map[resourcev3.Type][]types.Resource{resourcev3.SecretType: {
		&tlsv3.Secret{Name: "default", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline("cert-chain.pem"), PrivateKey: inline("key.pem"),
		}}},
		&tlsv3.Secret{Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline("root-cert.pem")}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	cache := cachev3.NewSnapshotCache(false, anyNode{}, nil)
	if err := cache.SetSnapshot(t.Context(), "any", snapshot); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(server, serverv3.NewServer(t.Context(), cache, nil))
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		t.Log("Serve returned:", <-served)
	})
}

// TestProxyExternalSecrets checks that an existing secret server is kept and that Envoy receives
// its secrets, here those of go-control-plane.
func TestProxyExternalSecrets(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	dir, short := t.TempDir(), t.TempDir()
	writeIn(t, dir, "override.yaml", []byte(secretUser))
	writeIn(t, dir, "var/run/secrets/istio/root-cert.pem", cp.rootPEM())
	socket := filepath.Join(dir, "var/run/secrets/workload-spiffe-uds/socket")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	serveSecrets(t, filepath.Join(short, "s"), cp)
	if err := os.Symlink(filepath.Join(short, "s"), socket); err != nil {
		t.Fatal(err)
	}
	a := startAgentIn(t, dir, "127.77.44.4", `,"terminationDrainDuration":"0s"`, cp, "ISTIO_BOOTSTRAP_OVERRIDE="+dir+"/override.yaml")
	a.waitReady()
	eventually(t, "Envoy has the other server's certificate", a.hasSecret)
	if signed, _, _ := cp.calls(); len(signed) != 0 {
		t.Errorf("%d certificates were requested, want none", len(signed))
	}
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(exitOK)
	if !a.exists("var/run/secrets/workload-spiffe-uds/socket") {
		t.Error("the socket of the other server was removed")
	}
}

// TestProxyNamedSecrets configures the socket of another server. The agent must wait for that
// server, also in a directory that it cannot write to, and must never replace it with its own
// identity.
func TestProxyNamedSecrets(t *testing.T) {
	t.Parallel()
	const mount = "var/run/secrets/workload-spiffe-uds"
	cp := newControlPlane(t)
	dir, short := t.TempDir(), t.TempDir()
	writeIn(t, dir, "override.yaml", []byte(secretUser))
	writeIn(t, dir, "var/run/secrets/istio/root-cert.pem", cp.rootPEM())
	if err := os.MkdirAll(filepath.Join(dir, mount), 0o755); err != nil {
		t.Fatal(err)
	}
	start := func() *runningAgent {
		a := startAgentIn(t, dir, "127.77.44.7", `,"terminationDrainDuration":"0s"`, cp, "ISTIO_BOOTSTRAP_OVERRIDE="+dir+"/override.yaml", "WORKLOAD_IDENTITY_SOCKET_FILE=spire.sock")
		eventually(t, "the agent waits", func() bool { return strings.Contains(a.out.String(), "the start waits for the server") })
		return a
	}
	stop := func(a *runningAgent) {
		t.Helper()
		if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		a.waitEnd(exitOK)
	}
	stop(start())
	a := start()
	if strings.Contains(a.out.String(), "envoy started") {
		t.Error("Envoy was started without an identity")
	}
	serveSecrets(t, filepath.Join(short, "s"), cp)
	if err := os.Symlink(filepath.Join(short, "s"), filepath.Join(dir, mount, "spire.sock")); err != nil {
		t.Fatal(err)
	}
	a.waitReady()
	eventually(t, "Envoy has the other server's certificate", a.hasSecret)
	if signed, _, _ := cp.calls(); len(signed) != 0 {
		t.Errorf("%d certificates were requested, want none", len(signed))
	}
	stop(a)
	entries, err := os.ReadDir(filepath.Join(dir, mount))
	if err != nil || len(entries) != 1 || entries[0].Name() != "spire.sock" {
		t.Errorf("the directory of the socket contains %v, error %v", entries, err)
	}
}

// TestProxyMachineReboots checks that a machine joins with a token, and needs none after a reboot
// that clears /var/run, because it has stored its certificate.
func TestProxyMachineReboots(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	dir := t.TempDir()
	writeIn(t, dir, "etc/certs/root-cert.pem", cp.rootPEM())
	writeIn(t, dir, "var/run/secrets/tokens/istio-token", []byte("the-token\n"))
	machine := []string{"PROV_CERT=./etc/certs", "OUTPUT_CERTS=./etc/certs"}
	stop := func(a *runningAgent) {
		t.Helper()
		if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		a.waitEnd(exitOK)
	}
	first := startAgentIn(t, dir, "127.77.44.5", `,"terminationDrainDuration":"0s"`, cp, machine...)
	first.waitReady()
	eventually(t, "the certificate is stored", func() bool { return first.exists("etc/certs/cert-chain.pem") && first.exists("etc/certs/key.pem") })
	stop(first)
	signed, _, _ := cp.calls()
	if len(signed) != 1 || strings.Join(signed[0].metadata.Get("authorization"), "") != "Bearer the-token" {
		t.Errorf("first certificate requests: got %+v", signed)
	}
	if err := os.RemoveAll(filepath.Join(dir, "var")); err != nil {
		t.Fatal(err)
	}
	second := startAgentIn(t, dir, "127.77.44.5", `,"terminationDrainDuration":"0s"`, cp, machine...)
	second.waitReady()
	stop(second)
	_, streams, _ := cp.calls()
	if len(streams) < 2 || streams[len(streams)-1].identity != "spiffe://cluster.local/ns/default/sa/shop" {
		t.Errorf("streams: got %+v", streams)
	}
}

// TestProxyAuthorityReplaced replaces the authority with one that does not accept the old
// certificates. The agent must request a new certificate with its token and serve Envoy again, long
// before half of the lifetime of the old certificate has passed.
func TestProxyAuthorityReplaced(t *testing.T) {
	t.Parallel()
	old := newControlPlane(t)
	a := startAgent(t, "127.77.44.6", `,"terminationDrainDuration":"0s"`, old)
	a.waitReady()
	old.server.Stop()
	next := newControlPlaneAt(t, old.address)
	writeIn(t, a.dir, "var/run/secrets/istio/root-cert.pem", next.rootPEM())
	eventually(t, "the new authority has signed", func() bool {
		signed, _, _ := next.calls()
		return len(signed) > 0
	})
	eventually(t, "Envoy is joined to the new control plane with that certificate", func() bool {
		_, streams, _ := next.calls()
		return len(streams) > 0 && streams[len(streams)-1].identity == "spiffe://cluster.local/ns/default/sa/shop"
	})
}
