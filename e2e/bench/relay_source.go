// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// sourceCommand as the first argument makes this program a control plane that
// sends what its input requests: the far end of the paths that relay times.
const sourceCommand = "source"

// source pushes to the stream of a path what its input requests.
type source struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu    sync.Mutex // guards paths
	paths map[string]chan *discoveryv3.DiscoveryResponse
}

// runSource serves until its input, lines of a path's name and a file with a
// response, ends.
func runSource(ctx context.Context, args []string, orders io.Reader) error {
	fs := flag.NewFlagSet(sourceCommand, flag.ContinueOnError)
	listen := fs.String("listen", "", "TCP address")
	socket := fs.String("socket", "", "path of the Unix socket")
	if err := fs.Parse(args); err != nil {
		return err
	}
	s := &source{paths: map[string]chan *discoveryv3.DiscoveryResponse{}}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	defer server.Stop()
	for network, at := range map[string]string{"tcp": *listen, "unix": *socket} {
		l, err := net.Listen(network, at)
		if err != nil {
			return fmt.Errorf("listen for proxies: %w", err)
		}
		go func() { _ = server.Serve(l) }() // it ends with Stop
	}
	ended := make(chan error, 1)
	go func() { ended <- s.obey(orders) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

// obey pushes what its input requests, and ends with the input. It reads each file
// once.
func (s *source) obey(orders io.Reader) error {
	read := map[string]*discoveryv3.DiscoveryResponse{}
	lines := bufio.NewScanner(orders)
	for lines.Scan() {
		name, file, _ := strings.Cut(lines.Text(), " ")
		if read[file] == nil {
			data, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("read a response: %w", err)
			}
			read[file] = &discoveryv3.DiscoveryResponse{}
			if err := proto.Unmarshal(data, read[file]); err != nil {
				return fmt.Errorf("read a response: %s: %w", file, err)
			}
		}
		s.mu.Lock()
		path := s.paths[name]
		s.mu.Unlock()
		if path == nil {
			return fmt.Errorf("order %q: there is no such path", lines.Text())
		}
		path <- read[file]
	}
	return lines.Err()
}

// order has the source send a response along a path, which is made once and
// without the nonce. The order has a way of its own: it wakes nothing of the path.
func (p *path) order(file string, content func() *discoveryv3.DiscoveryResponse) error {
	if _, err := os.Stat(file); err != nil {
		data, err := proto.Marshal(content())
		if err == nil {
			err = os.WriteFile(file, data, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write a response: %w", err)
		}
	}
	if _, err := fmt.Fprintln(p.far.stdin, p.name, file); err != nil {
		return fmt.Errorf("order a response: %w: %s", err, p.far.lastWords())
	}
	return nil
}

// monotonic is the time since the machine's start, the same for all processes.
func monotonic() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// StreamAggregatedResources answers the first request, which names the path as
// the node's cluster, and then sends what obey hands it. The nonce of a response
// is the time at which it was given to gRPC.
func (s *source) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	orders := make(chan *discoveryv3.DiscoveryResponse, 1)
	s.mu.Lock()
	s.paths[first.GetNode().GetCluster()] = orders
	s.mu.Unlock()
	for r := (&discoveryv3.DiscoveryResponse{TypeUrl: typeCluster}); ; {
		now, err := monotonic()
		if err != nil {
			return err
		}
		if err := stream.Send(&discoveryv3.DiscoveryResponse{
			TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), Resources: r.GetResources(), Nonce: strconv.FormatInt(int64(now), 10),
		}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case r = <-orders:
		}
	}
}

// startSource runs it on a TCP address and on a Unix socket.
func (b *bench) startSource(address, socket string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return b.start.run(spec{
		path: self, dir: b.dir, log: socket + ".log", args: []string{sourceCommand, "--listen", address, "--socket", socket}, stdin: true,
	})
}
