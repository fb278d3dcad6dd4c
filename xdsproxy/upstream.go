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

// serviceConfig makes gRPC try the addresses of a name in random order, so that a fleet
// spreads over them. If one does not answer within 250 ms, the next is tried in parallel.
const serviceConfig = `{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":true}}]}`

// UpstreamConfig configures the connection to the control plane.
type UpstreamConfig struct {
	// Address is host:port.
	Address string
	// ServerName replaces the host of Address in the TLS handshake.
	ServerName string
	// TLS is called before each dial, so that replaced files take effect; nil means
	// plaintext.
	TLS func() (*tls.Config, error)
	// Token returns the bearer token, or "" for none. It is called before each
	// stream. The token is never sent in plaintext. Optional.
	Token func() (string, error)
	// ClusterID is sent as the metadata "clusterid" unless it is empty.
	ClusterID string
	// Headers are added to the metadata of each stream.
	Headers map[string]string
	// Refused is called when the control plane ends a handshake, for example
	// because of a client certificate of a replaced authority. Optional.
	Refused func()
	// KeepaliveTime is the idle time after which a connection, upstream or
	// downstream, is probed, and KeepaliveTimeout the time to wait for the answer.
	// 0 means 30 s and 10 s.
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

// upstream dials the control plane, and counts failures across streams.
type upstream struct {
	cfg UpstreamConfig
	// target is the address in gRPC's form: every address of the name is tried.
	target     string
	maxMessage int
	log        *slog.Logger
	metrics    *metrics

	mu sync.Mutex // guards the fields below
	// delays grows with each consecutive failure. After a stream was accepted,
	// failing is false and answered is true.
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

// open returns a stream to the control plane and its connection, which the caller must
// close. It retries until ctx ends.
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
		// With gRPC's back-off the first failure ends the attempt: without it gRPC
		// would dial again before the stream receives the error.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.DefaultConfig, MinConnectTimeout: dialTimeout}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(u.maxMessage), grpc.MaxCallSendMsgSize(u.maxMessage)),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("dial %s: %w", u.cfg.Address, err)
	}
	stream, err := u.newStream(ctx, conn, method)
	if err != nil {
		_ = conn.Close() // the stream's error is more useful
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
			// A client certificate may suffice; otherwise the control plane
			// returns an error.
			u.log.Log(ctx, u.level(), "calling the control plane without a token", "err", err)
		} else if token != "" {
			md.Set("authorization", "Bearer "+token)
		}
	}
	desc := &grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true}
	return conn.NewStream(metadata.NewOutgoingContext(ctx, md), desc, "/"+service+"/"+method)
}

// level returns the level of a warning that would repeat with each attempt.
func (u *upstream) level() slog.Level {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failing {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// failure returns the number of consecutive failures, and the error of the last one.
func (u *upstream) failure() (attempts int, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.attempt, u.last
}

// answers reports whether the control plane accepted the last stream.
func (u *upstream) answers() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.answered
}

// pause waits for the back-off after consecutive failures.
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

// failed records that a stream could not be opened, or was refused.
func (u *upstream) failed(err error) {
	// gRPC reports the peer's alert only in the text.
	if u.cfg.Refused != nil && strings.Contains(err.Error(), "remote error: tls: ") {
		u.cfg.Refused()
	}
	u.mu.Lock()
	u.attempt++
	attempt := u.attempt
	u.failing, u.answered, u.last = true, false, err
	u.mu.Unlock()
	u.metrics.attempts.Set(float64(attempt))
	// The first failure may be a short restart. Logging only the attempts 2, 8, 32 …
	// keeps the log readable during a long outage.
	if attempt > 1 && bits.OnesCount(uint(attempt)) == 1 && bits.TrailingZeros(uint(attempt))%2 == 1 {
		u.log.Warn("control plane cannot be reached; envoy keeps its configuration", "address", u.cfg.Address, "attempt", attempt, "err", err)
	}
}

// succeeded records that a stream was accepted, and resets the back-off.
func (u *upstream) succeeded() {
	u.mu.Lock()
	attempt := u.attempt
	u.attempt, u.failing, u.answered, u.last = 0, false, true, nil
	u.delays.Reset()
	u.mu.Unlock()
	u.metrics.attempts.Set(0)
	if attempt > 0 {
		u.log.Info("control plane can be reached again", "address", u.cfg.Address, "attempt", attempt)
	}
}
