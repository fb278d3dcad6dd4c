// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/certs"
)

// pair returns a self-signed certificate and its key.
func pair(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
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

func replace(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

// TestTLS checks that the client verifies the server's authority and name, and that the server
// verifies the client's certificate and token. All files must be read again for each connection,
// and the log must not contain a token.
func TestTLS(t *testing.T) {
	t.Parallel()
	const secret = "eyJ0b2tlbg.one"
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	serverCert, serverKey := pair(t, "istiod.test")
	clientCert, clientKey := pair(t, "client.test")
	otherCert, otherKey := pair(t, "other.test")
	replace(t, file("ca"), otherCert) // does not include the server's authority
	replace(t, file("cert"), otherCert)
	replace(t, file("key"), otherKey)
	replace(t, file("token"), []byte("wrong\n"))
	own, err := tls.X509KeyPair(serverCert, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(clientCert)
	refusals := make(chan string, 1000)
	p := newPlane(t, false, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{own}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	})), grpc.StreamInterceptor(func(srv any, g grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		md, _ := metadata.FromIncomingContext(g.Context())
		if who, _ := peer.FromContext(g.Context()); who.AuthInfo == nil || strings.Join(md.Get("authorization"), ",") != "Bearer "+secret {
			refusals <- "token"
			return status.Error(codes.Unauthenticated, "no such token")
		}
		return next(srv, g)
	}))
	p.start()
	t.Cleanup(p.stop)
	var log lockedBuffer
	s := openStore(t, p.address+"?ca="+file("ca")+"&cert="+file("cert")+"&key="+file("key")+"&servername=istiod.test&token="+file("token"),
		Config{}, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	told := make(chan error, 1000)
	s.SetWatchErrorHandler(func(err error) { told <- err })
	run(t, s)
	wait := func(says ...string) {
		t.Helper()
		for {
			select {
			case err := <-told:
				if slices.ContainsFunc(says, func(text string) bool { return strings.Contains(err.Error(), text) }) {
					return
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("timeout waiting for an error with %q:\n%s", says, log.String())
			}
		}
	}
	wait("unknown authority")
	replace(t, file("ca"), []byte("nothing"))
	wait("contains no certificate")
	replace(t, file("ca"), serverCert)
	// The server's reason for the rejection does not always arrive.
	wait("certificate required", "broken pipe", "reset by peer")
	replace(t, file("key"), clientKey)
	replace(t, file("cert"), clientCert)
	wait("no such token")
	replace(t, file("token"), []byte("\n"))
	wait("contains no token")
	replace(t, file("token"), []byte(secret+"\n"))
	select {
	case <-s.Synced():
	case <-time.After(2 * time.Minute):
		t.Fatalf("timeout waiting for the store to sync:\n%s", log.String())
	}
	for _, text := range []string{secret, "wrong"} {
		if strings.Contains(log.String(), text) {
			t.Errorf("the log contains %s:\n%s", text, log.String())
		}
	}
	if bytes.Contains([]byte(s.Name()), []byte(secret)) {
		t.Error("the name of the store contains the token")
	}
}

// TestServerName checks that a certificate for a different name is rejected.
func TestServerName(t *testing.T) {
	t.Parallel()
	cert, key := pair(t, "istiod.test")
	ca := filepath.Join(t.TempDir(), "ca")
	replace(t, ca, cert)
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, false, grpc.Creds(credentials.NewServerTLSFromCert(&own)))
	p.start()
	t.Cleanup(p.stop)
	s := openStore(t, p.address+"?ca="+ca+"&servername=another.test", Config{}, nil)
	told := make(chan error, 100)
	s.SetWatchErrorHandler(func(err error) { told <- err })
	run(t, s)
	if err := <-told; !strings.Contains(err.Error(), "another.test") || s.HasSynced() {
		t.Errorf("reported error: got %v, want one about another.test", err)
	}
}
