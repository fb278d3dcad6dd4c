// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package connlimit

import (
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// HTTP holds the limits of an HTTP server. All fields but Read and Write are
// required.
type HTTP struct {
	HeaderBytes int           // of a request, including its request line
	Header      time.Duration // until the header of a request has been received
	Read        time.Duration // until the body has been received; zero means that handlers limit it
	Write       time.Duration // until the response has been read; zero means that handlers and Config.Stall limit it
	Idle        time.Duration // between two requests
}

// NewHTTPServer returns a server with limits, to be used with a [Listener]. It supports only
// HTTP/1.1, so that a connection has one request at a time.
func NewHTTPServer(h http.Handler, l HTTP) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Server{
		Protocols: &protocols,
		Handler:   h, ConnState: ConnState, MaxHeaderBytes: l.HeaderBytes,
		ReadHeaderTimeout: l.Header, ReadTimeout: l.Read, WriteTimeout: l.Write, IdleTimeout: l.Idle,
	}
}

// GRPC holds the limits of a gRPC server. All fields are required.
type GRPC struct {
	HeaderBytes  uint32        // decoded header of a call
	MessageBytes int           // message from a peer
	Streams      uint32        // concurrent streams per connection
	Window       int32         // bytes buffered per stream until its handler reads them; at least 64 KiB
	Handshake    time.Duration // of TLS and HTTP/2
	Idle         time.Duration // without a call; zero means no limit, for the server's own proxy
	Keepalive    time.Duration // interval of the server's keepalive pings
	Answer       time.Duration // timeout of a keepalive ping
	PingEvery    time.Duration // minimum interval of the peer's pings; more frequent pings close the connection
	Age, Grace   time.Duration // maximum age of a connection; zero means no limit
}

// NewGRPCServer returns a server with limits, to be used with a [Listener]. Config.Work of the
// listener limits the frames of peers.
func NewGRPCServer(creds credentials.TransportCredentials, l GRPC, opts ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(meteredCredentials{creds}),
		grpc.MaxHeaderListSize(l.HeaderBytes),
		grpc.MaxRecvMsgSize(l.MessageBytes),
		grpc.MaxConcurrentStreams(l.Streams),
		// Use windows of a fixed size. Otherwise gRPC measures the connection with a ping after
		// each request and may let a stream buffer 16 MiB.
		grpc.InitialWindowSize(l.Window),
		grpc.InitialConnWindowSize(l.Window),
		grpc.ConnectionTimeout(l.Handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: l.Keepalive, Timeout: l.Answer, MaxConnectionIdle: l.Idle, MaxConnectionAge: l.Age, MaxConnectionAgeGrace: l.Grace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: l.PingEvery, PermitWithoutStream: true}),
	}, opts...)...)
}
