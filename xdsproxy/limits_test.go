// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
)

// silent opens connections that send nothing, until the test ends.
func silent(t *testing.T, network, address string, count int) {
	t.Helper()
	for range count {
		conn, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // the server may have closed it
	}
}

// TestSilentPeersOfTheSocket checks that idle connections do not keep Envoy out, and that headers
// that are too long are rejected.
func TestSilentPeersOfTheSocket(t *testing.T) {
	t.Parallel()
	_, socket, cp, _ := startPeers(t)
	silent(t, "unix", socket, maxConns+50)
	s, closeConn, err := openStream(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn()
	receive(t, cp.got, "request beside silent peers")
	silent(t, "unix", socket, maxConns+50)
	if s.Context().Err() != nil {
		t.Error("idle connections ended the stream of Envoy")
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-long", strings.Repeat("a", 2*maxHeader))
	long, closeLong, err := openStream(ctx, socket)
	if err == nil {
		_, err = long.Recv()
	}
	closeLong()
	if err == nil {
		t.Error("a header that is too long was accepted")
	}
}

// TestSilentPeersOfDebug checks that idle connections do not block the debug port.
func TestSilentPeersOfDebug(t *testing.T) {
	t.Parallel()
	r := startRig(t, Config{}, true)
	address := startDebug(t, r, time.Minute)
	silent(t, "tcp", address, maxDebugConns+50)
	if code, body := get(t, "http://"+address+"/agent/xds"); code != http.StatusOK {
		t.Errorf("beside silent peers: %d %q", code, body)
	}
}

// TestLongFailure checks that the relay keeps only a part of a long error message of the control
// plane.
func TestLongFailure(t *testing.T) {
	t.Parallel()
	l := listen(t, "127.0.0.1:0")
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		return grpcstatus.Error(codes.Internal, strings.Repeat("no ", 1<<20))
	}))
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Logf("the server ended: %v", err) // how the server ends is not part of the test
		}
	})
	socket := filepath.Join(t.TempDir(), "XDS")
	unix, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Listener: unix, Upstream: UpstreamConfig{Address: l.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, p.Run)
	_, closeConn, err := openStream(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn()
	eventually(t, "an attempt has failed", func() bool { return p.Status().Failure != "" })
	if n := len(p.Status().Failure); n > maxHeader {
		t.Errorf("the failure has %d bytes", n)
	}
}
