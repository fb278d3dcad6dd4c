// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// offer is what a client of crypto/tls offers, and the policies that admit it.
type offer struct {
	name    string
	version uint16
	suites  []uint16 // of TLS 1.2
	curve   tls.CurveID
	rsa     bool // needs a key of RSA: in TLS 1.2 one of ECDSA must be on an offered curve
	allowed []tlspolicy.Policy
}

func offers() []offer {
	gcm := []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
	chacha := []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256}
	cbc := []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA}
	only := func(p ...tlspolicy.Policy) []tlspolicy.Policy { return p }
	return []offer{
		{"TLS 1.3, X25519", tls.VersionTLS13, nil, tls.X25519, false, only("")},
		{"TLS 1.3, P-256", tls.VersionTLS13, nil, tls.CurveP256, false, only("", tlspolicy.FIPS1403)},
		{"TLS 1.3, P-384", tls.VersionTLS13, nil, tls.CurveP384, false, only(tlspolicy.FIPS1403)},
		{"TLS 1.3, X25519MLKEM768", tls.VersionTLS13, nil, tls.X25519MLKEM768, false, only(tlspolicy.PQC)},
		{"TLS 1.2, AES-GCM, P-256", tls.VersionTLS12, gcm, tls.CurveP256, false, only("", tlspolicy.FIPS1402, tlspolicy.FIPS1403)},
		{"TLS 1.2, AES-GCM, P-384", tls.VersionTLS12, gcm, tls.CurveP384, true, only(tlspolicy.FIPS1403)},
		{"TLS 1.2, AES-GCM, X25519", tls.VersionTLS12, gcm, tls.X25519, true, only("")},
		{"TLS 1.2, ChaCha20, P-256", tls.VersionTLS12, chacha, tls.CurveP256, false, nil},
		{"TLS 1.2, AES-CBC, P-256", tls.VersionTLS12, cbc, tls.CurveP256, false, nil},
	}
}

// request sends a request with a client of crypto/tls to a server that an Envoy is.
func (o offer) request(t *testing.T, address string, pairs ...tls.Certificate) error {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		MinVersion: o.version, MaxVersion: o.version, CipherSuites: o.suites, CurvePreferences: []tls.CurveID{o.curve},
		Certificates: pairs, InsecureSkipVerify: true, ServerName: "x.example.com",
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: transport, Timeout: 2 * time.Minute}).Do(req)
	if err == nil {
		_ = resp.Body.Close() // any status will do
	}
	return err
}

// TestEnvoyCompliance connects clients of crypto/tls to Envoys under each policy, and looks at what
// the Envoys offer as clients.
func TestEnvoyCompliance(t *testing.T) {
	t.Parallel()
	for _, policy := range []tlspolicy.Policy{tlspolicy.FIPS1402, tlspolicy.FIPS1403, tlspolicy.PQC} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			s := startGuarded(t, nil)
			pair, _, _ := s.identity(t, "spiffe://cluster.local/ns/ok/sa/fine")
			inbound, unrestricted := s.address+":"+s.ports["HTTP"], offers()[0]
			if err := unrestricted.request(t, inbound, pair); err != nil {
				t.Fatalf("without a policy: %v", err)
			}
			s.objects = strings.TrimSpace(s.objects) + strings.ReplaceAll(originating, "PORT_FAR", s.ports["FAR"])
			s.put(t, snapshot.Input{Compliance: policy})
			eventually(t, "the policy is in force", func() bool { return unrestricted.request(t, inbound, pair) != nil })
			gateway := s.gateway(t, policy)
			for _, o := range offers() {
				for name, err := range map[string]error{"sidecar": o.request(t, inbound, pair), "gateway": o.request(t, gateway)} {
					if o.rsa && name == "sidecar" {
						continue
					}
					if want := slices.Contains(o.allowed, policy); (err == nil) != want {
						t.Errorf("%s, %s: %v, want a connection: %t", name, o.name, err, want)
					}
				}
			}
			proxied := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: s.address + ":" + s.ports["PROXY"]})}}
			for _, host := range []string{"far.default", "web.example.com"} {
				var hello atomic.Pointer[tls.ClientHelloInfo]
				s.hello.Store(&hello)
				if status, got := get(t, proxied, "http://"+host+"/", ""); status != http.StatusOK || got != "far" {
					t.Fatalf("%s: %d %q", host, status, got)
				}
				if reason := exceeds(policy, hello.Load()); reason != "" {
					t.Errorf("the Envoy offers %s %s", host, reason)
				}
			}
		})
	}
}

// originating is a server outside the mesh, which the Envoy calls with TLS.
const originating = `
---
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.example.com]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: PORT_FAR}}]
---
kind: DestinationRule
metadata: {name: web, namespace: default}
spec: {host: web.example.com, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true, sni: web.example.com}}}
`

// exceeds returns what a client offers beyond a policy.
func exceeds(policy tlspolicy.Policy, hello *tls.ClientHelloInfo) string {
	if hello == nil {
		return "nothing: there was no handshake"
	}
	allowed := policy.Restrict(&tls.Config{})
	for _, v := range hello.SupportedVersions {
		if v < tls.VersionTLS12 {
			break // clients of TLS 1.2 list no versions, and crypto/tls adds the older ones
		}
		if v < allowed.MinVersion || v > allowed.MaxVersion {
			return tls.VersionName(v)
		}
	}
	for _, c := range hello.SupportedCurves {
		if !slices.Contains(allowed.CurvePreferences, c) {
			return c.String()
		}
	}
	for _, suite := range hello.CipherSuites {
		// Envoy cannot restrict the suites of TLS 1.3 without the curves of fips-140-3.
		known := suite == tls.TLS_CHACHA20_POLY1305_SHA256 && policy == tlspolicy.PQC
		if !known && !slices.Contains(allowed.CipherSuites, suite) {
			return tls.CipherSuiteName(suite)
		}
	}
	return ""
}

// gateway runs the Envoy of a gateway that terminates TLS, and returns the address of the server.
// Settings of the mesh and of the Gateway ask for more than any policy has.
func (s *guarded) gateway(t *testing.T, policy tlspolicy.Policy) string {
	t.Helper()
	chain, key := rsaFiles(t)
	port := freePorts(t, s.address, 1)[0]
	in := inputOf(decode(t, fmt.Sprintf(`kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  selector: {app: edge}
  servers:
  - port: {number: %s, protocol: HTTPS, name: https}
    bind: %s
    hosts: ["*"]
    tls: {mode: SIMPLE, serverCertificate: %s, privateKey: %s, minProtocolVersion: TLSV1_0, cipherSuites: [ECDHE-RSA-AES128-SHA, ECDHE-RSA-AES128-GCM-SHA256]}
`, port, s.address, chain, key)), meshconfig.Default())
	in.Compliance = policy
	proxy := &model.Proxy{ID: "edge.default", Role: "router", IPs: []string{s.address}, Namespace: "default", Labels: map[string]string{"app": "edge"}}
	mesh := snapshot.Build(nil, in, model.Change{All: true})
	runEnvoy(t, envoytest.Binary(t), withSecrets(t, t.TempDir(), staticBootstrap(t, mesh, proxy), secretOf), s.address+":"+port)
	return s.address + ":" + port
}

// rsaFiles writes a self-signed certificate of RSA and its key.
func rsaFiles(t *testing.T) (chain, key string) {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"x.example.com"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	chain, key = filepath.Join(t.TempDir(), "chain.pem"), filepath.Join(t.TempDir(), "key.pem")
	write(t, chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, key, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)}))
	return chain, key
}

// TestCompliance checks every context of TLS of every case.
func TestCompliance(t *testing.T) {
	t.Parallel()
	want := map[tlspolicy.Policy]string{
		tlspolicy.FIPS1402: `"tlsMinimumProtocolVersion":"TLSv1_2","tlsMaximumProtocolVersion":"TLSv1_2","ecdhCurves":["P-256"]`,
		tlspolicy.FIPS1403: `"tlsMinimumProtocolVersion":"TLSv1_2","tlsMaximumProtocolVersion":"TLSv1_3","ecdhCurves":["P-256","P-384"],"compliancePolicies":["FIPS_202205"]`,
		tlspolicy.PQC:      `"tlsMinimumProtocolVersion":"TLSv1_3","tlsMaximumProtocolVersion":"TLSv1_3","ecdhCurves":["X25519MLKEM768"]`,
	}
	for policy, want := range want {
		found := 0
		for _, c := range testCases(t) {
			if strings.HasPrefix(c.name, "envoyfilter") || strings.HasPrefix(c.name, "patch-") {
				continue // patches come after policies
			}
			in := c.input()
			in.Compliance = policy
			var tree any
			if err := json.Unmarshal(staticBootstrap(t, snapshot.Build(nil, in, model.Change{All: true}), c.proxy), &tree); err != nil {
				t.Fatal(err)
			}
			eachContext(tree, func(params map[string]any) {
				found++
				text, _ := json.Marshal(params["cipherSuites"])
				if !bytes.Contains(text, []byte("GCM")) || bytes.Contains(text, []byte("CHACHA")) || bytes.Contains(text, []byte(`"AES`)) {
					t.Errorf("%s: cipher suites %s", c.name, text)
				}
				delete(params, "cipherSuites")
				got, _ := json.Marshal(params)
				var wanted map[string]any
				if err := json.Unmarshal([]byte("{"+want+"}"), &wanted); err != nil {
					t.Fatal(err)
				}
				if whole, _ := json.Marshal(wanted); !bytes.Equal(whole, got) {
					t.Errorf("%s: parameters %s, want %s", c.name, got, whole)
				}
			})
		}
		if found < 100 {
			t.Errorf("policy %s: %d contexts found", policy, found)
		}
	}
}

// eachContext calls check with the parameters of each context of TLS in a configuration.
func eachContext(part any, check func(params map[string]any)) {
	switch part := part.(type) {
	case []any:
		for _, e := range part {
			eachContext(e, check)
		}
	case map[string]any:
		for name, e := range part {
			if common, ok := e.(map[string]any); ok && name == "commonTlsContext" {
				params, _ := common["tlsParams"].(map[string]any)
				check(params)
				continue
			}
			eachContext(e, check)
		}
	}
}
