// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	// serverTTL is the lifetime of a server certificate.
	serverTTL = 24 * time.Hour
	// serverRetry is the delay after a failed renewal while the old certificate is still valid.
	serverRetry = time.Minute
)

// ServerCertificate returns the TLS configuration of a gRPC server, with a certificate for the
// given names and addresses that the authority signs. The certificate is renewed during a handshake
// once half of its lifetime is over, or when the signer changes. Client certificates are optional;
// if presented, they must be valid certificates of the mesh and not revoked.
func (a *Authority) ServerCertificate(dnsNames []string, ips []net.IP) (*tls.Config, error) {
	if len(dnsNames)+len(ips) == 0 {
		return nil, errors.New("making server certificate: there is neither a name nor an address to certify")
	}
	s := &serverCertificate{authority: a, dnsNames: slices.Clone(dnsNames), ips: slices.Clone(ips)}
	if _, err := s.get(nil); err != nil {
		return nil, err
	}
	cfg := s.config(a.state.Load())
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current(), nil }
	return cfg, nil
}

type serverCertificate struct {
	authority *Authority
	dnsNames  []string
	ips       []net.IP

	// mu guards the fields below. Handshakes run concurrently, and only one of them may renew; the
	// others wait for a fraction of a millisecond.
	mu      sync.Mutex
	cert    *tls.Certificate
	signer  string // fingerprint of the issuer
	renewAt time.Time
	// forClients is the configuration for the roots of state. Sessions can be resumed as long as it
	// does not change.
	forClients *tls.Config
	state      *state
}

// config returns a configuration for the roots of a state.
func (s *serverCertificate) config(st *state) *tls.Config {
	return &tls.Config{
		GetCertificate:   s.get,
		MinVersion:       tls.VersionTLS12,
		ClientAuth:       tls.VerifyClientCertIfGiven,
		ClientCAs:        st.pool,
		NextProtos:       []string{"h2"},
		VerifyConnection: s.verify,
	}
}

// current returns the configuration for the current roots.
func (s *serverCertificate) current() *tls.Config {
	st := s.authority.state.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != st {
		s.forClients, s.state = s.config(st), st
	}
	return s.forClients
}

// verify implements tls.Config.VerifyConnection.
func (s *serverCertificate) verify(c tls.ConnectionState) error {
	if !s.authority.state.Load().crl.good(c.VerifiedChains) {
		return errors.New("the client certificate, or an authority above it, is revoked")
	}
	return nil
}

// get implements tls.Config.GetCertificate.
func (s *serverCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	signer := s.authority.state.Load().signer
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.cert != nil && now.Before(s.renewAt) && s.signer == signer.print {
		return s.cert, nil
	}
	cert, err := s.issue(signer)
	switch {
	case err == nil:
		s.cert, s.signer = cert, signer.print
		s.renewAt = now.Add(cert.Leaf.NotAfter.Sub(now) / 2)
		return cert, nil
	case s.cert != nil && now.Before(s.cert.Leaf.NotAfter):
		s.authority.cfg.Logger.Warn("server certificate not renewed; the previous one stays in use",
			"err", err, "expires", s.cert.Leaf.NotAfter.Format(time.RFC3339))
		s.renewAt, s.signer = now.Add(serverRetry), signer.print
		return s.cert, nil
	default:
		return nil, err
	}
}

func (s *serverCertificate) issue(from *signer) (*tls.Certificate, error) {
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		return nil, err
	}
	leaf, err := from.issueServer(&x509.Certificate{
		DNSNames:    s.dnsNames,
		IPAddresses: s.ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public(), serverTTL)
	if err != nil {
		return nil, fmt.Errorf("making server certificate for %v %v: %w", s.dnsNames, s.ips, err)
	}
	s.authority.cfg.Logger.Info("certificate issued", "kind", "server", "name", strings.Join(s.dnsNames, ","),
		"serial", serialText(leaf.SerialNumber), "expires", leaf.NotAfter.UTC().Format(time.RFC3339), "source", from.kind,
		"reason", "the control plane's own server needs it")
	cert := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, c := range from.chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return cert, nil
}
