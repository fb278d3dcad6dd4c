// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package caclient

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// dialCredentials are TLS credentials that call config on each handshake.
type dialCredentials struct {
	config     func() (*tls.Config, error)
	serverName string
	client     *clientCertificate
}

// clientCertificate decides whether to present a client certificate. An authority that no longer
// trusts the certificate's issuer closes the connection, even if the token is valid.
type clientCertificate struct {
	shown   atomic.Bool // in the last handshake
	without atomic.Bool // omit it in the next handshake
}

// ClientHandshake implements credentials.TransportCredentials.
func (d *dialCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := d.config()
	if err != nil {
		return nil, nil, err
	}
	// gRPC verifies this name and ignores cfg.ServerName.
	switch {
	case d.serverName != "":
		authority = d.serverName
	case cfg.ServerName != "":
		authority = cfg.ServerName
	}
	return credentials.NewTLS(d.client.apply(cfg)).ClientHandshake(ctx, authority, conn)
}

// apply returns the configuration for one handshake.
func (c *clientCertificate) apply(cfg *tls.Config) *tls.Config {
	c.shown.Store(false)
	cfg = cfg.Clone()
	if c.without.Load() {
		cfg.Certificates, cfg.GetClientCertificate = nil, nil
		return cfg
	}
	get := cfg.GetClientCertificate
	if get == nil {
		c.shown.Store(len(cfg.Certificates) > 0)
		return cfg
	}
	cfg.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		cert, err := get(info)
		c.shown.Store(err == nil && len(cert.Certificate) > 0)
		return cert, err
	}
	return cfg
}

// refused is called after a failed call. If the client certificate may be the cause, the next call
// uses only the token. If that fails as well, the following one presents the certificate again.
func (d *dialCredentials) refused(err error, token bool, log *slog.Logger) {
	if d == nil {
		return
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Unauthenticated, codes.PermissionDenied:
	default:
		return
	}
	without := token && d.client.shown.Swap(false)
	if without {
		log.Debug("the certificate authority may not accept the client certificate; sending only the token", "err", err)
	}
	d.client.without.Store(without)
}

// accepted is called after a successful call.
func (d *dialCredentials) accepted() {
	if d != nil {
		d.client.without.Store(false)
	}
}

// ServerHandshake implements credentials.TransportCredentials. It is not supported.
func (d *dialCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are for clients")
}

// Info implements credentials.TransportCredentials.
func (d *dialCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (d *dialCredentials) Clone() credentials.TransportCredentials {
	c := *d
	return &c
}

// OverrideServerName implements credentials.TransportCredentials.
func (d *dialCredentials) OverrideServerName(name string) error {
	d.serverName = name
	return nil
}
