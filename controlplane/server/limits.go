// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
	"github.com/outrigger-mesh/outrigger/internal/lograte"
	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// The limits of the ports. docs/operations/limits.md has the same table for operators.
const (
	// Enough for a token or a certificate chain.
	headerBytes = 64 << 10
	// The first request of a delta proxy names all of its resources: 100,000 names
	// are 10 MB. It is read after the caller is authenticated.
	messageBytes = 16 << 20
	// An agent needs five; a node proxy requests the certificates of its pods.
	streamsPerConnection = 100
	// The minimum of gRPC. A stream buffers this much of an unread message.
	streamWindow = 64 << 10
	// After a start many proxies connect at once, and wait for a processor.
	handshakeTimeout = 30 * time.Second
	// A peer that completes the handshake, but neither calls nor authenticates, uses
	// memory and a file descriptor.
	unusedTimeout = 60 * time.Second
	// Agents with a certificate do not use the connection for hours.
	idleTimeout = 5 * time.Minute
	// Time for calls in progress when a connection has reached its maximum age.
	ageGrace = 10 * time.Second
	// Few machines share an address behind a NAT; a proxy has two or three connections.
	DefaultConnectionsPerAddress = 512
	// New connections of an address per second, unless its limit is above
	// DefaultConnectionsPerAddress.
	connectionsPerSecond = 100
	// All pods of a node, or of a subnet, may have addresses of one /64 network.
	addressesPerNetwork = 16
	// Enough for a restart of 10,000 proxies; the remaining files are for stores,
	// logs and HTTP.
	maxConnections = 65536
	// Operators, kubelets, Prometheus, replicas and the API server have few
	// connections.
	httpConnections           = 512
	httpConnectionsPerAddress = 64
	// An API server uses a connection for each concurrent write, and allows 200.
	webhookConnectionsPerAddress = 256
	webhooksPort                 = "webhooks"
	// Connections that each address may have even if others must be closed for
	// them. A kubelet or a Prometheus has fewer.
	httpConnectionsFair = 8
	// Connections that are reserved for this machine.
	httpReserve = 32
	// Only requests of the API server have a body, and it waits at most 10 s.
	readTimeout = 10 * time.Second
	// The text of metrics stays in memory for a slow reader.
	stallTimeout = 10 * time.Second
	// A profile takes 30 s, a dump of a large mesh some seconds.
	writeTimeout    = 2 * time.Minute
	httpIdleTimeout = 90 * time.Second
	// Time for HTTP requests in progress at the end of the program.
	httpGrace = 5 * time.Second
)

// newConnections returns the limit of new connections of an address, in proportion to
// its limit of connections: a TLS handshake costs about a millisecond.
func newConnections(perAddress int) ratelimit.Limit {
	perAddress = max(perAddress, DefaultConnectionsPerAddress)
	return ratelimit.Limit{PerSecond: connectionsPerSecond * float64(perAddress) / DefaultConnectionsPerAddress, Burst: perAddress}
}

// callerStreams returns the limit of streams of one identity from an address, given its
// limit of connections. Zero means the default.
func callerStreams(perAddress int) int {
	if perAddress <= DefaultConnectionsPerAddress {
		return 0
	}
	return perAddress // all of them may have the same identity
}

// limits creates the listeners and servers of all ports.
type limits struct {
	log        *slog.Logger
	closed     *prometheus.CounterVec
	perAddress int
	files      int // limit of open files of the process
}

func newLimits(log *slog.Logger, cfg Config, reg prometheus.Registerer) *limits {
	l := &limits{
		log: log, perAddress: cfg.ConnectionsPerAddress, files: openFiles(),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_connections_closed_total", Help: "Connections that a limit closed, by port and limit.",
		}, []string{"port", "reason"}),
	}
	reg.MustRegister(l.closed)
	return l
}

// openFiles returns the limit of open files of the process.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // the usual minimum
	}
	return int(min(limit.Cur, 1<<20))
}

// grpcListener limits the connections of a gRPC port.
func (l *limits) grpcListener(port string, raw net.Listener) net.Listener {
	return connlimit.Listen(raw, connlimit.Config{
		Total: min(maxConnections, l.files/3), PerSource: l.perAddress, Rate: newConnections(l.perAddress), Reserved: connlimit.Loopback,
		Network: addressesPerNetwork, Evict: true, Unused: unusedTimeout, Work: connlimit.DefaultWork, OnClose: l.count(port),
	})
}

// httpListener limits the connections of an HTTP port.
func (l *limits) httpListener(port string, raw net.Listener) net.Listener {
	perAddress := httpConnectionsPerAddress
	if port == webhooksPort {
		perAddress = webhookConnectionsPerAddress
	}
	return connlimit.Listen(raw, connlimit.Config{
		Total: httpConnections, PerSource: perAddress, Rate: newConnections(perAddress), Reserved: connlimit.Loopback, Reserve: httpReserve,
		EachAddress: true, Fair: httpConnectionsFair, Stall: stallTimeout, OnClose: l.count(port),
	})
}

// count returns a function that counts the connections that a limit closes.
func (l *limits) count(port string) func(reason string) {
	for _, reason := range connlimit.Reasons() {
		l.closed.WithLabelValues(port, reason)
	}
	return func(reason string) { l.closed.WithLabelValues(port, reason).Inc() }
}

// grpcServer creates a server for ADS.
func (l *limits) grpcServer(cfg Config, creds credentials.TransportCredentials, opts ...grpc.ServerOption) *grpc.Server {
	return connlimit.NewGRPCServer(creds, connlimit.GRPC{
		HeaderBytes: headerBytes, MessageBytes: messageBytes, Streams: streamsPerConnection, Window: streamWindow,
		Handshake: handshakeTimeout, Idle: idleTimeout,
		Keepalive: cfg.Keepalive.Interval, Answer: cfg.Keepalive.Timeout, PingEvery: cfg.Keepalive.Interval / 2,
		Age: cfg.Keepalive.MaxAge, Grace: ageGrace, // 0 means no limit
	}, opts...)
}

// httpServer creates a server for users, probes, other replicas or the API server.
func (l *limits) httpServer(h http.Handler) *http.Server {
	s := connlimit.NewHTTPServer(h, connlimit.HTTP{
		HeaderBytes: headerBytes, Header: readTimeout, Read: readTimeout, Write: writeTimeout, Idle: httpIdleTimeout,
	})
	s.ErrorLog = slog.NewLogLogger(l.log.Handler(), slog.LevelDebug) // strangers can cause its messages
	return s
}

// limitLog limits the log lines that peers can cause.
func limitLog(log *slog.Logger, reg prometheus.Registerer) *slog.Logger {
	suppressed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "outrigger_control_log_lines_suppressed_total", Help: "Log lines that were dropped because there were too many of their kind.",
	})
	reg.MustRegister(suppressed)
	// There may be many invalid objects.
	messages := map[string]ratelimit.Limit{}
	for _, message := range []string{
		"a configuration object has a problem", "a problem with a configuration object is resolved", "an object does not take full effect",
		"further problems with configuration objects are not logged",
		"a path in the credentials directory cannot be read; the previous credentials stay in force", "credentials file rejected; its previous credentials stay in force",
	} {
		messages[message] = ratelimit.Limit{PerSecond: 1, Burst: 40}
	}
	return slog.New(lograte.NewHandler(lograte.Config{Next: log.Handler(), Messages: messages, Suppressed: suppressed.Inc}))
}
