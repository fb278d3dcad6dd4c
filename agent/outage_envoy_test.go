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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/envoy"
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
	gateway   gatewaySecrets
	admin     string
	// listeners are addresses: inbound requires mutual TLS, web a token, and has /names, which is sent to
	// a name; gateway, files and own are those of gatewaySecrets.
	listeners map[string]string
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
	dir := t.TempDir()
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
	e.gateway.init(t, dir, e.authority)
	config := fmt.Sprintf(outageConfig, socket.Addr(), sockets[0].UDP.LocalAddr().(*net.UDPAddr).Port, backend.Listener.Addr().(*net.TCPAddr).Port, keys) + e.gateway.listeners()
	e.admin, e.listeners = envoytest.Start(t, config, "inbound", "web", "gateway", "files", "own")
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

// connect lets a client with a certificate send a request to a listener with mutual TLS.
func (e *outageEnvoy) connect(listener string, cert *tls.Certificate, b *bracket) {
	began := time.Now()
	conn, err := tls.Dial("tcp", e.listeners[listener], &tls.Config{Certificates: []tls.Certificate{*cert}, InsecureSkipVerify: true}) // Envoy verifies
	var resp *http.Response
	if err == nil {
		defer func() { _ = conn.Close() }()                                // the response has been read
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web\r\n\r\n") // in TLS 1.3, the refusal follows: reading returns it
		resp, err = http.ReadResponse(bufio.NewReader(conn), nil)
	}
	var refusal *net.OpError
	b.add(e.t, began, err == nil && resp.StatusCode == http.StatusOK, errors.As(err, &refusal) && refusal.Op == "remote error")
}

// add adds an attempt, which was accepted, refused, or neither.
func (b *bracket) add(t *testing.T, began time.Time, accepted, refused bool) {
	switch {
	case accepted:
		if b.accepted = began; !b.refused.IsZero() {
			t.Error("a connection is accepted after one has been refused")
		}
	case b.refused.IsZero() && refused:
		b.refused = time.Now()
	}
}

// clock returns the collector of what the workload web and Envoy have.
func (e *outageEnvoy) clock(web *sds.Workload) outageCollector {
	own, peer := &builder{cfg: &settings{}, parts: &parts{workload: web}}, &builder{cfg: &settings{}, parts: &parts{workload: e.peer}}
	secrets := newCredentials(e.t.Context(), envoy.NewAdmin(e.admin), "default", false, func() xdsproxy.Status { return xdsproxy.Status{} })
	return outageCollector{func() holdings {
		h := own.kept()
		h.revocation, h.names, h.relay = peer.kept().revocation, e.names.Ready(), xdsproxy.Status{LastResponse: time.Now()}
		h.credentials, h.unknown = secrets.all()
		return h
	}}
}

// TestOutageEnvoy compares the clock with what happens in handshakes with Envoy while control plane,
// authority and issuer are away. Within 2 s of the announced moments, Envoy refuses the workload's
// certificate, what the revocation lists of mesh and gateway cover, also those in a file that Envoy reads
// itself, and clients below a root in a file;
// clients refuse the gateway's certificates from a Secret and from files. The keys of issuers, the names
// and the configuration, which have no limit, work for longer than three of the times after which they
// would have been renewed.
func TestOutageEnvoy(t *testing.T) {
	t.Parallel()
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
		below := e.gateway.renew(t, life)
		clock := e.clock(web)
		e.eventually("Envoy has the revocation list, and the secrets of the gateway", func() bool {
			var revocation, other bracket
			e.connect("inbound", revoked, &revocation)
			e.connect("inbound", e.peer.Certificate(), &other)
			return !revocation.refused.IsZero() && !other.accepted.IsZero() && e.gateway.used(clock) || time.Now().After(begun.Add(2*life))
		})
		cert := web.Certificate()
		if cert == nil {
			continue
		}
		said, began, resolved := gathered(t, clock), time.Now(), e.resolved()
		files := e.gateway.files
		brackets := map[string]*bracket{}
		for _, part := range []string{"identity", "revocations", "certificate_shop-tls", "revocations_shop-tls-cacert", "revocations_" + files.crl, "certificate_" + files.chain, "roots_" + files.roots} {
			brackets[part] = &bracket{}
		}
		e.eventually("refusals, and four resolutions of the name", func() bool {
			e.connect("inbound", cert, brackets["identity"])
			e.connect("inbound", e.peer.Certificate(), brackets["revocations"])
			e.connect("gateway", e.peer.Certificate(), brackets["revocations_shop-tls-cacert"])
			e.connect("own", e.peer.Certificate(), brackets["revocations_"+files.crl])
			e.connect("files", below, brackets["roots_"+files.roots])
			e.verify("gateway", brackets["certificate_shop-tls"])
			e.verify("files", brackets["certificate_"+files.chain])
			for _, path := range []string{"/keys", "/names"} {
				if body, err := e.get(e.listeners["web"], path); err != nil || body != "hello" {
					t.Fatalf("%s: got %q, %v %s after the outage began", path, body, err, time.Since(began))
				}
			}
			done := e.resolved() >= resolved+4
			for _, b := range brackets {
				done = done && !b.refused.IsZero()
			}
			return done
		})
		if !e.compare(said, began, brackets) || !web.Current().NotAfter.Equal(cert.Leaf.NotAfter) {
			continue // too late, or a renewal was under way when the authority went away
		}
		e.replaceUnread(clock)
		return
	}
}

// replaceUnread replaces a revocation list that Envoy has read itself, and does not read again.
func (e *outageEnvoy) replaceUnread(clock outageCollector) {
	files := e.gateway.files
	if err := os.WriteFile(files.crl, e.authority.crl(e.t, time.Hour, big.NewInt(2)), 0o600); err != nil {
		e.t.Fatal(err)
	}
	e.eventually("the clock says who reads the list", func() bool {
		return slices.ContainsFunc(clock.holdings().outage(time.Now()).Credentials, func(p lasting) bool {
			return p.What == "revocations "+files.crl && strings.HasPrefix(p.By, "a change of its listener") && p.Until.Equal(e.gateway.ends["revocations_"+files.crl])
		})
	})
	var b bracket
	if e.connect("own", e.peer.Certificate(), &b); b.refused.IsZero() {
		e.t.Error("Envoy has read the list again, but the clock says that it has not")
	}
}

// compare compares the clock with what happened. It returns false if something had ended before the first
// attempt.
func (e *outageEnvoy) compare(said map[string]float64, began time.Time, brackets map[string]*bracket) bool {
	const exact = 2 * time.Second
	for _, b := range brackets {
		if b.accepted.IsZero() {
			return false
		}
	}
	for what, b := range brackets {
		left, known := said[what]
		end := began.Add(time.Duration(left * float64(time.Second)))
		if !known || b.accepted.After(end.Add(exact)) || b.refused.Before(end.Add(-exact)) {
			e.t.Errorf("%s: announced for %s, accepted at %s, refused at %s; the clock is %v", what, end, b.accepted, b.refused, said)
		}
		e.t.Logf("%s: accepted %s before the announced moment, refused %s after it", what, end.Sub(b.accepted), b.refused.Sub(end))
	}
	for _, what := range []string{"configuration", "token_keys", "names"} {
		if !math.IsInf(said[what], 1) {
			e.t.Errorf("%s last %v s, want no limit", what, said[what])
		}
	}
	return true
}
