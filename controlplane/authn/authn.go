// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/certs"
)

// ErrUnauthenticated is wrapped by each error of an Authenticator.
var ErrUnauthenticated = errors.New("unauthenticated")

// Caller is a peer whose identity was verified.
type Caller struct {
	ID     certs.ID
	Method string // what proved it: MethodJWT or MethodClientCertificate
}

// The values of Caller.Method.
const (
	MethodJWT               = "jwt"
	MethodClientCertificate = "client_certificate"
)

// Authenticator tells who makes the gRPC call that ctx belongs to.
type Authenticator interface {
	Authenticate(ctx context.Context) (*Caller, error)
}

// Any returns an Authenticator that tries the given ones in their order and
// takes the first success. Its error holds the reason of each of them.
func Any(methods ...Authenticator) Authenticator {
	return anyOf(methods)
}

type anyOf []Authenticator

// Authenticate implements Authenticator.
func (a anyOf) Authenticate(ctx context.Context) (*Caller, error) {
	if len(a) == 0 {
		return nil, refuse("no method of authentication is configured")
	}
	var reasons string
	for _, m := range a {
		caller, err := m.Authenticate(ctx)
		if err == nil {
			return caller, nil
		}
		if reasons != "" {
			reasons += "; "
		}
		reasons += reason(err)
	}
	return nil, &refusal{reason: reasons}
}

// refusal is an error with a reason that may be shown to the caller.
type refusal struct{ reason string }

func (r *refusal) Error() string { return ErrUnauthenticated.Error() + ": " + r.reason }

func (r *refusal) Unwrap() error { return ErrUnauthenticated }

func refuse(format string, args ...any) error {
	return &refusal{reason: fmt.Sprintf(format, args...)}
}

// reason returns the text of an error without the words that all of them share.
func reason(err error) string {
	var r *refusal
	if errors.As(err, &r) {
		return r.reason
	}
	return err.Error()
}

// ClientCertificate authenticates by the certificate that the caller presented
// in the TLS handshake.
type ClientCertificate struct {
	trustDomain string
}

// NewClientCertificate returns an Authenticator that takes certificates of the
// given trust domain. Which roots a certificate may lead to is decided by the
// TLS configuration of the server.
func NewClientCertificate(trustDomain string) (*ClientCertificate, error) {
	if err := certs.ValidateTrustDomain(trustDomain); err != nil {
		return nil, fmt.Errorf("authentication by client certificate: %w", err)
	}
	return &ClientCertificate{trustDomain: trustDomain}, nil
}

// Authenticate implements Authenticator.
func (c *ClientCertificate) Authenticate(ctx context.Context) (*Caller, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, refuse("client certificate: the call has no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil, refuse("client certificate: the connection is not TLS")
	}
	chains := info.State.VerifiedChains
	if len(chains) == 0 || len(chains[0]) == 0 {
		return nil, refuse("client certificate: none was presented")
	}
	id, err := certs.CertificateID(chains[0][0])
	if err != nil {
		return nil, refuse("client certificate: %s", err.Error())
	}
	if id.TrustDomain != c.trustDomain {
		return nil, refuse("client certificate: it is of trust domain %q, this mesh is %q", id.TrustDomain, c.trustDomain)
	}
	return &Caller{ID: id, Method: MethodClientCertificate}, nil
}
