// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// relay measures the time of responses from a control plane to a proxy: directly over a Unix
// socket, through an agent, and through a program that only copies bytes. As in a mesh, one end
// encodes the response and the other decodes it. They are two processes: within one process, Go's
// scheduler would pass the response without the wake-up by the kernel.
func (b *bench) relay(ctx context.Context) {
	b.say("relay: responses straight, through an agent and through a program that only copies")
	far := b.source(ctx, relayHost+plaintext, b.path("s"))
	agent := b.startAgent("relay", agentSpec{address: agentNet + "200", discovery: relayHost + plaintext})
	copier := b.helper(copyHelper, b.path("copy"), relayHost+plaintext)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var paths []*path
	for _, end := range []struct {
		*process
		socket string
	}{{agent, b.path("relay", "etc", "istio", "proxy", "XDS")}, {copier, b.path("copy")}, {far, b.path("s")}} {
		end.listens(ctx, "unix", end.socket)
		p := open(ctx, end.socket)
		defer p.close()
		paths = append(paths, p)
	}
	for _, size := range []struct {
		name   string
		bytes  int
		times  int // more if the noise is as large as a single response
		target float64
	}{{"10 kB", 10e3, 8, 2}, {"1 MB", 1e6, 1, 1.7}, {"10 MB", 10e6, 1, 1.7}} {
		file := b.path(fmt.Sprintf("response-%d", size.bytes))
		writeFile(file, string(must(proto.Marshal(clusters(size.bytes)))))
		var ways []func() float64
		for _, p := range paths {
			ways = append(ways, func() float64 {
				far.order(p.name, file, "")
				took := p.receive()
				sleep(ctx, 5*time.Millisecond)
				return took
			})
		}
		took := turns(b.responses*size.times, ways...)
		b.add(
			figure{Name: "relay: one response of " + size.name, Unit: milliseconds, Ours: took[0], Straight: took[2], TargetRatio: size.target},
			figure{Name: "  through a program that only copies bytes", Unit: milliseconds, Ours: took[1], Straight: took[2]})
	}
	b.add(figure{
		Name: fmt.Sprintf("relay: anonymous memory after %d responses of 10 MB", b.responses), Unit: megabytes, Ours: agent.usage().anonymous, Target: 25e6,
	})
}

// clusters returns a response of approximately the given size, with resources like clusters.
func clusters(size int) *discoveryv3.DiscoveryResponse {
	const each = 1500
	r := &discoveryv3.DiscoveryResponse{TypeUrl: typeCluster}
	for n := 0; n < size; n += each {
		r.Resources = append(r.Resources, &anypb.Any{TypeUrl: typeCluster, Value: make([]byte, each-60)})
	}
	return r
}

// path is one way from the floor to a proxy. The proxy's cluster is the name of the path.
type path struct {
	name   string
	conn   *grpc.ClientConn
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

// open opens a stream over a socket and waits for the floor's response, which confirms that it
// knows the path.
func open(ctx context.Context, socket string) *path {
	conn := must(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30))))
	p := &path{name: filepath.Base(socket), conn: conn}
	p.stream = must(discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx))
	node := &corev3.Node{Id: "sidecar~127.0.0.1~bench.default~default.svc.cluster.local", Cluster: p.name}
	check(p.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, Node: node}))
	p.receive()
	return p
}

// receive receives a response, returns its transfer time in seconds, and acknowledges it.
func (p *path) receive() float64 {
	got, err := p.stream.Recv()
	if err != nil {
		fail("receive a response over %s: %w", p.name, err)
	}
	now := must(monotonic())
	sent := must(strconv.ParseInt(got.GetNonce(), 10, 64))
	check(p.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: got.GetTypeUrl(), ResponseNonce: got.GetNonce()}))
	return (now - time.Duration(sent)).Seconds()
}

func (p *path) close() { _ = p.conn.Close() } // closing cannot lose data

// copyHelper is the name of the helper that only copies bytes between a Unix socket and a TCP
// address, which is the minimum cost of a relay.
const copyHelper = "copy"

// runCopy forwards connections on the socket args[0] to the address args[1] until ctx is done. Like
// the agent, it uses one processor.
func runCopy(ctx context.Context, args []string) error {
	runtime.GOMAXPROCS(1)
	l, err := net.Listen("unix", args[0])
	if err != nil {
		return fmt.Errorf("listen for those whose bytes are copied: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // Accept returns the error
	for {
		near, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		far, err := net.Dial("tcp", args[1])
		if err != nil {
			_ = near.Close() // the peer notices
			return fmt.Errorf("join a connection: %w", err)
		}
		go copyBytes(near, far)
		go copyBytes(far, near)
	}
}

// copyBytes copies until either end closes, and closes both. It uses read and write: splicing,
// which io.Copy uses for connections, is slower for small amounts.
func copyBytes(to, from net.Conn) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 64<<10)) // either end may close
	_ = to.Close()                                                                                 // may have been closed by the other direction
	_ = from.Close()
}
