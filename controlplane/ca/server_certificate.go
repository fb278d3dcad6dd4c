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
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	// serverTTL is the life of a server's certificate.
	serverTTL = 24 * time.Hour
	// serverRetry is how long a renewal that did not work is left alone while
	// the old certificate is still valid.
	serverRetry = time.Minute
)

// ServerCertificate returns the TLS configuration of a gRPC server whose
// certificate is signed by the authority for the given names and addresses. The
// certificate is renewed by a handshake once half of its life is over. A client
// may present a certificate of the mesh; if it does, it must be valid.
func (a *Authority) ServerCertificate(dnsNames []string, ips []net.IP) (*tls.Config, error) {
	if len(dnsNames)+len(ips) == 0 {
		return nil, errors.New("making server certificate: there is neither a name nor an address to certify")
	}
	s := &serverCertificate{authority: a, dnsNames: slices.Clone(dnsNames), ips: slices.Clone(ips)}
	if _, err := s.get(nil); err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	for _, r := range a.roots {
		roots.AddCert(r)
	}
	return &tls.Config{
		GetCertificate: s.get,
		MinVersion:     tls.VersionTLS12,
		ClientAuth:     tls.VerifyClientCertIfGiven,
		ClientCAs:      roots,
		NextProtos:     []string{"h2"},
	}, nil
}

type serverCertificate struct {
	authority *Authority
	dnsNames  []string
	ips       []net.IP

	// mu guards the fields below. Handshakes run at the same time, and only one
	// of them may renew; the others wait the fraction of a millisecond it takes.
	mu      sync.Mutex
	current *tls.Certificate
	renewAt time.Time
}

// get implements tls.Config.GetCertificate.
func (s *serverCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.current != nil && now.Before(s.renewAt) {
		return s.current, nil
	}
	cert, err := s.issue()
	switch {
	case err == nil:
		s.current = cert
		s.renewAt = now.Add(cert.Leaf.NotAfter.Sub(now) / 2)
		return cert, nil
	case s.current != nil && now.Before(s.current.Leaf.NotAfter):
		s.authority.logger.Warn("server certificate not renewed, the old one stays",
			"err", err, "expires", s.current.Leaf.NotAfter.Format(time.RFC3339))
		s.renewAt = now.Add(serverRetry)
		return s.current, nil
	default:
		return nil, err
	}
}

func (s *serverCertificate) issue() (*tls.Certificate, error) {
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		return nil, err
	}
	leaf, err := s.authority.issue(&x509.Certificate{
		DNSNames:    s.dnsNames,
		IPAddresses: s.ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public(), serverTTL)
	if err != nil {
		return nil, fmt.Errorf("making server certificate for %v %v: %w", s.dnsNames, s.ips, err)
	}
	cert := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, c := range s.authority.intermediates {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return cert, nil
}
