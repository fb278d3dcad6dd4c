// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
	"github.com/outrigger-mesh/outrigger/xdsproxy/dns"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// crl returns a revocation list of an authority, with one certificate.
func (s *signer) crl(t *testing.T, life time.Duration, revoked *big.Int) []byte {
	t.Helper()
	list := &x509.RevocationList{
		Number: big.NewInt(time.Now().UnixNano()), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(life),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: revoked, RevocationTime: time.Now()}},
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, s.root, s.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// outageEnvoy is an Envoy whose control plane, authority and issuer are away, and the agent's parts
// that serve it.
type outageEnvoy struct {
	t         *testing.T
	authority *signer
	peer      *sds.Workload // with Envoy's secrets
	names     *dns.Server
	crlFile   string
	token     string
	admin     string
	inbound   string // requires mutual TLS
	web       string // requires a token, and has /names, which is sent to a name
}

const outageConfig = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
node: {id: "sidecar~127.0.0.1~web.default~default.svc.cluster.local", cluster: web}
static_resources:
  clusters:
  - name: sds-grpc
    connect_timeout: 60s
    typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {http2_protocol_options: {}}}}
    load_assignment: {cluster_name: sds-grpc, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: "%s"}}}}]}]}
  - name: names
    connect_timeout: 60s
    cluster_type:
      name: envoy.clusters.dns
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster
        dns_refresh_rate: 0.5s
        dns_lookup_family: V4_ONLY
        typed_dns_resolver_config:
          name: envoy.network.dns_resolver.cares
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
            resolvers: [{socket_address: {address: 127.0.0.1, port_value: %d}}]
    load_assignment: {cluster_name: names, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: backend.example, port_value: %d}}}}]}]}
  listeners:
  - name: inbound
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_certificate_sds_secret_configs:
            - name: default
              sds_config: &sds {resource_api_version: V3, initial_fetch_timeout: 0s, api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: sds-grpc}}]}}
            validation_context_sds_secret_config: {name: ROOTCA, sds_config: *sds}
      filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: inbound
          route_config: &routes
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - {match: {prefix: /names}, route: {cluster: names, timeout: 0s}}
              - {match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "hello"}}}
          http_filters: [&router {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
  - name: web
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          route_config: *routes
          http_filters:
          - name: tokens
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
              providers: {a: {issuer: "https://issuer.example", local_jwks: {inline_string: '%s'}}}
              rules: [{match: {prefix: /}, requires: {provider_name: a}}]
          - *router
`

// newOutageEnvoy starts an Envoy with all that it has from an agent.
func newOutageEnvoy(t *testing.T) *outageEnvoy {
	t.Helper()
	binary, dir := envoytest.Binary(t), t.TempDir()
	e := &outageEnvoy{t: t, authority: newSigner(t), crlFile: filepath.Join(dir, "crl.pem")}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	discard := slog.New(slog.DiscardHandler)
	files, err := sds.NewFiles(sds.FilesConfig{Debounce: 10 * time.Millisecond, Logger: discard})
	must(err)
	e.run(files)
	e.peer = e.workload(sds.WorkloadConfig{TTL: 24 * time.Hour, Files: files, CRLFile: e.crlFile})
	socket, err := net.Listen("unix", filepath.Join(dir, "s"))
	must(err)
	secrets, err := sds.NewServer(sds.ServerConfig{Listener: socket, Workload: e.peer, Files: files, Logger: discard})
	must(err)
	e.run(secrets)
	sockets, err := dns.Listen("127.0.0.1:0", nil, nil)
	must(err)
	e.names, err = dns.New(dns.Config{Sockets: sockets, Domain: "default.svc.cluster.local", Namespace: "default", Logger: discard})
	must(err)
	e.names.Update(&nds.Table{Hosts: map[string]nds.Host{"backend.example": {IPs: []string{"127.0.0.1"}, Registry: "External"}}})
	e.run(e.names)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)

	key, err := certs.NewKey(certs.ECDSAP256)
	must(err)
	issuer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	must(err)
	signed, err := issuer.Sign(fmt.Appendf(nil, `{"iss": "https://issuer.example", "sub": "ann", "exp": %d}`, time.Now().Add(time.Hour).Unix()))
	must(err)
	e.token, err = signed.CompactSerialize()
	must(err)
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public()}}})
	must(err)
	config, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	must(os.WriteFile(config, fmt.Appendf(nil, outageConfig, socket.Addr(), sockets[0].UDP.LocalAddr().(*net.UDPAddr).Port, backend.Listener.Addr().(*net.TCPAddr).Port, keys), 0o600))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, binary, "-c", config, "--admin-address-path", admin, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn")
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	must(cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("Envoy wrote:\n%s", output.String())
		}
	})
	e.eventually("Envoy's listeners", func() bool {
		address, err := os.ReadFile(admin)
		e.admin = string(address)
		return err == nil && len(address) > 0 && e.listeners()
	})
	return e
}

// workload runs a workload of the authority.
func (e *outageEnvoy) workload(cfg sds.WorkloadConfig) *sds.Workload {
	e.t.Helper()
	cfg.ID = certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "web"}
	cfg.Sign, cfg.Logger = e.authority.sign, slog.New(slog.DiscardHandler)
	w, err := sds.NewWorkload(cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	e.run(w)
	e.eventually("a certificate", func() bool { return w.Certificate() != nil })
	return w
}

// run runs a part until the test ends.
func (e *outageEnvoy) run(part interface{ Run(context.Context) error }) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := part.Run(ctx); err != nil {
			e.t.Error(err)
		}
	})
	e.t.Cleanup(func() { cancel(); running.Wait() })
}

func (e *outageEnvoy) eventually(what string, ok func() bool) {
	e.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			e.t.Fatalf("timeout while waiting for %s", what)
		}
	}
}

// get returns the body of a response with status 200.
func (e *outageEnvoy) get(address, path string) (string, error) {
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+e.token)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s", resp.Status, body)
	}
	return string(body), err
}

// listeners reads the addresses of Envoy's listeners.
func (e *outageEnvoy) listeners() bool {
	text, err := e.get(e.admin, "/listeners")
	addresses := map[string]string{}
	for line := range strings.Lines(text) {
		name, address, _ := strings.Cut(strings.TrimSpace(line), "::")
		addresses[name] = address
	}
	e.inbound, e.web = addresses["inbound"], addresses["web"]
	return err == nil && e.inbound != "" && e.web != ""
}

// resolved returns how often Envoy has resolved the name.
func (e *outageEnvoy) resolved() (n int) {
	text, err := e.get(e.admin, "/stats?filter=cluster.names.update_success")
	if err == nil {
		_, err = fmt.Sscanf(text, "cluster.names.update_success: %d", &n)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return n
}

// bracket is when something ended: after the beginning of the last attempt that succeeded, before the
// end of the first one that was refused.
type bracket struct{ accepted, refused time.Time }

// connect lets a client with a certificate send a request to the listener with mutual TLS.
func (e *outageEnvoy) connect(cert *tls.Certificate, b *bracket) {
	began := time.Now()
	conn, err := tls.Dial("tcp", e.inbound, &tls.Config{Certificates: []tls.Certificate{*cert}, InsecureSkipVerify: true}) // Envoy verifies
	var resp *http.Response
	if err == nil {
		defer func() { _ = conn.Close() }()                                // the response has been read
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web\r\n\r\n") // in TLS 1.3, the refusal follows: reading returns it
		resp, err = http.ReadResponse(bufio.NewReader(conn), nil)
	}
	var refusal *net.OpError
	switch {
	case err == nil && resp.StatusCode == http.StatusOK:
		if b.accepted = began; !b.refused.IsZero() {
			e.t.Error("Envoy accepts a connection after it has refused one")
		}
	case b.refused.IsZero() && errors.As(err, &refusal) && refusal.Op == "remote error":
		b.refused = time.Now()
	}
}

// TestOutageEnvoy compares the clock with what Envoy does while control plane, authority and issuer are
// away. It refuses the workload's certificate, and what a revocation list covers, within 2 s of the
// announced moments; the keys of issuers, the names and the configuration, which have no limit, work
// for longer than three of the times after which they would have been renewed.
func TestOutageEnvoy(t *testing.T) {
	t.Parallel()
	const exact = 2 * time.Second
	e := newOutageEnvoy(t)
	revoked := e.workload(sds.WorkloadConfig{TTL: time.Hour}).Certificate()
	for life := 4 * time.Second; ; life *= 4 { // a busy machine may not be ready within a short life
		e.authority.away.Store(false)
		web := e.workload(sds.WorkloadConfig{TTL: life})
		e.authority.away.Store(true)
		begun := time.Now()
		if err := os.WriteFile(e.crlFile, e.authority.crl(t, life+time.Second, revoked.Leaf.SerialNumber), 0o600); err != nil {
			t.Fatal(err)
		}
		e.eventually("Envoy has the revocation list", func() bool {
			var revocation, other bracket
			e.connect(revoked, &revocation)
			e.connect(e.peer.Certificate(), &other)
			return !revocation.refused.IsZero() && !other.accepted.IsZero() || time.Now().After(begun.Add(2*life))
		})
		cert, own := web.Certificate(), &builder{cfg: &settings{}, parts: &parts{workload: web}}
		if cert == nil {
			continue
		}
		peer := &builder{cfg: &settings{}, parts: &parts{workload: e.peer}}
		clock := outageCollector{func() holdings {
			h := own.kept()
			h.revocation, h.names, h.relay = peer.kept().revocation, e.names.Ready(), xdsproxy.Status{LastResponse: time.Now()}
			return h
		}}
		said, began, resolved := gathered(t, clock), time.Now(), e.resolved()
		var identity, revocations bracket
		e.eventually("refusals, and four resolutions of the name", func() bool {
			e.connect(cert, &identity)
			e.connect(e.peer.Certificate(), &revocations)
			for _, path := range []string{"/keys", "/names"} {
				if body, err := e.get(e.web, path); err != nil || body != "hello" {
					t.Fatalf("%s: got %q, %v %s after the outage began", path, body, err, time.Since(began))
				}
			}
			return !identity.refused.IsZero() && !revocations.refused.IsZero() && e.resolved() >= resolved+4
		})
		if identity.accepted.IsZero() || revocations.accepted.IsZero() || !web.Current().NotAfter.Equal(cert.Leaf.NotAfter) {
			continue // too late, or a renewal was under way when the authority went away
		}
		for what, b := range map[string]bracket{"identity": identity, "revocations": revocations} {
			end := began.Add(time.Duration(said[what] * float64(time.Second)))
			if b.accepted.After(end.Add(exact)) || b.refused.Before(end.Add(-exact)) {
				t.Errorf("%s: announced for %s, accepted at %s, refused at %s", what, end, b.accepted, b.refused)
			}
			t.Logf("%s: accepted %s before the announced moment, refused %s after it", what, end.Sub(b.accepted), b.refused.Sub(end))
		}
		for _, what := range []string{"configuration", "token_keys", "names"} {
			if !math.IsInf(said[what], 1) {
				t.Errorf("%s last %v s, want no limit", what, said[what])
			}
		}
		return
	}
}
