// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// TestDrain checks that streams end one after another, and that new streams are rejected
// immediately.
func TestDrain(t *testing.T) {
	t.Parallel()
	const streams, within = 40, 400 * time.Millisecond
	d := &drain{}
	server := grpc.NewServer(grpc.StreamInterceptor(d.intercept))
	healthpb.RegisterHealthServer(server, grpchealth.NewServer())
	l, err := net.Listen("tcp", "127.77.171.30:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ends := make(chan time.Time, streams)
	var open sync.WaitGroup
	for range streams {
		s, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil { // the stream is served
			t.Fatal(err)
		}
		open.Go(func() {
			_, _ = s.Recv() // blocks until the stream ends
			ends <- time.Now()
		})
	}
	began := time.Now()
	d.stop(server, within)
	open.Wait()
	close(ends)
	var first, last time.Time
	for end := range ends {
		if first.IsZero() || end.Before(first) {
			first = end
		}
		if end.After(last) {
			last = end
		}
	}
	if spread := last.Sub(first); spread < within/3 {
		t.Errorf("all streams ended within %s, want them spread over %s", spread, within)
	}
	if took := last.Sub(began); took > 10*within {
		t.Errorf("the last stream ended after %s, want at most %s", took, 10*within)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("a stopped server accepts connections")
	}
}

// TestDrainIgnoresStuckCalls checks that a call that ignores the end of its stream does not delay
// the stop.
func TestDrainIgnoresStuckCalls(t *testing.T) {
	t.Parallel()
	d := &drain{}
	release := make(chan struct{})
	entered := make(chan struct{})
	server := grpc.NewServer(grpc.StreamInterceptor(d.intercept), grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		close(entered)
		<-release
		return nil
	}))
	l, err := net.Listen("tcp", "127.77.171.31:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/none/none")
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	go func() {
		_ = s.RecvMsg(&healthpb.HealthCheckResponse{}) // blocks until the connection is closed
		close(release)
	}()
	d.stop(server, 50*time.Millisecond)
	if err := <-served; err != nil {
		t.Error(err)
	}
}
