// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/certs"
)

// ClientCertificate authenticates callers by their certificate in the TLS handshake.
type ClientCertificate struct {
	trustDomain string
	aliases     []string
}

// NewClientCertificate returns an Authenticator that accepts certificates of the given trust domain
// and of its aliases. An alias is another name of the same trust domain: its workloads get
// identities of trustDomain. The TLS configuration of the server determines the accepted roots.
func NewClientCertificate(trustDomain string, aliases ...string) (*ClientCertificate, error) {
	for _, td := range append([]string{trustDomain}, aliases...) {
		if err := certs.ValidateTrustDomain(td); err != nil {
			return nil, fmt.Errorf("authentication by client certificate: %w", err)
		}
	}
	return &ClientCertificate{trustDomain: trustDomain, aliases: slices.Clone(aliases)}, nil
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
	return c.caller(&info.State, time.Now())
}

// caller returns the caller of a connection. The handshake has verified the certificate chain;
// caller checks what the handshake does not.
func (c *ClientCertificate) caller(state *tls.ConnectionState, now time.Time) (*Caller, error) {
	if len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return nil, refuse("client certificate: none was presented")
	}
	leaf := state.VerifiedChains[0][0]
	if len(state.PeerCertificates) == 0 || !leaf.Equal(state.PeerCertificates[0]) {
		return nil, refuse("client certificate: the verified chain does not begin with the certificate of the peer")
	}
	if leaf.IsCA {
		return nil, refuse("client certificate: it is the certificate of an authority, not of a workload")
	}
	// A connection may outlive the certificate that was used to open it.
	if now.After(leaf.NotAfter.Add(defaultLeeway)) {
		return nil, refuse("client certificate: it expired at %s; connect again with the renewed one", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	id, err := certs.CertificateID(leaf)
	if err != nil {
		return nil, refuse("client certificate: %s", err.Error())
	}
	if id.TrustDomain != c.trustDomain && !slices.Contains(c.aliases, id.TrustDomain) {
		return nil, refuse("client certificate: its trust domain is %q, that of this mesh is %q", id.TrustDomain, c.trustDomain)
	}
	id.TrustDomain = c.trustDomain
	return &Caller{ID: id, Method: MethodClientCertificate, Serial: leaf.SerialNumber}, nil
}
