// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package tlspolicy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "fips-140-2", "fips-140-3", "pqc"} {
		if p, err := Parse(name); err != nil || string(p) != name {
			t.Errorf("%q: %q, %v", name, p, err)
		}
	}
	for _, name := range []string{"fips", "FIPS-140-2", "pqc "} {
		if _, err := Parse(name); err == nil || !strings.Contains(err.Error(), `"`+name+`"`) || !strings.Contains(err.Error(), "pqc, or unset it") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestRestrict connects restricted and unrestricted peers.
func TestRestrict(t *testing.T) {
	t.Parallel()
	chacha, gcm := tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
	offer := func(newest uint16, suite uint16, curve tls.CurveID) *tls.Config {
		return &tls.Config{MinVersion: newest, MaxVersion: newest, CipherSuites: []uint16{suite}, CurvePreferences: []tls.CurveID{curve}}
	}
	peers := []struct {
		name    string
		cfg     *tls.Config
		allowed []Policy
	}{
		{"TLS 1.2, AES-GCM, P-256", offer(tls.VersionTLS12, gcm, tls.CurveP256), []Policy{FIPS1402, FIPS1403}},
		{"TLS 1.2, ChaCha20, P-256", offer(tls.VersionTLS12, chacha, tls.CurveP256), nil},
		{"TLS 1.2, AES-GCM, P-384", offer(tls.VersionTLS12, gcm, tls.CurveP384), []Policy{FIPS1403}},
		{"TLS 1.2, AES-GCM, X25519", offer(tls.VersionTLS12, gcm, tls.X25519), nil},
		{"TLS 1.2, AES-CBC, P-256", offer(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.CurveP256), nil},
		{"TLS 1.3, P-256", offer(tls.VersionTLS13, 0, tls.CurveP256), []Policy{FIPS1403}},
		{"TLS 1.3, P-384", offer(tls.VersionTLS13, 0, tls.CurveP384), []Policy{FIPS1403}},
		{"TLS 1.3, X25519", offer(tls.VersionTLS13, 0, tls.X25519), nil},
		{"TLS 1.3, X25519MLKEM768", offer(tls.VersionTLS13, 0, tls.X25519MLKEM768), []Policy{PQC}},
		{"TLS 1.1", offer(tls.VersionTLS11, gcm, tls.CurveP256), nil},
		{"Go's defaults", &tls.Config{}, []Policy{FIPS1402, FIPS1403, PQC}},
	}
	for _, p := range []Policy{FIPS1402, FIPS1403, PQC} {
		for _, peer := range peers {
			for _, side := range []string{"server", "client"} {
				server, client := p.Restrict(&tls.Config{}), peer.cfg.Clone()
				if side == "client" {
					server, client = client, server
				}
				_, err := connect(t, server, client)
				if want := slices.Contains(peer.allowed, p); (err == nil) != want {
					t.Errorf("%s as %s and %s: %v, want a connection: %t", p, side, peer.name, err, want)
				}
			}
		}
	}
}

// TestRestrictKeeps: what was set before stays in force.
func TestRestrictKeeps(t *testing.T) {
	t.Parallel()
	strong := tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	state, err := connect(t, FIPS1402.Restrict(&tls.Config{CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, strong}}), &tls.Config{})
	if err != nil || state.CipherSuite != strong {
		t.Errorf("suite %s, %v", tls.CipherSuiteName(state.CipherSuite), err)
	}
	refuses := func(tls.ConnectionState) error { return errors.New("no") }
	if _, err := connect(t, FIPS1402.Restrict(&tls.Config{VerifyConnection: refuses}), &tls.Config{}); err == nil {
		t.Error("VerifyConnection has no effect any more")
	}
	suite := tls.TLS_CHACHA20_POLY1305_SHA256 // Go offers it on machines without instructions for AES only
	if err := PQC.Restrict(&tls.Config{}).VerifyConnection(tls.ConnectionState{CipherSuite: suite}); err == nil || !strings.Contains(err.Error(), "CHACHA20") {
		t.Errorf("%v", err)
	}
	var none Policy
	if cfg := none.Restrict(&tls.Config{}); cfg.VerifyConnection != nil || cfg.MinVersion != 0 {
		t.Errorf("%+v", cfg)
	}
	if _, restricted := none.Envoy(nil); restricted {
		t.Error("no policy restricts Envoy")
	}
	if params, _ := FIPS1403.Envoy([]string{"AES128-SHA", "ECDHE-RSA-AES256-GCM-SHA384"}); !slices.Equal(params.Ciphers, []string{"ECDHE-RSA-AES256-GCM-SHA384"}) {
		t.Errorf("%+v", params)
	}
}

// connect completes a handshake and returns the client's state.
func connect(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	server.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	client.InsecureSkipVerify = true
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // the connection is made
	served := make(chan error, 1)
	go func() {
		far, err := listener.Accept()
		if err == nil {
			_, err = tls.Server(far, server).Write([]byte("x"))
			_ = far.Close() // the client has seen it
		}
		served <- err
	}()
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(near, client)
	_, err = conn.Read(make([]byte, 1))
	_ = near.Close() // it is not needed any more
	return conn.ConnectionState(), errors.Join(err, <-served)
}
