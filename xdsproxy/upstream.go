// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/bits"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

// Limits of the upstream dial. The back-off is short because one agent dials
// once for one Envoy; the jitter spreads a fleet.
const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	dialTimeout  = 5 * time.Second
	// window is the HTTP/2 flow control window for responses, in bytes.
	window = 4 << 20
)

// serviceConfig has the addresses of a name tried in random order, so that a
// fleet spreads over them; one that does not answer within 250 ms gets company.
const serviceConfig = `{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":true}}]}`

// UpstreamConfig says how the control plane is reached.
type UpstreamConfig struct {
	// Address is host:port.
	Address string
	// ServerName replaces the host of Address in the TLS handshake.
	ServerName string
	// TLS is asked before each dial, so that replaced files count; nil means
	// plaintext.
	TLS func() (*tls.Config, error)
	// Token returns the bearer token, or "" for none. It is asked before each
	// stream and never sent over plaintext. Optional.
	Token func() (string, error)
	// ClusterID is sent as the metadata "clusterid" when not empty.
	ClusterID string
	// Headers are added to the metadata of each stream.
	Headers map[string]string
	// Refused is called when the control plane ends a handshake, as it does over
	// a client certificate of an authority that was replaced. Nil means nothing.
	Refused func()
	// KeepaliveTime is the silence after which a connection, this one or
	// Envoy's, is asked whether it lives, KeepaliveTimeout how long the answer
	// may take. 0: 30 s and 10 s.
	KeepaliveTime    time.Duration
	KeepaliveTimeout time.Duration
}

func (c UpstreamConfig) withDefaults() UpstreamConfig {
	if c.KeepaliveTime <= 0 {
		c.KeepaliveTime = 30 * time.Second
	}
	if c.KeepaliveTimeout <= 0 {
		c.KeepaliveTimeout = 10 * time.Second
	}
	return c
}

// upstream dials the control plane and remembers across streams how often
// that went wrong.
type upstream struct {
	cfg UpstreamConfig
	// target is the address as gRPC has it: every address of the name counts.
	target     string
	maxMessage int
	log        *slog.Logger
	metrics    *metrics

	mu sync.Mutex // guards what follows
	// delays grows with each failure in a row; failing is false, and answered
	// true, after a stream was accepted.
	delays   *backoff.ExponentialBackOff
	failing  bool
	answered bool
	attempt  int
	last     error
}

func newUpstream(cfg Config, m *metrics) *upstream {
	return &upstream{
		cfg: cfg.Upstream, target: "dns:///" + cfg.Upstream.Address, maxMessage: cfg.MaxMessage, log: cfg.Logger, metrics: m,
		delays: backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(firstBackoff),
			backoff.WithMaxInterval(maxBackoff),
			backoff.WithMaxElapsedTime(0), // no limit
		),
	}
}

// open returns a stream to the control plane and the connection under it,
// which the caller closes. It tries until ctx ends.
func (u *upstream) open(ctx context.Context, method string) (grpc.ClientStream, *grpc.ClientConn, error) {
	for {
		if err := u.pause(ctx); err != nil {
			return nil, nil, err
		}
		stream, conn, err := u.dial(ctx, method)
		if err == nil {
			return stream, conn, nil
		}
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		u.metrics.dialFailures.Inc()
		u.failed(err)
	}
}

// dial makes one attempt.
func (u *upstream) dial(ctx context.Context, method string) (grpc.ClientStream, *grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if u.cfg.TLS != nil {
		cfg, err := u.cfg.TLS()
		if err != nil {
			return nil, nil, fmt.Errorf("prepare tls: %w", err)
		}
		if u.cfg.ServerName != "" {
			cfg.ServerName = u.cfg.ServerName
		}
		creds = credentials.NewTLS(cfg)
	}
	conn, err := grpc.NewClient(u.target,
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(), // that of the name's TXT record
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDisableRetry(),
		grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: u.cfg.KeepaliveTime, Timeout: u.cfg.KeepaliveTimeout}),
		// The pause of gRPC lets the first failure end the attempt: without one it would dial
		// again before the stream hears of the failure.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.DefaultConfig, MinConnectTimeout: dialTimeout}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(u.maxMessage), grpc.MaxCallSendMsgSize(u.maxMessage)),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("dial %s: %w", u.cfg.Address, err)
	}
	stream, err := u.newStream(ctx, conn, method)
	if err != nil {
		_ = conn.Close() // the stream's error says more
		return nil, nil, fmt.Errorf("open stream to %s: %w", u.cfg.Address, err)
	}
	return stream, conn, nil
}

func (u *upstream) newStream(ctx context.Context, conn *grpc.ClientConn, method string) (grpc.ClientStream, error) {
	md := metadata.New(u.cfg.Headers)
	if u.cfg.ClusterID != "" {
		md.Set("clusterid", u.cfg.ClusterID)
	}
	if u.cfg.TLS != nil && u.cfg.Token != nil {
		token, err := u.cfg.Token()
		if err != nil {
			// A client certificate may do without; the control plane
			// says so if it does not.
			u.log.Log(ctx, u.level(), "calling the control plane without a token", "err", err)
		} else if token != "" {
			md.Set("authorization", "Bearer "+token)
		}
	}
	desc := &grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true}
	return conn.NewStream(metadata.NewOutgoingContext(ctx, md), desc, "/"+service+"/"+method)
}

// level is that of a warning that each attempt of an outage would repeat.
func (u *upstream) level() slog.Level {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failing {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// failure is how many attempts in a row have failed, and why the last one did.
func (u *upstream) failure() (attempts int, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.attempt, u.last
}

// answers tells whether the control plane took the last stream that it was
// offered.
func (u *upstream) answers() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.answered
}

// pause waits as long as the failures before demand.
func (u *upstream) pause(ctx context.Context) error {
	u.mu.Lock()
	failing, delay := u.failing, time.Duration(0)
	if failing {
		delay = u.delays.NextBackOff()
	}
	u.mu.Unlock()
	if !failing {
		return nil
	}
	u.metrics.backoffSecond.Set(delay.Seconds())
	defer u.metrics.backoffSecond.Set(0)
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// failed notes that a stream did not come about, or was refused.
func (u *upstream) failed(err error) {
	// gRPC hands on no other sign of the other side's alert.
	if u.cfg.Refused != nil && strings.Contains(err.Error(), "remote error: tls: ") {
		u.cfg.Refused()
	}
	u.mu.Lock()
	u.attempt++
	attempt := u.attempt
	u.failing, u.answered, u.last = true, false, err
	u.mu.Unlock()
	u.metrics.attempts.Set(float64(attempt))
	// The first failure may be a restart that is over at once. The attempts
	// 2, 8, 32 … keep the log readable through a long outage.
	if attempt > 1 && bits.OnesCount(uint(attempt)) == 1 && bits.TrailingZeros(uint(attempt))%2 == 1 {
		u.log.Warn("control plane cannot be reached, envoy keeps its configuration", "address", u.cfg.Address, "attempt", attempt, "err", err)
	}
}

// succeeded notes that a stream was accepted: the next failure starts anew.
func (u *upstream) succeeded() {
	u.mu.Lock()
	attempt := u.attempt
	u.attempt, u.failing, u.answered, u.last = 0, false, true, nil
	u.delays.Reset()
	u.mu.Unlock()
	u.metrics.attempts.Set(0)
	if attempt > 0 {
		u.log.Info("control plane answers again", "address", u.cfg.Address, "attempt", attempt)
	}
}
