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
	HeaderBytes int           // of a request, with its line
	Header      time.Duration // until the header of a request has come
	Read        time.Duration // until the body has come; zero means that handlers see to it
	Write       time.Duration // until the response is read; zero means that handlers, and Config.Stall, see to it
	Idle        time.Duration // between two requests
}

// NewHTTPServer returns a server with limits, which is to serve a [Listener]. It
// speaks HTTP/1.1 only: a connection has one request at a time.
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
	HeaderBytes  uint32        // of the decoded header of a call
	MessageBytes int           // of a message of a peer
	Streams      uint32        // of a connection at once
	Window       int32         // bytes that a stream holds before its handler reads them; 64 KiB at least
	Handshake    time.Duration // of TLS and HTTP/2
	Idle         time.Duration // without a call; zero means no limit, for the server's own proxy
	Keepalive    time.Duration // how often the server asks whether the peer is there
	Answer       time.Duration // until the peer has to answer that
	PingEvery    time.Duration // how often the peer may ask; more often ends the connection
	Age, Grace   time.Duration // of a connection; zero means no end
}

// NewGRPCServer returns a server with limits, which is to serve a [Listener]. A
// Config.Work of the listener limits the frames of peers.
func NewGRPCServer(creds credentials.TransportCredentials, l GRPC, opts ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(meteredCredentials{creds}),
		grpc.MaxHeaderListSize(l.HeaderBytes),
		grpc.MaxRecvMsgSize(l.MessageBytes),
		grpc.MaxConcurrentStreams(l.Streams),
		// Windows of a fixed size: otherwise gRPC measures the connection with a
		// ping after each request, and may let a stream hold 16 MiB.
		grpc.InitialWindowSize(l.Window),
		grpc.InitialConnWindowSize(l.Window),
		grpc.ConnectionTimeout(l.Handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: l.Keepalive, Timeout: l.Answer, MaxConnectionIdle: l.Idle, MaxConnectionAge: l.Age, MaxConnectionAgeGrace: l.Grace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: l.PingEvery, PermitWithoutStream: true}),
	}, opts...)...)
}
