// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
)

// fakeEnvoy says that it is an Envoy and then sleeps: this program takes its
// place at the agent's socket.
const fakeEnvoy = `#!/bin/sh
case "$*" in
*--version*) echo "envoy  version: 0000000000000000000000000000000000000000/1.39.3/Clean/RELEASE/BoringSSL" ;;
*) exec sleep 3600 ;;
esac
`

// sizesOfResponses are what the relay carries, in bytes, with the targets.
func sizesOfResponses() []struct {
	name   string
	bytes  int
	target float64
} {
	return []struct {
		name   string
		bytes  int
		target float64
	}{{"10 kB", 10e3, 2}, {"1 MB", 1e6, 1.7}, {"10 MB", 10e6, 1.7}}
}

// relay times responses from a control plane to a proxy, straight over a Unix
// socket and through an agent. Both ends are here and do what such ends do:
// one encodes the response, the other decodes it.
func (b *bench) relay(ctx context.Context) (figures []figure, err error) {
	b.say("relay: responses straight and through an agent")
	fake := b.path("fake-envoy")
	if err := os.WriteFile(fake, []byte(fakeEnvoy), 0o700); err != nil {
		return nil, fmt.Errorf("write the program that takes Envoy's place: %w", err)
	}
	source := &source{streams: make(chan *sourceStream)}
	stop, err := source.serve(relayHost+plaintext, b.path("s"))
	if err != nil {
		return nil, err
	}
	defer stop()
	p, err := b.startAgent("relay", agentSpec{address: agentNet + "200", discovery: relayHost + plaintext, binary: fake, plaintext: true})
	if err != nil {
		return nil, err
	}
	defer p.stop()
	socket := b.path("relay", "etc", "istio", "proxy", "XDS")
	if err := waitForSocket(ctx, p, socket); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	straight, err := source.open(ctx, b.path("s"))
	if err != nil {
		return nil, fmt.Errorf("straight: %w", err)
	}
	defer straight.close()
	through, err := source.open(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("through the agent: %w", err)
	}
	defer through.close()
	for _, size := range sizesOfResponses() {
		a, s, err := compare(ctx, through, straight, size.bytes, b.responses)
		if err != nil {
			return figures, err
		}
		figures = append(figures, figure{
			Name: "relay: one response of " + size.name, Unit: milliseconds, Ours: a, Straight: s, TargetRatio: size.target,
		})
	}
	_, anonymous, err := memory(p.pid())
	return append(figures, figure{
		Name: fmt.Sprintf("relay: anonymous memory after %d responses of 10 MB", b.responses), Unit: megabytes, Ours: anonymous, Target: 25e6,
	}), err
}

// compare sends a response straight and through the agent in turns, so that
// noise meets both, and gives the medians in seconds.
func compare(ctx context.Context, through, straight *path, size, times int) (ours, floor float64, err error) {
	response := response(size)
	var samples [2][]float64
	for i := range times {
		for j, p := range []*path{through, straight} {
			response.Nonce = strconv.Itoa(i)
			t, err := p.time(response)
			if err != nil {
				return 0, 0, err
			}
			samples[j] = append(samples[j], t.Seconds())
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return 0, 0, err
			}
		}
	}
	ours, err = median(samples[0])
	if err != nil {
		return 0, 0, err
	}
	floor, err = median(samples[1])
	return ours, floor, err
}

// response makes a response of about a size, of resources like clusters.
func response(size int) *discoveryv3.DiscoveryResponse {
	const each = 1500
	r := &discoveryv3.DiscoveryResponse{TypeUrl: typeCluster}
	for n := 0; n < size; n += each {
		r.Resources = append(r.Resources, &anypb.Any{TypeUrl: typeCluster, Value: make([]byte, each-60)})
	}
	return r
}

// source is the control plane at the far end: it hands its streams to open.
type source struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	streams chan *sourceStream
}

type sourceStream struct {
	push chan *discoveryv3.DiscoveryResponse
	sent chan time.Time
}

// serve listens on a TCP address and on a Unix socket.
func (s *source) serve(address, socket string) (stop func(), err error) {
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	for network, at := range map[string]string{"tcp": address, "unix": socket} {
		l, err := net.Listen(network, at)
		if err != nil {
			server.Stop()
			return nil, fmt.Errorf("listen for the agent: %w", err)
		}
		go func() { _ = server.Serve(l) }() // it ends with Stop
	}
	return server.Stop, nil
}

// StreamAggregatedResources sends what a path pushes.
func (s *source) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	own := &sourceStream{push: make(chan *discoveryv3.DiscoveryResponse), sent: make(chan time.Time, 1)}
	select {
	case s.streams <- own:
	case <-stream.Context().Done():
		return nil
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case r := <-own.push:
			own.sent <- time.Now()
			if err := stream.Send(r); err != nil {
				return err
			}
		}
	}
}

// path is one way from the source to a proxy: both ends of it.
type path struct {
	conn   *grpc.ClientConn
	from   *sourceStream
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

// open opens a stream over a socket and waits until it arrives at the source.
func (s *source) open(ctx context.Context, socket string) (*path, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", socket, err)
	}
	p := &path{conn: conn}
	p.stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err == nil {
		node := &corev3.Node{Id: "sidecar~127.0.0.1~bench.default~default.svc.cluster.local"}
		err = p.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, Node: node})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a stream over %s: %w", socket, err), conn.Close())
	}
	select {
	case p.from = <-s.streams:
		return p, nil
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("stream over %s did not arrive: %w", socket, ctx.Err()), conn.Close())
	}
}

// time sends one response along the path and waits for it at its end.
func (p *path) time(r *discoveryv3.DiscoveryResponse) (time.Duration, error) {
	select {
	case p.from.push <- r:
	case <-p.stream.Context().Done():
		return 0, p.stream.Context().Err()
	}
	began := <-p.from.sent
	got, err := p.stream.Recv()
	if err != nil {
		return 0, fmt.Errorf("receive a response: %w", err)
	}
	took := time.Since(began)
	ack := &discoveryv3.DiscoveryRequest{TypeUrl: got.GetTypeUrl(), ResponseNonce: got.GetNonce()}
	return took, p.stream.Send(ack)
}

func (p *path) close() { _ = p.conn.Close() } // all is said

// waitForSocket waits until the agent listens.
func waitForSocket(ctx context.Context, p *process, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		if conn, err := net.Dial("unix", socket); err == nil {
			return conn.Close()
		}
		select {
		case <-p.ended:
			return fmt.Errorf("the agent ended: %s", p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("the agent does not listen on %s: %s", filepath.Base(socket), p.lastWords())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
