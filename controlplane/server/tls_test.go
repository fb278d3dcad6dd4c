// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// newPair returns a self-signed certificate and its key.
func newPair(t *testing.T, name string, authority bool) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: authority, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if key, err = certs.MarshalKey(k); err != nil {
		t.Fatal(err)
	}
	return certs.EncodeChain(c), key
}

func write(t *testing.T, files map[string][]byte) {
	t.Helper()
	for name, text := range files {
		if err := errors.Join(os.WriteFile(name+".new", text, 0o600), os.Rename(name+".new", name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOwnCertificate checks that replaced certificate files are served. Invalid files must leave
// the last valid ones in use and be reported once.
func TestOwnCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	var log bytes.Buffer
	o := &ownCertificate{certFile: certFile, keyFile: keyFile, log: slog.New(slog.NewTextHandler(&log, nil))}
	if _, err := o.get(nil); err == nil || !strings.Contains(err.Error(), certFile) {
		t.Errorf("without files: got error %v, want one with the path", err)
	}
	first, firstKey := newPair(t, "first", false)
	second, secondKey := newPair(t, "second", false)
	for _, step := range []struct {
		name      string
		cert, key []byte
		want      string
	}{
		{"first", first, firstKey, "first"},
		{"half replaced", second, firstKey, "first"},
		{"still", second, firstKey, "first"},
		{"replaced", second, secondKey, "second"},
		{"broken", []byte("x"), secondKey, "second"},
	} {
		write(t, map[string][]byte{certFile: step.cert, keyFile: step.key})
		o.looked = time.Time{}
		got, err := o.get(nil)
		if err != nil || got.Leaf.Subject.CommonName != step.want {
			t.Errorf("%s: got %v, error %v", step.name, got, err)
		}
	}
	if n := strings.Count(log.String(), "the previous one stays in force"); n != 2 || strings.Contains(log.String(), "PRIVATE") {
		t.Errorf("%d lines in the log, want 2 without the key:\n%s", n, log.String())
	}
}

// TestServedNames checks that the certificate is valid for every name by which proxies, API servers
// and users of Istio reach a control plane.
func TestServedNames(t *testing.T) {
	t.Parallel()
	mesh := filepath.Join(t.TempDir(), "mesh")
	write(t, map[string][]byte{mesh: []byte("defaultConfig: {discoveryAddress: mesh.example.org:15012}")})
	for name, tc := range map[string]struct {
		revision, custom, mesh string
		namespace              string
		valid, invalid         []string
	}{
		"default": {
			revision: "default", namespace: "istio-system",
			invalid: []string{"istiod-default.istio-system.svc", "istiod.other.svc", "mesh.example.org", "istiod"},
		},
		"no revision": {namespace: "mesh", invalid: []string{"istiod-.mesh.svc", "istiod-default.mesh.svc"}},
		"revision": {
			revision: "1-30", namespace: "istio-system",
			valid: []string{"istiod-1-30.istio-system.svc", "istiod-1-30.istio-system.svc.cluster.local"},
		},
		"custom hosts":      {namespace: "a", custom: "istiod.example.org, 10.0.0.9,localhost", valid: []string{"istiod.example.org", "10.0.0.9"}},
		"discovery address": {namespace: "a", mesh: mesh, valid: []string{"mesh.example.org"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(c *Config) {
				c.Revision, c.CustomHosts, c.Namespace = tc.revision, tc.custom, tc.namespace
				if tc.mesh != "" {
					c.Mesh.File = tc.mesh
				}
			})
			conn, err := tls.Dial("tcp", s.ports.listeners.secure.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			if err != nil {
				t.Fatal(err)
			}
			leaf := conn.ConnectionState().PeerCertificates[0]
			_ = conn.Close()
			valid := append(tc.valid, "localhost", "127.0.0.1", "::1", testHost)
			for _, service := range []string{"istiod", "istiod-remote", "istio-pilot"} {
				valid = append(valid, service+"."+tc.namespace+".svc", service+"."+tc.namespace+".svc.cluster.local")
			}
			for _, host := range valid {
				if err := leaf.VerifyHostname(host); err != nil {
					t.Error(err)
				}
			}
			for _, host := range tc.invalid {
				if leaf.VerifyHostname(host) == nil {
					t.Errorf("the certificate is valid for %s, want not: %q", host, leaf.DNSNames)
				}
			}
			for i, host := range leaf.DNSNames {
				if slices.Contains(leaf.DNSNames[:i], host) {
					t.Errorf("%s is in the certificate twice", host)
				}
			}
		})
	}
}

func TestTLSConfig(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		c    TLSConfig
		says string
	}{
		"nothing":         {},
		"both":            {c: TLSConfig{CertFile: "c", KeyFile: "k", RootFile: "r"}},
		"certificate":     {c: TLSConfig{CertFile: "c"}, says: "belong together"},
		"roots alone":     {c: TLSConfig{RootFile: "r"}, says: "without --tlsCertFile"},
		"custom, nothing": {c: TLSConfig{Provider: CertProviderCustom}, says: "there is no ./var/run/secrets/istiod/tls/tls.crt"},
	} {
		own, roots, err := tc.c.files()
		if tc.says != "" {
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: got error %v, want one with %q", name, err, tc.says)
			}
			continue
		}
		if err != nil || (own != nil) != (tc.c.CertFile != "") || roots != tc.c.RootFile {
			t.Errorf("%s: got %v, %q, error %v", name, own, roots, err)
		}
	}
	c := TLSConfig{Suites: []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", " TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"}}
	if ids, err := c.ciphers(); err != nil || len(ids) != 2 || ids[0] != tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 {
		t.Errorf("ciphers() = %v, %v", ids, err)
	}
	c.Suites = []string{"TLS_RSA_WITH_RC4_128_SHA"}
	if _, err := c.ciphers(); err == nil || !strings.Contains(err.Error(), "RC4") {
		t.Errorf("an insecure suite: got error %v, want one with RC4", err)
	}
}

func TestMeshRoots(t *testing.T) {
	t.Parallel()
	root, _ := newPair(t, "root", true)
	pem := func(domains ...string) *meshv1alpha1.MeshConfig_CertificateData {
		return &meshv1alpha1.MeshConfig_CertificateData{
			CertificateData: &meshv1alpha1.MeshConfig_CertificateData_Pem{Pem: string(root)}, TrustDomains: domains,
		}
	}
	url := &meshv1alpha1.MeshConfig_CertificateData{CertificateData: &meshv1alpha1.MeshConfig_CertificateData_SpiffeBundleUrl{SpiffeBundleUrl: "https://x/bundle"}}
	for name, tc := range map[string]struct {
		given []*meshv1alpha1.MeshConfig_CertificateData
		roots int
		says  string
	}{
		"none":            {},
		"two":             {given: []*meshv1alpha1.MeshConfig_CertificateData{pem(), pem("cluster.local", "old")}, roots: 2},
		"bundle":          {given: []*meshv1alpha1.MeshConfig_CertificateData{pem(), url}, says: `caCertificates[1] names the bundle "https://x/bundle"`},
		"of another mesh": {given: []*meshv1alpha1.MeshConfig_CertificateData{pem("far")}, says: `caCertificates[0] is for the trust domain "far"`},
	} {
		got, err := meshRoots(&meshv1alpha1.MeshConfig{TrustDomain: "cluster.local", TrustDomainAliases: []string{"old"}, CaCertificates: tc.given})
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) || bytes.Count(got, []byte("BEGIN")) != tc.roots {
			t.Errorf("%s: got %q, error %v", name, got, err)
		}
	}
}

// TestCompliance connects clients of each policy, and of none, to the ports of TLS.
func TestCompliance(t *testing.T) {
	t.Parallel()
	for _, policy := range []tlspolicy.Policy{tlspolicy.FIPS1402, tlspolicy.FIPS1403, tlspolicy.PQC} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			chain, key := newPair(t, testHost, false)
			files := TLSConfig{CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key"), Suites: []string{"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"}}
			write(t, map[string][]byte{files.CertFile: chain, files.KeyFile: key})
			for _, own := range []TLSConfig{{}, files} {
				s := serve(t, func(c *Config) { c.Compliance, c.TLS = policy, own })
				for _, other := range []tlspolicy.Policy{"", tlspolicy.FIPS1402, tlspolicy.FIPS1403, tlspolicy.PQC} {
					client := other.Restrict(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
					conn, err := tls.Dial("tcp", s.ports.listeners.secure.Addr().String(), client)
					if err == nil {
						_ = conn.Close()
					}
					if want := (other == tlspolicy.PQC) == (policy == tlspolicy.PQC) || other == ""; (err == nil) != want {
						t.Errorf("a client of policy %q: %v, want a connection: %t", other, err, want)
					}
				}
				weak := &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}}
				if conn, err := tls.Dial("tcp", s.ports.listeners.secure.Addr().String(), weak); err == nil {
					_ = conn.Close()
					t.Error("X25519 is accepted")
				}
			}
		})
	}
}
