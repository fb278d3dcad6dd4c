// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	// firstWait and longestWait are those of Istio's client.
	firstWait   = 500 * time.Millisecond
	longestWait = time.Minute
	// steady is how long a stream has to last for the next one to be tried
	// soon.
	steady = 5 * time.Second
	// connectTime bounds one connection attempt.
	connectTime = 10 * time.Second
	// keepAlive is how long a connection is silent before it is probed, and
	// keepAliveTime how long the answer may take. Servers that think that this
	// is too often end the connection; then it is done half as often, up to
	// longestKeepAlive, which no server thinks of that way.
	keepAlive        = 30 * time.Second
	longestKeepAlive = 10 * time.Minute
	keepAliveTime    = 10 * time.Second
	// window is that of a stream and of a connection.
	window = 1 << 20
	// maxResponse is more than the objects of any mesh: full states of 10,000
	// objects are some 10 MB.
	maxResponse = 256 << 20
)

// node says who takes the objects.
type node struct{ *corev3.Node }

// newNode returns the node as Istio's client writes it. The version is larger
// than any, so that the server leaves nothing out for an older client.
func newNode(name, namespace, revision string) node {
	text := func(s string) *structpb.Value { return structpb.NewStringValue(s) }
	return node{&corev3.Node{
		Id: fmt.Sprintf("sidecar~%s~%s.%s~%s.svc.cluster.local", ownAddress(), name, namespace, namespace),
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"GENERATOR": text("api"), "NAMESPACE": text(namespace),
			"ISTIO_REVISION": text(revision), "ISTIO_VERSION": text("65536.65536.65536"),
		}},
	}}
}

// ownAddress returns an address of this machine for the node; nothing connects
// to it.
func ownAddress() string {
	addresses, err := net.InterfaceAddrs()
	if err == nil {
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				return n.IP.String()
			}
		}
	}
	return "127.0.0.1"
}

// credentials reads the files that show who the server and the client are.
// The second is nil if there is no token.
func (s *Store) credentials() (credentials.TransportCredentials, credentials.PerRPCCredentials, error) {
	if !s.tls {
		return insecure.NewCredentials(), nil, nil
	}
	cfg, err := s.tlsConfig()
	if err != nil {
		return nil, nil, err
	}
	if s.token == "" {
		return credentials.NewTLS(cfg), nil, nil
	}
	token, err := s.bearer()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(cfg), bearer(token), nil
}

// bearer sends a token over TLS.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return true }

// dial makes a connection with what the files hold now.
func (s *Store) dial() (*grpc.ClientConn, error) {
	transport, token, err := s.credentials()
	if err != nil {
		return nil, err
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: s.lasting, Timeout: keepAliveTime}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.DefaultConfig, MinConnectTimeout: connectTime}),
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
	}
	if token != nil {
		opts = append(opts, grpc.WithPerRPCCredentials(token))
	}
	return grpc.NewClient("passthrough:///"+s.address, opts...)
}

// follow opens one stream after another until ctx is done.
func (s *Store) follow(ctx context.Context) error {
	wait := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstWait), backoff.WithMaxInterval(longestWait), backoff.WithMaxElapsedTime(0))
	for {
		lasted, err := s.stream(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if strings.Contains(err.Error(), "too_many_pings") {
			s.lasting = min(2*s.lasting, longestKeepAlive)
		}
		s.tell(err)
		if lasted >= steady {
			wait.Reset()
		}
		pause := time.NewTimer(wait.NextBackOff())
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

// stream runs one stream, and says how long the server had it.
func (s *Store) stream(ctx context.Context) (lasted time.Duration, err error) {
	conn, err := s.dial()
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // nobody uses it again
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := s.open(ctx, discoveryv3.NewAggregatedDiscoveryServiceClient(conn))
	if err != nil {
		return 0, err
	}
	start := time.Now()
	err = (&session{Store: s, wire: w, taken: map[string]string{}, rejections: map[string]*rejectedType{}}).run(ctx, cancel)
	return time.Since(start), err
}

// ownPort finds the client's own end of a connection, which is another one each
// time.
var ownPort = regexp.MustCompile(`\S+:\d+->`)

// tell tells of trouble with the server: the handler each time, the log once.
func (s *Store) tell(err error) {
	err = fmt.Errorf("config source %s: %w", s.name, err)
	s.WatchError(err)
	if text := ownPort.ReplaceAllString(err.Error(), ""); text != s.lost {
		s.lost = text
		s.log.Warn("the configuration server cannot be watched; known objects stay in force", "err", err)
	}
}

// found says that the trouble is over.
func (s *Store) found() {
	if s.lost != "" {
		s.lost = ""
		s.log.Info("the configuration server is watched again", "name", s.name)
	}
}
