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
	// A token or a chain of certificates fits; HPACK without end does not.
	headerBytes = 64 << 10
	// The first request of a delta proxy names all it has: 100,000 names are 10 MB.
	// It is read once the caller has proved who it is.
	messageBytes = 16 << 20
	// An agent needs five; a node proxy asks for the certificates of its pods.
	streamsPerConnection = 100
	// The least that gRPC takes. A stream holds as much of a message that nobody
	// reads yet.
	streamWindow = 64 << 10
	// Many proxies come at once after a start, and wait for a processor.
	handshakeTimeout = 30 * time.Second
	// A peer that shakes hands and then neither calls nor proves who it is costs
	// memory and a file.
	unusedTimeout = 60 * time.Second
	// Agents that have their certificate need the connection again in hours.
	idleTimeout = 5 * time.Minute
	// Calls that are under way when a connection is too old.
	ageGrace = 10 * time.Second
	// Machines behind one translated address are few; a proxy has two or three.
	DefaultConnectionsPerAddress = 512
	// New connections of an address a second, unless it may have more than
	// DefaultConnectionsPerAddress.
	connectionsPerSecond = 100
	// All pods of a node, or of a subnet, may have addresses of one /64 network.
	addressesPerNetwork = 16
	// Connections that a restart of 10,000 proxies needs; the rest of the files is
	// for stores, logs and HTTP.
	maxConnections = 65536
	// Operators, kubelets, Prometheus, replicas, the API server: few, and each has
	// few connections.
	httpConnections           = 512
	httpConnectionsPerAddress = 64
	// An API server uses a connection for each object that it is asked to write at
	// once, of which it takes 200.
	webhookConnectionsPerAddress = 256
	webhooksPort                 = "webhooks"
	// What each address may have even if others must close some for it. A kubelet or
	// a Prometheus has fewer.
	httpConnectionsFair = 8
	// Those of this machine that nobody else can use up.
	httpReserve = 32
	// Requests have no body but those of the API server, which waits 10 s at most.
	readTimeout = 10 * time.Second
	// A slow reader of metrics holds their text in memory.
	stallTimeout = 10 * time.Second
	// A profile takes 30 s, a dump of a large mesh some seconds.
	writeTimeout    = 2 * time.Minute
	httpIdleTimeout = 90 * time.Second
)

// newConnections limits how often an address connects that may have a number of
// connections, in proportion to that number: a handshake of TLS costs about a
// millisecond.
func newConnections(perAddress int) ratelimit.Limit {
	perAddress = max(perAddress, DefaultConnectionsPerAddress)
	return ratelimit.Limit{PerSecond: connectionsPerSecond * float64(perAddress) / DefaultConnectionsPerAddress, Burst: perAddress}
}

// callerStreams returns how many streams of one identity may come from an address
// that may have a number of connections. Zero means the default.
func callerStreams(perAddress int) int {
	if perAddress <= DefaultConnectionsPerAddress {
		return 0
	}
	return perAddress // of proxies with the same identity, for all that is known
}

// limits makes the listeners and servers of all ports.
type limits struct {
	log        *slog.Logger
	closed     *prometheus.CounterVec
	perAddress int
	files      int // that the process may have open
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

// openFiles returns how many files the process may have open.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // what every system grants
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

// grpcServer makes a server for ADS.
func (l *limits) grpcServer(cfg Config, creds credentials.TransportCredentials, opts ...grpc.ServerOption) *grpc.Server {
	return connlimit.NewGRPCServer(creds, connlimit.GRPC{
		HeaderBytes: headerBytes, MessageBytes: messageBytes, Streams: streamsPerConnection, Window: streamWindow,
		Handshake: handshakeTimeout, Idle: idleTimeout,
		Keepalive: cfg.Keepalive.Interval, Answer: cfg.Keepalive.Timeout, PingEvery: cfg.Keepalive.Interval / 2,
		Age: cfg.Keepalive.MaxAge, Grace: ageGrace, // no age means no end
	}, opts...)
}

// httpServer makes a server for users, probes, other replicas or the API server.
func (l *limits) httpServer(h http.Handler) *http.Server {
	s := connlimit.NewHTTPServer(h, connlimit.HTTP{
		HeaderBytes: headerBytes, Header: readTimeout, Read: readTimeout, Write: writeTimeout, Idle: httpIdleTimeout,
	})
	s.ErrorLog = slog.NewLogLogger(l.log.Handler(), slog.LevelDebug) // strangers can cause what it says
	return s
}

// limitLog limits what peers can have the program log.
func limitLog(log *slog.Logger, reg prometheus.Registerer) *slog.Logger {
	suppressed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "outrigger_control_log_lines_suppressed_total", Help: "Lines that were not written to the log because there were too many of their kind.",
	})
	reg.MustRegister(suppressed)
	// Objects can be as many and as bad as their authors like.
	messages := map[string]ratelimit.Limit{}
	for _, message := range []string{
		"a configuration object has a problem", "a problem of a configuration object is gone", "an object does not take full effect",
		"more problems of configuration objects came or went than are logged",
		"a path in the directory of credentials cannot be read; what was read before stays in force", "a file with credentials is not taken; what it held before stays in force",
	} {
		messages[message] = ratelimit.Limit{PerSecond: 1, Burst: 40}
	}
	return slog.New(lograte.NewHandler(lograte.Config{Next: log.Handler(), Messages: messages, Suppressed: suppressed.Inc}))
}
