// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// pair returns a certificate for shop.example, and its key.
func (s *signer) pair(t *testing.T, life time.Duration) (chain, key []byte) {
	t.Helper()
	private, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life), DNSNames: []string{"shop.example"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, s.root, private.Public(), s.key)
	if err != nil {
		t.Fatal(err)
	}
	if key, err = certs.MarshalKey(private); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}

// gatewaySecrets are the secrets of three listeners: of gateway they are those of a Secret, and of files they
// are in files, which the agent reads. Of own they are those of gateway, but Envoy itself reads the
// revocation list from a file.
type gatewaySecrets struct {
	authority *signer
	dir       string
	files     struct{ chain, key, roots, crl string }
	ends      map[string]time.Time // by part of the clock
}

func (g *gatewaySecrets) init(t *testing.T, dir string, authority *signer) {
	g.authority, g.dir = authority, dir
	g.files.chain, g.files.key, g.files.roots = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
	g.files.crl = filepath.Join(dir, "own.crl")
	g.renew(t, time.Hour)
}

// listeners returns the listeners as the end of outageConfig.
func (g *gatewaySecrets) listeners() string {
	const listener = `
  - name: %s
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_certificate_sds_secret_configs: [%s]
            %s
      filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: gateway
          route_config: *routes
          http_filters: [*router]
`
	const roots = "validation_context_sds_secret_config: "
	of := func(name, file string) string {
		return fmt.Sprintf("{name: %q, sds_config: {path_config_source: {path: %q}}}", name, filepath.Join(g.dir, file))
	}
	return fmt.Sprintf(listener, "gateway", of("kubernetes://shop-tls", "pair.json"), roots+of("kubernetes://shop-tls-cacert", "roots.json")) +
		fmt.Sprintf(listener, "own", of("kubernetes://shop-tls", "pair.json"), fmt.Sprintf("combined_validation_context: {default_validation_context: {crl: {filename: %q}}, %s}", g.files.crl, roots+of("kubernetes://own-cacert", "own.json"))) +
		fmt.Sprintf(listener, "files", fmt.Sprintf("{name: %q, sds_config: *sds}", "file-cert:"+g.files.chain+"~"+g.files.key),
			roots+fmt.Sprintf("{name: %q, sds_config: *sds}", "file-root:"+g.files.roots))
}

// renew replaces the secrets by ones that end after life, or a second later. It returns the certificate of
// a client below the root in the file.
func (g *gatewaySecrets) renew(t *testing.T, life time.Duration) *tls.Certificate {
	t.Helper()
	write := func(path string, text []byte) {
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	inline := func(text []byte) map[string]any { return map[string]any{"inline_string": string(text)} }
	secret := func(file, name, field string, value map[string]any) {
		text, err := json.Marshal(map[string]any{"resources": []any{map[string]any{
			"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "name": name, field: value,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(g.dir, file), text)
	}
	root := func(s *signer) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.root.Raw})
	}
	later := time.Now().Add(life + time.Second).Truncate(time.Second)
	chain, key := g.authority.pair(t, life)
	secret("pair.json", "kubernetes://shop-tls", "tls_certificate", map[string]any{"certificate_chain": inline(chain), "private_key": inline(key)})
	secret("roots.json", "kubernetes://shop-tls-cacert", "validation_context",
		map[string]any{"trusted_ca": inline(root(g.authority)), "crl": inline(g.authority.crl(t, time.Until(later), big.NewInt(2)))})
	write(g.files.crl, g.authority.crl(t, time.Until(later), big.NewInt(2)))
	secret("own.json", "kubernetes://own-cacert", "validation_context", map[string]any{"trusted_ca": inline(fmt.Appendf(root(g.authority), "# %s\n", later))}) // changed: Envoy reads the list again
	write(g.files.key, key)
	write(g.files.chain, chain)
	below := newSignerFor(t, time.Until(later))
	write(g.files.roots, root(below))
	end, err := certs.ParseChain(chain)
	if err != nil {
		t.Fatal(err)
	}
	g.ends = map[string]time.Time{
		"certificate_shop-tls": end[0].NotAfter, "certificate_" + g.files.chain: end[0].NotAfter,
		"revocations_shop-tls-cacert": later, "revocations_" + g.files.crl: later, "roots_" + g.files.roots: below.root.NotAfter,
	}
	client, err := tls.X509KeyPair(below.pair(t, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return &client
}

// used reports whether Envoy uses the newest secrets.
func (g *gatewaySecrets) used(clock outageCollector) bool {
	parts := clock.holdings().outage(time.Now()).Credentials
	found := 0
	for _, p := range parts {
		if end, ok := g.ends[strings.ReplaceAll(p.What, " ", "_")]; ok && p.Until.Equal(end) {
			found++
		}
	}
	return found == len(g.ends)
}

// verify lets a client verify the certificate of a listener.
func (e *outageEnvoy) verify(listener string, b *bracket) {
	roots := x509.NewCertPool()
	roots.AddCert(e.authority.root)
	began := time.Now()
	conn, err := tls.Dial("tcp", e.listeners[listener], &tls.Config{RootCAs: roots, ServerName: "shop.example", Certificates: []tls.Certificate{*e.peer.Certificate()}})
	if err == nil {
		_ = conn.Close() // only the handshake matters
	}
	var invalid x509.CertificateInvalidError
	b.add(e.t, began, err == nil, errors.As(err, &invalid) && invalid.Reason == x509.Expired)
}
