// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

const (
	// requestTime bounds one request, and the check of a password.
	requestTime = 5 * time.Second
	// keepAlive and keepAliveTime find a connection that is dead. A server
	// refuses pings that come more often than every 5 s.
	keepAlive     = 10 * time.Second
	keepAliveTime = 5 * time.Second
	// maxSend is more than any server takes, so that it is the server who
	// decides how large an object may be.
	maxSend = 64 << 20
	// retries of a read that failed at once, 25 ms apart.
	retries = 8
)

var errClosed = errors.New("the store is closed: its Run has ended")

// connection makes the client of etcd when it is first needed, and again when
// the credentials may have changed.
type connection struct {
	options
	// turn has room for one: who has put a token in owns what follows.
	turn   chan struct{}
	client *clientv3.Client
	closed bool
	// why is the fault for which the client before was given up.
	why error
}

func newConnection(o options) *connection {
	return &connection{options: o, turn: make(chan struct{}, 1)}
}

// get returns the client. The first caller may wait for the check of the
// password.
func (c *connection) get(ctx context.Context) (*clientv3.Client, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.closed {
		return nil, errClosed
	}
	if c.client == nil {
		client, err := c.dial(ctx)
		if err != nil {
			return nil, err
		}
		c.client = client
	}
	return c.client, nil
}

// forget makes the next get read the credentials again, if client is the
// current one. Its requests end with why.
func (c *connection) forget(client *clientv3.Client, why error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if client != nil && client == c.client {
		c.client, c.why = nil, why
		_ = client.Close() // nobody uses it again
	}
}

// reason returns why a client was given up.
func (c *connection) reason() error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if c.closed {
		return errClosed
	}
	return c.why
}

func (c *connection) close() {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.closed = true
	if c.client != nil {
		_ = c.client.Close() // nobody uses it again
		c.client = nil
	}
}

func (c *connection) dial(ctx context.Context) (*clientv3.Client, error) {
	cfg := clientv3.Config{
		Endpoints:            c.endpoints(),
		DialTimeout:          requestTime,
		DialKeepAliveTime:    keepAlive,
		DialKeepAliveTimeout: keepAliveTime,
		MaxCallSendMsgSize:   maxSend,
		MaxUnaryRetries:      retries,
		Logger:               zap.NewNop(), // what matters comes as an error
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(noteCause),
			// By default the waits grow to two minutes, in which nobody
			// would notice that etcd is back.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
				MinConnectTimeout: requestTime,
			}),
		},
	}
	var err error
	if c.tls {
		if cfg.TLS, err = c.tlsConfig(); err != nil {
			return nil, err
		}
		if c.serverName != "" {
			cfg.DialOptions = append(cfg.DialOptions, grpc.WithTransportCredentials(named{credentials.NewTLS(cfg.TLS), c.serverName}))
		}
	}
	if c.user != "" {
		cfg.Username = c.user
		if cfg.Password, err = c.password(); err != nil {
			return nil, err
		}
	}
	// The client lives on when ctx is done, but New, which asks etcd whether
	// the password is right, does not.
	a := &attempt{failFast: true}
	life, end := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), attemptKey{}, a))
	keep := context.AfterFunc(ctx, end)
	cfg.Context = life
	client, err := clientv3.New(cfg)
	if !keep() && err == nil {
		_ = client.Close() // it cannot be used
		err = ctx.Err()
	}
	if err != nil {
		end()
		return nil, a.explain(c.options, err)
	}
	context.AfterFunc(client.Ctx(), end)
	return client, nil
}

// named are credentials that look for a name in the server's certificate.
// Etcd's client would look for the host instead, whatever the tls.Config says.
type named struct {
	credentials.TransportCredentials
	name string
}

func (n named) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return n.TransportCredentials.ClientHandshake(ctx, n.name, conn)
}

func (n named) Clone() credentials.TransportCredentials {
	return named{n.TransportCredentials.Clone(), n.name}
}

// password reads the password of the user.
func (o options) password() (string, error) {
	raw, err := os.ReadFile(o.passwordFile)
	if err != nil {
		return "", &fault{class: "password", text: fmt.Sprintf("read the password of etcd's user %q: %v", o.user, err), err: err}
	}
	password := strings.TrimRight(string(raw), "\r\n")
	if password == "" {
		return "", &fault{class: "password", text: fmt.Sprintf("the file %s is empty: write the password of etcd's user %q into it", o.passwordFile, o.user)}
	}
	return password, nil
}

// tlsConfig reads the files of TLS. The client certificate is read again for
// each connection, so that it can be renewed.
func (o options) tlsConfig() (*tls.Config, error) {
	fail := func(format string, args ...any) error {
		return &fault{class: "files", text: fmt.Sprintf(format, args...)}
	}
	cfg := o.policy.Restrict(&tls.Config{MinVersion: tls.VersionTLS12})
	if o.ca != "" {
		pem, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fail("read the authorities of etcd's certificates (ca=): %v", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fail("read the authorities of etcd's certificates (ca=): %s contains no certificate: write PEM", o.ca)
		}
	}
	if o.cert != "" {
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.cert, o.key)
			if err != nil {
				return nil, fail("read the client certificate for etcd (cert= %s, key= %s): %v", o.cert, o.key, err)
			}
			return &pair, nil
		}
		if _, err := load(nil); err != nil {
			return nil, err
		}
		cfg.GetClientCertificate = load
	}
	return cfg, nil
}

// attempt goes with a request to where its error is still that of the
// connection: etcd's client gives only "deadline exceeded" of it.
type attempt struct {
	// failFast makes the request fail when there is no connection; otherwise
	// it waits for one.
	failFast bool
	cause    error
}

type attemptKey struct{}

func noteCause(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if ok && a.failFast {
		opts = append(opts, grpc.WaitForReady(false))
	}
	err := invoker(ctx, method, req, reply, cc, opts...)
	if ok && err != nil {
		a.cause = err
	}
	return err
}

// request calls one request with a bound of its own.
func (c *connection) request(ctx context.Context, failFast bool, call func(context.Context, *clientv3.Client) error) error {
	client, err := c.get(ctx)
	if err != nil {
		return err
	}
	a := &attempt{failFast: failFast}
	bounded, cancel := context.WithTimeout(context.WithValue(ctx, attemptKey{}, a), requestTime)
	defer cancel()
	err = call(bounded, client)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case client.Ctx().Err() != nil:
		return cmp.Or(c.reason(), err)
	}
	return a.explain(c.options, err)
}
