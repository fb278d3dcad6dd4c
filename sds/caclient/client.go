// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package caclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"
)

const (
	callTimeout = 10 * time.Second
	// idleTimeout closes the connection between renewals, which are hours
	// apart: the authority need not keep one open for each proxy of the mesh.
	idleTimeout = time.Minute
)

// Config describes a Client.
type Config struct {
	Address    string                      // host:port of the authority
	ServerName string                      // name that the authority's certificate must hold; empty means the host of Address
	TLS        func() (*tls.Config, error) // called at each dial, so that replaced roots are used; nil means plaintext
	Token      func() (string, error)      // called at each call; nil or an empty token means that none is sent
	// AllowPlaintextToken sends the token even where TLS is nil, readable for
	// everybody on the way.
	AllowPlaintextToken bool
	ClusterID           string                // sent as metadata ClusterID; empty means not at all
	CertSigner          string                // sent as CertSigner of the request's metadata
	Logger              *slog.Logger          // nil means slog.Default()
	Registerer          prometheus.Registerer // nil means no metrics
}

// Client asks one authority for certificates.
type Client struct {
	cfg     Config
	conn    *grpc.ClientConn
	api     securityv1alpha1.IstioCertificateServiceClient
	latency prometheus.Counter
}

// New returns a Client. It dials nothing.
func New(cfg Config) (*Client, error) {
	if _, _, err := net.SplitHostPort(cfg.Address); err != nil {
		return nil, fmt.Errorf("certificate authority %q: the address is not of the form host:port: %w", cfg.Address, err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	latency, err := newLatency(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = &dialCredentials{config: cfg.TLS, serverName: cfg.ServerName}
	}
	// The name is resolved at each dial (passthrough): the DNS resolver of gRPC
	// would wait up to two minutes after a name that did not exist yet.
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithIdleTimeout(idleTimeout),
		grpc.WithNoProxy(), // as the relay: agents reach the control plane directly
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
	}
	if cfg.ServerName != "" {
		options = append(options, grpc.WithAuthority(cfg.ServerName))
	}
	conn, err := grpc.NewClient("passthrough:///"+cfg.Address, options...)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", cfg.Address, err)
	}
	return &Client{cfg: cfg, conn: conn, api: securityv1alpha1.NewIstioCertificateServiceClient(conn), latency: latency}, nil
}

// Run waits until ctx is done and closes the connection.
func (c *Client) Run(ctx context.Context) error {
	<-ctx.Done()
	return c.conn.Close()
}

// Sign has a PEM certificate request signed and returns the elements of the
// answer as they came: the leaf first, the roots last. It makes one attempt.
func (c *Client) Sign(ctx context.Context, csrPEM []byte, ttl time.Duration) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	token, tokenErr := c.token()
	if token != "" {
		if c.cfg.TLS == nil && !c.cfg.AllowPlaintextToken {
			return nil, fmt.Errorf("asking certificate authority %s: the connection is plaintext, over which the token is not sent; use the authority's TLS port (15012)", c.cfg.Address)
		}
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	if c.cfg.ClusterID != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "clusterid", c.cfg.ClusterID)
	}
	start := time.Now()
	resp, err := c.api.CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{
		Csr:              string(csrPEM),
		ValidityDuration: int64(math.Ceil(ttl.Seconds())),
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"CertSigner": structpb.NewStringValue(c.cfg.CertSigner),
		}},
	})
	c.latency.Add(float64(time.Since(start).Microseconds()) / 1000)
	if err != nil {
		return nil, fmt.Errorf("asking certificate authority %s: %w", c.cfg.Address, explain(err, token, tokenErr))
	}
	// An answer of one element would leave open which root to trust.
	if n := len(resp.GetCertChain()); n < 2 {
		return nil, fmt.Errorf("asking certificate authority %s: the answer has %d certificates; it must have the leaf first and the root last", c.cfg.Address, n)
	}
	chain := make([][]byte, 0, len(resp.GetCertChain()))
	for _, pem := range resp.GetCertChain() {
		chain = append(chain, []byte(pem))
	}
	return chain, nil
}

// token reads the token. That there is none is no error: a machine may prove
// its identity with a client certificate instead.
func (c *Client) token() (string, error) {
	if c.cfg.Token == nil {
		return "", errors.New("none is configured")
	}
	token, err := c.cfg.Token()
	if err != nil {
		return "", err
	}
	token = strings.TrimSpace(token)
	if token == "" {
		return "", errors.New("it is empty")
	}
	for _, b := range []byte(token) {
		if b <= ' ' || b > '~' {
			return "", errors.New("it holds a byte that no token has; the file is damaged")
		}
	}
	return token, nil
}

// explain adds why no token was sent where that may be the cause, and takes the
// token out of what the authority answered.
func explain(err error, token string, tokenErr error) error {
	code := status.Code(err)
	if tokenErr != nil && (code == codes.Unauthenticated || code == codes.PermissionDenied) {
		return fmt.Errorf("%w (no token was sent: %w)", err, tokenErr)
	}
	if token != "" && strings.Contains(err.Error(), token) {
		return status.Error(code, strings.ReplaceAll(status.Convert(err).Message(), token, "[token]"))
	}
	return err
}

// dialCredentials is TLS whose configuration is asked for at each handshake.
type dialCredentials struct {
	config     func() (*tls.Config, error)
	serverName string
}

// ClientHandshake implements credentials.TransportCredentials.
func (d *dialCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := d.config()
	if err != nil {
		return nil, nil, err
	}
	// gRPC verifies the name that it is given here and not cfg.ServerName.
	switch {
	case d.serverName != "":
		authority = d.serverName
	case cfg.ServerName != "":
		authority = cfg.ServerName
	}
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
}

// ServerHandshake implements credentials.TransportCredentials; a client has none.
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

func newLatency(reg prometheus.Registerer) (prometheus.Counter, error) {
	c := prometheus.NewCounter(prometheus.CounterOpts{
		Name:        "istio_agent_outgoing_latency",
		Help:        "Time that requests to other servers took in all, in milliseconds.",
		ConstLabels: prometheus.Labels{"request_type": "csr"},
	})
	if reg == nil {
		return c, nil
	}
	if err := reg.Register(c); err != nil {
		return nil, fmt.Errorf("registering metrics of the certificate authority client: %w", err)
	}
	return c, nil
}
