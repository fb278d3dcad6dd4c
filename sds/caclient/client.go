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
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"
)

const (
	callTimeout = 10 * time.Second
	dialTimeout = 5 * time.Second
	// maxHeader is the maximum size of the headers of a response from the authority, in bytes.
	maxHeader = 64 << 10
	// idleTimeout is the time after which a connection to a busy authority is closed if unused.
	idleTimeout = time.Minute
)

// Config configures a Client.
type Config struct {
	Address    string                      // host:port of the authority
	ServerName string                      // name that the authority's certificate must contain; empty means the host of Address
	TLS        func() (*tls.Config, error) // called on each dial, so that replaced roots are used; nil means plaintext
	Token      func() (string, error)      // called on each request; nil or an empty token means that none is sent
	// AllowPlaintextToken sends the token even if TLS is nil, in which case anyone on the network
	// path can read it.
	AllowPlaintextToken bool
	ClusterID           string                // sent as metadata ClusterID, unless empty
	CertSigner          string                // sent as CertSigner in the metadata of the request, even if empty
	Headers             map[string]string     // additional metadata of each call, also sent in plaintext
	Logger              *slog.Logger          // nil means slog.Default()
	Registerer          prometheus.Registerer // nil means no metrics
}

// Client requests certificates from one authority.
type Client struct {
	cfg     Config
	options []grpc.DialOption
	creds   *dialCredentials // nil in plaintext
	metrics *metrics
	skewed  atomic.Bool // the clock difference has been logged

	mu     sync.Mutex       // guards the fields below
	conn   *grpc.ClientConn // nil until the next call
	closed bool
}

// New returns a Client. It does not dial.
func New(cfg Config) (*Client, error) {
	if _, _, err := net.SplitHostPort(cfg.Address); err != nil {
		return nil, fmt.Errorf("certificate authority %q: the address is not of the form host:port: %w", cfg.Address, err)
	}
	for name, value := range cfg.Headers {
		if err := checkHeader(name, value); err != nil {
			return nil, fmt.Errorf("certificate authority %s: header %q %w; see CA_HEADER_", cfg.Address, name, err)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, metrics: m}
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		c.creds = &dialCredentials{config: cfg.TLS, serverName: cfg.ServerName, client: &clientCertificate{}}
		creds = c.creds
	}
	c.options = []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithIdleTimeout(idleTimeout),
		grpc.WithNoProxy(), // like the relay: agents connect to the control plane directly
		grpc.WithDisableRetry(),
		grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: dialTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
	}
	if cfg.ServerName != "" {
		c.options = append(c.options, grpc.WithAuthority(cfg.ServerName))
	}
	return c, nil
}

// Run waits until ctx is done and closes the connection.
func (c *Client) Run(ctx context.Context) error {
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// connection returns the current connection, or a new one that dials on its first call. The name is
// resolved on each dial (passthrough): gRPC's DNS resolver would retry a name that did not exist
// only after up to two minutes.
func (c *Client) connection() (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("the agent ends")
	}
	if c.conn != nil {
		return c.conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+c.cfg.Address, c.options...)
	if err != nil {
		return nil, err
	}
	c.conn = conn
	return conn, nil
}

// drop closes a connection. Renewals are hours apart, so the authority need not keep a connection
// for each proxy of the mesh. The next call dials again with the current roots and certificate.
func (c *Client) drop(conn *grpc.ClientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn {
		c.conn = nil
		_ = conn.Close() // it is no longer used
	}
}

// Sign sends a PEM certificate request and returns the certificates of the response unchanged: the
// leaf first, the roots last. It makes one attempt. The error has a method RetryAfter()
// time.Duration if the authority said when to retry.
func (c *Client) Sign(ctx context.Context, csrPEM []byte, ttl time.Duration) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	token, tokenErr := c.token()
	if token != "" && c.cfg.TLS == nil && !c.cfg.AllowPlaintextToken {
		return nil, fmt.Errorf("asking certificate authority %s: the connection is plaintext, over which the token is not sent; use the authority's TLS port (15012)", c.cfg.Address)
	}
	conn, err := c.connection()
	if err != nil {
		return nil, fmt.Errorf("asking certificate authority %s: %w", c.cfg.Address, err)
	}
	request := &securityv1alpha1.IstioCertificateRequest{
		Csr:              string(csrPEM),
		ValidityDuration: int64(math.Ceil(ttl.Seconds())),
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"CertSigner": structpb.NewStringValue(c.cfg.CertSigner),
		}},
	}
	var header, trailer metadata.MD
	start := time.Now()
	resp, err := securityv1alpha1.NewIstioCertificateServiceClient(conn).CreateCertificate(
		metadata.NewOutgoingContext(ctx, c.metadata(token)), request, grpc.Header(&header), grpc.Trailer(&trailer))
	end := time.Now()
	c.metrics.latency.Add(float64(end.Sub(start).Microseconds()) / 1000)
	c.observeClock(clock{start: start, end: end, date: first(header, "date"), chain: resp.GetCertChain(), ttl: request.GetValidityDuration()})
	if status.Code(err) != codes.ResourceExhausted { // a retry over the same connection is cheap
		c.drop(conn)
	}
	if err != nil {
		c.creds.refused(err, token != "", c.cfg.Logger)
		after := retryAfter(err, header, trailer)
		err = fmt.Errorf("asking certificate authority %s: %w", c.cfg.Address, explain(err, token, tokenErr))
		if after > 0 {
			err = &busyError{error: err, after: after}
		}
		return nil, err
	}
	c.creds.accepted()
	// A response with a single certificate would not say which root to trust.
	if n := len(resp.GetCertChain()); n < 2 {
		return nil, fmt.Errorf("asking certificate authority %s: the response has %d certificates; it must have the leaf first and the root last", c.cfg.Address, n)
	}
	chain := make([][]byte, 0, len(resp.GetCertChain()))
	for _, pem := range resp.GetCertChain() {
		chain = append(chain, []byte(pem))
	}
	return chain, nil
}

// metadata returns the metadata of each call.
func (c *Client) metadata(token string) metadata.MD {
	md := metadata.New(c.cfg.Headers)
	if c.cfg.ClusterID != "" {
		md.Set("clusterid", c.cfg.ClusterID)
	}
	if token != "" {
		md.Set("authorization", "Bearer "+token)
	}
	return md
}

// checkHeader returns an error if a header cannot be sent.
func checkHeader(name, value string) error {
	name = strings.ToLower(name)
	switch {
	case name == "":
		return errors.New("has no name")
	case name == "authorization" || name == "clusterid" || strings.HasPrefix(name, "grpc-"):
		return errors.New("is set by the agent itself")
	case strings.HasSuffix(name, "-bin"):
		return errors.New("is of the binary kind, which is not supported")
	}
	for _, b := range []byte(name) {
		if !(b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '-' || b == '_' || b == '.') {
			return fmt.Errorf("contains %q; only letters, digits, '-', '_' and '.' are allowed", b)
		}
	}
	for _, b := range []byte(value) {
		if b < ' ' || b > '~' {
			return errors.New("has a value with a byte that is not allowed in headers")
		}
	}
	return nil
}

// token returns the token. A missing token is not an error: a machine may authenticate with a
// client certificate instead.
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
			return "", errors.New("it contains a byte that is not allowed in tokens; the file is damaged")
		}
	}
	return token, nil
}

// explain adds the reason for a missing token to an error that it may have caused, and removes the
// token from the text of the response.
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
