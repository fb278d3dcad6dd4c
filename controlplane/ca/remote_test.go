// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// remote is a RemoteSigner that signs what requests contain, like a Kubernetes signer.
type remote struct {
	t      *testing.T
	pki    pki
	change func(*x509.Certificate) // modifies the leaf
	give   func(leaf *x509.Certificate) [][]byte
	err    error
	asked  chan string // the requested signer names
}

func (r *remote) Sign(_ context.Context, csrPEM []byte, name string, ttl time.Duration) ([][]byte, error) {
	r.asked <- name
	if bytes.Contains(csrPEM, []byte("admin\n")) {
		return nil, errors.New("the signer received text outside of the PEM block")
	}
	if r.err != nil {
		return nil, r.err
	}
	csr, err := certs.ParseCSR(csrPEM)
	if err != nil {
		return nil, err
	}
	leaf := issue(r.t, r.pki, &x509.Certificate{
		URIs: csr.URIs, PublicKey: csr.PublicKey, NotAfter: time.Now().Add(ttl),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, r.change)
	return r.give(leaf), nil
}

func issue(t *testing.T, p pki, tmpl *x509.Certificate, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	tmpl.SerialNumber, tmpl.NotBefore, tmpl.BasicConstraintsValid = big.NewInt(42), time.Now().Add(-time.Minute), true
	if change != nil {
		change(tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, p.cert, tmpl.PublicKey, p.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func TestRemoteSigner(t *testing.T) {
	t.Parallel()
	p, stranger, other := newPKI(t, "remote"), newPKI(t, "stranger"), newKey(t, "")
	whole := func(leaf *x509.Certificate) [][]byte {
		return [][]byte{certs.EncodeChain(leaf), certs.EncodeChain(p.cert, p.root)}
	}
	foreign, err := url.Parse("spiffe://cluster.local/ns/default/sa/admin")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		remote remote
		code   codes.Code
		says   string
	}{
		"whole chain":      {remote{give: whole}, codes.OK, ""},
		"without the root": {remote{give: func(l *x509.Certificate) [][]byte { return [][]byte{certs.EncodeChain(l, p.cert)} }}, codes.OK, ""},
		"nothing":          {remote{give: func(*x509.Certificate) [][]byte { return nil }}, codes.Internal, "it is empty"},
		"no certificate":   {remote{give: func(*x509.Certificate) [][]byte { return [][]byte{[]byte("x")} }}, codes.Internal, "no PEM block"},
		"leaf only":        {remote{give: func(l *x509.Certificate) [][]byte { return [][]byte{certs.EncodeChain(l)} }}, codes.Internal, "root of the mesh"},
		"unknown root": {remote{pki: stranger, give: func(l *x509.Certificate) [][]byte {
			return [][]byte{certs.EncodeChain(l, stranger.cert, stranger.root)}
		}}, codes.Internal, "root of the mesh"},
		"another key":      {remote{give: whole, change: func(c *x509.Certificate) { c.PublicKey = other.Public() }}, codes.Internal, "a key other than"},
		"another identity": {remote{give: whole, change: func(c *x509.Certificate) { c.URIs = []*url.URL{foreign} }}, codes.Internal, "not for"},
		"a CA certificate": {remote{give: whole, change: func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }}, codes.Internal, "of an authority"},
		"expired":          {remote{give: whole, change: func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }}, codes.Internal, "root of the mesh"},
		"failing signer":   {remote{err: errors.New("no approval")}, codes.Internal, "no approval"},
		"invalid request":  {remote{err: ca.ErrRequest}, codes.InvalidArgument, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := tc.remote
			r.t, r.asked = t, make(chan string, 1)
			if r.pki.cert == nil {
				r.pki = p
			}
			a := serve(t, func(c *ca.ServiceConfig) { c.Remote = &r })
			if err := a.SetRoots("remote", certs.EncodeChain(p.root)); err != nil {
				t.Fatal(err)
			}
			c := a.caller(t, "web")
			resp, err := c.ask("CertSigner", "example.com/signer")
			if status.Code(err) != tc.code || tc.says != "" && !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got error %v, want %s with %q", err, tc.code, tc.says)
			}
			if got := <-r.asked; got != "example.com/signer" {
				t.Errorf("signer %q was asked, want example.com/signer", got)
			}
			if err != nil {
				return
			}
			var elements [][]byte
			for _, e := range resp.GetCertChain() {
				elements = append(elements, []byte(e))
			}
			if len(elements) != 3 || string(elements[2]) != string(a.RootPEM()) {
				t.Errorf("the response has %d elements, want leaf, intermediate and roots", len(elements))
			}
			trusts(t, certs.EncodeChain(p.root), elements[:2]...)
			if !strings.Contains(a.log.String(), "signed by example.com/signer") || !strings.Contains(a.log.String(), "serial=2A") {
				t.Errorf("the log does not name the signer and the serial number: %s", a.log.String())
			}
		})
	}
}

func TestRemoteSignerByDefault(t *testing.T) {
	t.Parallel()
	r := &remote{t: t, err: errors.New("no approval"), asked: make(chan string, 1)}
	a := serve(t, func(c *ca.ServiceConfig) { c.Remote, c.RemoteName = r, "example.com/default" })
	if _, err := a.caller(t, "web").ask(); err == nil {
		t.Error("the authority signed although the remote signer is the default")
	}
	if got := <-r.asked; got != "example.com/default" {
		t.Errorf("signer %q was asked, want example.com/default", got)
	}
	if _, err := serve(t).caller(t, "web").ask("CertSigner", "x"); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "other signers are not available here") {
		t.Errorf("without a remote signer: got error %v", err)
	}
}

// TestRemoteRequestsArePlain checks that requests to a remote signer contain only the identity,
// because the signer certifies everything in the request.
func TestRemoteRequestsArePlain(t *testing.T) {
	t.Parallel()
	r := &remote{t: t, err: errors.New("the signer received the request"), asked: make(chan string, 10)}
	a := serve(t, func(c *ca.ServiceConfig) { c.Remote = r })
	id := web()
	uri, err := url.Parse(id.String())
	if err != nil {
		t.Fatal(err)
	}
	uris := []*url.URL{uri}
	for name, tc := range map[string]struct {
		csr  x509.CertificateRequest
		says string
	}{
		"plain":          {x509.CertificateRequest{URIs: uris}, "the signer received the request"},
		"empty O":        {x509.CertificateRequest{URIs: uris, Subject: pkix.Name{Organization: []string{""}}}, "the signer received the request"},
		"no name":        {x509.CertificateRequest{}, "nothing else"},
		"group of users": {x509.CertificateRequest{URIs: uris, Subject: pkix.Name{Organization: []string{"system:masters"}}}, "empty subject"},
		"DNS name":       {x509.CertificateRequest{URIs: uris, DNSNames: []string{"kubernetes.default.svc"}}, "nothing else"},
		"address":        {x509.CertificateRequest{URIs: uris, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}}, "nothing else"},
		"two names":      {x509.CertificateRequest{URIs: []*url.URL{uri, uri}}, "nothing else"},
		// A user principal name, for a signer that evaluates otherName.
		"name of another type": {x509.CertificateRequest{ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 17}, Value: slices.Concat(
			[]byte{0x30, byte(2 + len(id.String()) + 4), 0x86, byte(len(id.String()))}, []byte(id.String()), []byte{0xa0, 2, 5, 0})}}}, "nothing else"},
		"other extension": {x509.CertificateRequest{URIs: uris, ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}}}, "no extension"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := a.caller(t, "web")
			c.csr = "admin\n" + string(foreignCSR(t, newKey(t, ""), &tc.csr)) + "admin\n"
			if _, err := c.ask("CertSigner", "x"); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got error %v, want one with %q", err, tc.says)
			}
		})
	}
}

// TestRemoteRequestsHaveNoOtherAttribute checks attributes in which a signer may find extensions
// that the library ignores.
func TestRemoteRequestsHaveNoOtherAttribute(t *testing.T) {
	t.Parallel()
	r := &remote{t: t, err: errors.New("the signer received the request"), asked: make(chan string, 10)}
	a := serve(t, func(c *ca.ServiceConfig) { c.Remote = r })
	id := web()
	for name, tc := range map[string]struct {
		attribute []byte
		says      string
	}{
		"none": {nil, "the signer received the request"},
		// SEQUENCE of the identifier and a SET of one NULL.
		"other extensions": {[]byte{0x30, 16, 6, 10, 0x2b, 6, 1, 4, 1, 0x82, 0x37, 2, 1, 14, 0x31, 2, 5, 0}, "no attribute"},
		"a password":       {[]byte{0x30, 15, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 7, 0x31, 2, 5, 0}, "no attribute"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := a.caller(t, "web")
			c.csr = string(requestWith(t, newKey(t, ""), id, tc.attribute))
			if _, err := c.ask("CertSigner", "x"); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got error %v, want one with %q", err, tc.says)
			}
		})
	}
}

// requestWith returns a certificate request with an additional attribute, which the library cannot
// create.
func requestWith(t *testing.T, key crypto.Signer, id certs.ID, attribute []byte) []byte {
	t.Helper()
	csr, err := certs.ParseCSR(newCSR(t, key, id))
	if err != nil {
		t.Fatal(err)
	}
	var content struct {
		Version         int
		Subject, Public asn1.RawValue
		Attributes      []asn1.RawValue `asn1:"tag:0"`
	}
	if _, err := asn1.Unmarshal(csr.RawTBSCertificateRequest, &content); err != nil {
		t.Fatal(err)
	}
	if attribute != nil {
		content.Attributes = append(content.Attributes, asn1.RawValue{FullBytes: attribute})
	}
	tbs, err := asn1.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := crypto.SignMessage(key, rand.Reader, tbs, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	der, err := asn1.Marshal(struct {
		Content   asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		asn1.RawValue{FullBytes: tbs},
		pkix.AlgorithmIdentifier{Algorithm: []int{1, 2, 840, 10045, 4, 3, 2}},
		asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}
