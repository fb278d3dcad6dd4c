// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// issuer is a certificate authority and its files.
type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	file string
}

func newIssuer(t testing.TB, dir, name string) *issuer {
	t.Helper()
	i := &issuer{file: filepath.Join(dir, name+"-ca.pem")}
	i.cert, i.key, i.pem = certificate(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}, nil)
	write(t, i.file, i.pem)
	return i
}

// issue returns a certificate for a name, and writes it and its key to files.
func (i *issuer) issue(t testing.TB, name string) (pair tls.Certificate, chain, key string) {
	t.Helper()
	cert, private, pemText := certificate(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}, i)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	chain, key = filepath.Join(filepath.Dir(i.file), name+".pem"), filepath.Join(filepath.Dir(i.file), name+".key")
	write(t, chain, pemText)
	write(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: private, Leaf: cert}, chain, key
}

// revoke writes a revocation list for the given certificates.
func (i *issuer) revoke(t *testing.T, certs ...*x509.Certificate) string {
	t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	for _, c := range certs {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now().Add(-time.Minute)})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, i.cert, i.key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(filepath.Dir(i.file), fmt.Sprintf("%d.crl", len(certs)))
	write(t, path, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
	return path
}

// certificate returns a certificate that the issuer signs, or a self-signed one if the issuer is
// nil.
func certificate(t testing.TB, template *x509.Certificate, by *issuer) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		t.Fatal(err)
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// tlsServer is an application that uses TLS. It responds with the SNI and the name of the client.
func tlsServer(t *testing.T, own tls.Certificate, clients *x509.CertPool) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			client = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		_, _ = fmt.Fprintf(w, "%s/%s rest", r.TLS.ServerName, client) // the client detects missing data
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // some handshakes are expected to fail
	s.TLS = &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12}
	if clients != nil {
		s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, clients
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return portOf(t, s.Listener.Addr())
}

// TestOriginatedTLS checks TLS to external servers, verified as the rule requires and never
// replaced by plaintext.
func TestOriginatedTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, other := newIssuer(t, dir, "good"), newIssuer(t, dir, "other")
	server, _, _ := good.issue(t, "web.example.com")
	_, clientChain, clientKey := good.issue(t, "client")
	pool := x509.NewCertPool()
	pool.AddCert(good.cert)
	open, closed := tlsServer(t, server, nil), tlsServer(t, server, pool)
	const refused = "503 "
	client := ", clientCertificate: " + clientChain + ", privateKey: " + clientKey
	for i, tc := range []struct{ name, port, tls, want string }{
		{"the host of the request is asked for and checked", open, "mode: SIMPLE, caCertificates: " + good.file, "200 web.example.com/nobody"},
		{"other roots", open, "mode: SIMPLE, caCertificates: " + other.file, refused},
		{"roots of the machine", open, "mode: SIMPLE", refused},
		{"unchecked", open, "mode: SIMPLE, insecureSkipVerify: true", "200 web.example.com/nobody"},
		{"expected name", open, "mode: SIMPLE, caCertificates: " + good.file + ", subjectAltNames: [x.example.com, web.example.com]", "200 web.example.com/nobody"},
		{"other name", open, "mode: SIMPLE, caCertificates: " + good.file + ", subjectAltNames: [x.example.com]", refused},
		{"other server", open, "mode: SIMPLE, caCertificates: " + good.file + ", sni: x.example.com", refused},
		{"other server with the name", open, "mode: SIMPLE, caCertificates: " + good.file + ", sni: x.example.com, subjectAltNames: [web.example.com]", "200 x.example.com/nobody"},
		{"not revoked", open, "mode: SIMPLE, caCertificates: " + good.file + ", caCrl: " + good.revoke(t), "200 web.example.com/nobody"},
		{"revoked", open, "mode: SIMPLE, caCertificates: " + good.file + ", caCrl: " + good.revoke(t, server.Leaf), refused},
		{"a client certificate", closed, "mode: MUTUAL, caCertificates: " + good.file + client, "200 web.example.com/client"},
		{"no client certificate", closed, "mode: SIMPLE, caCertificates: " + good.file, refused},
		{"roots in a ConfigMap", open, "mode: SIMPLE, credentialName: 'configmap://" + good.file + "'", "200 web.example.com/nobody"},
		{"other roots in a ConfigMap", open, "mode: SIMPLE, credentialName: 'configmap://" + other.file + "'", refused},
		{"plaintext to TLS", open, "mode: DISABLE", "400 "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBalancing(t, fmt.Sprintf("127.77.56.%d", 100+i), balanced("{tls: {"+tc.tls+"}}", tc.port), nil)
			status, word := b.get(t, webURL, "")
			if got := fmt.Sprintf("%d %s", status, word); !strings.HasPrefix(got, tc.want) {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
