// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	// backdate is by how much the clock of a peer may be behind ours.
	backdate = 2 * time.Minute
	// defaultRootTTL is the life of a root that is made here.
	defaultRootTTL = 10 * 365 * 24 * time.Hour
	// Sizes of RSA keys that are certified, in bits. Larger ones only cost.
	minRSA, maxRSA = 2048, 8192
)

// ErrRequest is wrapped by the errors of Sign that are the fault of the caller.
var ErrRequest = errors.New("certificate request refused")

// Config describes an Authority.
type Config struct {
	Dir         string                // holds ca-key.pem, ca-cert.pem and root-cert.pem; made with mode 0700
	TrustDomain string                // of all identities that are certified
	RootTTL     time.Duration         // life of a root that is made here; zero means 10 years
	Logger      *slog.Logger          // nil means slog.Default()
	Registerer  prometheus.Registerer // nil means no metrics
}

// Authority signs certificates. It never changes after Open, so that any number
// of goroutines may use it.
type Authority struct {
	trustDomain   string
	key           crypto.Signer
	cert          *x509.Certificate   // the issuer
	intermediates []*x509.Certificate // between leaf and root: the issuer, unless it is the root
	roots         []*x509.Certificate
	logger        *slog.Logger
}

// Open loads the key and certificate of the authority from the directory, or
// makes a self-signed ECDSA P-256 root there if the directory holds neither.
func Open(cfg Config) (*Authority, error) {
	if cfg.Dir == "" {
		return nil, errors.New("opening certificate authority: the directory is empty")
	}
	if err := certs.ValidateTrustDomain(cfg.TrustDomain); err != nil {
		return nil, fmt.Errorf("opening certificate authority: %w", err)
	}
	if cfg.RootTTL == 0 {
		cfg.RootTTL = defaultRootTTL
	}
	if cfg.RootTTL < time.Minute {
		return nil, fmt.Errorf("opening certificate authority: a root cannot live %s; give it a minute or more", cfg.RootTTL)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	m, err := openMaterial(cfg)
	if err != nil {
		return nil, fmt.Errorf("opening certificate authority in %s: %w", cfg.Dir, err)
	}
	a := &Authority{
		trustDomain: cfg.TrustDomain, key: m.key, cert: m.cert,
		intermediates: m.intermediates, roots: m.roots, logger: cfg.Logger,
	}
	if err := registerRootExpiry(cfg.Registerer, a.roots); err != nil {
		return nil, err
	}
	return a, nil
}

// RootPEM returns the roots of the mesh as PEM.
func (a *Authority) RootPEM() []byte { return certs.EncodeChain(a.roots...) }

// TrustDomain returns the trust domain of all identities that are certified.
func (a *Authority) TrustDomain() string { return a.trustDomain }

// Sign certifies the key of a PEM certificate request for the identity, which
// the caller has authenticated. Of the request, only the key is used. The
// answer is the leaf, the intermediate if there is one, and the roots, each
// element as PEM. Errors that wrap ErrRequest are the fault of the request.
func (a *Authority) Sign(csrPEM []byte, id certs.ID, ttl time.Duration) ([][]byte, error) {
	if err := id.Validate(); err != nil {
		return nil, fmt.Errorf("signing certificate: %w", err)
	}
	if id.TrustDomain != a.trustDomain {
		return nil, fmt.Errorf("signing certificate: %s is not of trust domain %s", id, a.trustDomain)
	}
	csr, err := certs.ParseCSR(csrPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if err := checkKey(csr.PublicKey); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	for _, u := range csr.URIs {
		if u.Scheme == "spiffe" && u.String() != id.String() {
			return nil, fmt.Errorf("%w: it asks for another identity than %s, which the caller has proved", ErrRequest, id)
		}
	}
	uri, err := url.Parse(id.String())
	if err != nil {
		return nil, fmt.Errorf("signing certificate for %s: %w", id, err)
	}
	leaf, err := a.issue(&x509.Certificate{
		URIs:        []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, csr.PublicKey, ttl)
	if err != nil {
		return nil, fmt.Errorf("signing certificate for %s: %w", id, err)
	}
	chain := [][]byte{certs.EncodeChain(leaf)}
	if len(a.intermediates) > 0 {
		chain = append(chain, certs.EncodeChain(a.intermediates...))
	}
	return append(chain, a.RootPEM()), nil
}

// issue completes the template and signs it. A certificate never outlives its
// issuer.
func (a *Authority) issue(tmpl *x509.Certificate, pub crypto.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("a certificate cannot live %s", ttl)
	}
	now := time.Now()
	if !now.Before(a.cert.NotAfter) {
		return nil, fmt.Errorf("the certificate of the authority ran out at %s", a.cert.NotAfter.Format(time.RFC3339))
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	tmpl.SerialNumber = serial
	tmpl.BasicConstraintsValid = true
	tmpl.NotBefore = now.Add(-backdate)
	if tmpl.NotBefore.Before(a.cert.NotBefore) {
		tmpl.NotBefore = a.cert.NotBefore
	}
	tmpl.NotAfter = now.Add(ttl)
	if tmpl.NotAfter.After(a.cert.NotAfter) {
		tmpl.NotAfter = a.cert.NotAfter
	}
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	if _, ok := pub.(*rsa.PublicKey); ok {
		tmpl.KeyUsage |= x509.KeyUsageKeyEncipherment
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, pub, a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// newSelfSigned makes a root.
func newSelfSigned(trustDomain string, ttl time.Duration) (*material, error) {
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          serial,
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(ttl),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	tmpl.Subject.Organization = []string{trustDomain}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &material{key: key, cert: cert, roots: []*x509.Certificate{cert}}, nil
}

// newSerial returns a random number of 128 bits, with the highest bit set so
// that it is never zero and always of the same length.
func newSerial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("making serial number: %w", err)
	}
	b[0] |= 0x80
	return new(big.Int).SetBytes(b[:]), nil
}

// checkKey refuses public keys that are too weak to be certified.
func checkKey(pub crypto.PublicKey) error {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() {
			return fmt.Errorf("ECDSA keys on curve %s are not certified; use P-256 or P-384", k.Curve.Params().Name)
		}
		return nil
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSA || n > maxRSA {
			return fmt.Errorf("RSA keys of %d bits are not certified; use %d to %d", n, minRSA, maxRSA)
		}
		return nil
	default:
		return fmt.Errorf("keys of type %T are not certified; use ECDSA or RSA", pub)
	}
}
