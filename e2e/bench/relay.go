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

// smallResponse is a size, in bytes, below which the noise of one response is
// as large as what is measured: there are manyMore times as many.
const (
	smallResponse = 100e3
	manyMore      = 8
)

// relay times responses from a control plane to a proxy, straight over a Unix
// socket, through an agent and through a program that only copies bytes. Both
// ends do what such ends do: one encodes the response, the other decodes it.
// They are two processes, as in a mesh: inside one, Go's scheduler would hand
// the response over straight without the wake-up that the kernel takes for it.
func (b *bench) relay(ctx context.Context) (figures []figure, err error) {
	b.say("relay: responses straight, through an agent and through a program that only copies")
	fake := b.path("fake-envoy")
	if err := os.WriteFile(fake, []byte(fakeEnvoy), 0o700); err != nil {
		return nil, fmt.Errorf("write the program that takes Envoy's place: %w", err)
	}
	far, err := b.startSource(relayHost+plaintext, b.path("s"))
	if err != nil {
		return nil, err
	}
	defer far.stop()
	p, err := b.startAgent("relay", agentSpec{address: agentNet + "200", discovery: relayHost + plaintext, binary: fake, plaintext: true})
	if err != nil {
		return nil, err
	}
	defer p.stop()
	copier, err := b.startCopy(b.path("copy"), relayHost+plaintext)
	if err != nil {
		return nil, err
	}
	defer copier.stop()
	agentSocket := b.path("relay", "etc", "istio", "proxy", "XDS")
	if err := errors.Join(waitForSocket(ctx, far, b.path("s")), waitForSocket(ctx, p, agentSocket), waitForSocket(ctx, copier, b.path("copy"))); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var paths []*path
	for _, socket := range []string{agentSocket, b.path("copy"), b.path("s")} {
		way, err := open(ctx, far, socket)
		if err != nil {
			return nil, err
		}
		defer way.close()
		paths = append(paths, way)
	}
	for _, size := range sizesOfResponses() {
		times := b.responses
		if size.bytes < smallResponse {
			times *= manyMore
		}
		took, err := b.compare(ctx, paths, size.bytes, times)
		if err != nil {
			return figures, err
		}
		figures = append(figures,
			figure{Name: "relay: one response of " + size.name, Unit: milliseconds, Ours: took[0], Straight: took[2], TargetRatio: size.target},
			figure{Name: "  through a program that only copies bytes", Unit: milliseconds, Ours: took[1], Straight: took[2]},
		)
	}
	_, anonymous, err := memory(p.pid())
	return append(figures, figure{
		Name: fmt.Sprintf("relay: anonymous memory after %d responses of 10 MB", b.responses), Unit: megabytes, Ours: anonymous, Target: 25e6,
	}), err
}

// compare sends a response along each path in turns, so that noise meets all,
// and returns the medians in seconds.
func (b *bench) compare(ctx context.Context, paths []*path, size, times int) ([]float64, error) {
	samples := make([][]float64, len(paths))
	for range times {
		for j, p := range paths {
			t, err := p.time(b.path(fmt.Sprintf("response-%d", size)), size)
			if err != nil {
				return nil, err
			}
			samples[j] = append(samples[j], t.Seconds())
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return nil, err
			}
		}
	}
	medians := make([]float64, len(paths))
	for j := range paths {
		var err error
		if medians[j], err = median(samples[j]); err != nil {
			return nil, err
		}
	}
	return medians, nil
}

// path is one way from the source to a proxy.
type path struct {
	name   string
	far    *process // the source
	conn   *grpc.ClientConn
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

// open opens a stream over a socket and waits for the source's answer, which
// tells that it knows the path.
func open(ctx context.Context, far *process, socket string) (*path, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", socket, err)
	}
	p := &path{name: filepath.Base(socket), far: far, conn: conn}
	p.stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err == nil {
		node := &corev3.Node{Id: "sidecar~127.0.0.1~bench.default~default.svc.cluster.local", Cluster: p.name}
		err = p.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, Node: node})
	}
	if err == nil {
		_, err = p.receive()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a stream over %s: %w", socket, err), conn.Close())
	}
	return p, nil
}

// time has the source send one response along the path and waits for it at its
// end.
func (p *path) time(file string, size int) (time.Duration, error) {
	if err := p.order(file, func() *discoveryv3.DiscoveryResponse { return response(size) }); err != nil {
		return 0, err
	}
	return p.receive()
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

// receive takes a response, tells how long it was on its way, and acknowledges
// it.
func (p *path) receive() (time.Duration, error) {
	got, err := p.stream.Recv()
	if err != nil {
		return 0, fmt.Errorf("receive a response: %w", err)
	}
	now, err := monotonic()
	if err != nil {
		return 0, err
	}
	sent, err := strconv.ParseInt(got.GetNonce(), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read when a response was sent: %w", err)
	}
	return now - time.Duration(sent), p.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: got.GetTypeUrl(), ResponseNonce: got.GetNonce()})
}

func (p *path) close() { _ = p.conn.Close() } // all is said

// waitForSocket waits until a program listens.
func waitForSocket(ctx context.Context, p *process, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		if conn, err := net.Dial("unix", socket); err == nil {
			return conn.Close()
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %s", p.cmd.Path, p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen on %s: %s", p.cmd.Path, filepath.Base(socket), p.lastWords())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
