// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// floorHelper is the name of the floor helper.
const floorHelper = "floor"

// floor is a control plane without logic: it answers each subscription with the content of a file,
// if there is one, and sends what its input requests. Its cost is that of gRPC.
type floor struct {
	dir string // contains the responses to subscriptions
	// encode encodes each response, like a control plane that has just generated it. Otherwise all
	// proxies receive the same bytes from one buffer.
	encode bool

	mu        sync.Mutex // guards the fields below
	responses map[string]response
	streams   map[chan order]string // cluster of the node of each stream
}

// response is the content of a file. It is decoded only if it must be encoded.
type response struct {
	data    []byte
	decoded *discoveryv3.DiscoveryResponse
}

// order requests that a response be sent, with a marker if all proxies receive the same bytes.
type order struct{ file, marker string }

// markerField is a field number that is not used in responses.
const markerField = 100

// runFloor serves proxies at the address args[0] from the directory args[1]. If args[2] contains
// the path of a Unix socket, it also serves there, and encodes responses. It ends with its input,
// whose lines are orders: the cluster of the nodes that receive the response, its file, and a
// marker.
func runFloor(ctx context.Context, args []string) error {
	f := &floor{dir: args[1], encode: len(args) > 2, responses: map[string]response{}, streams: map[chan order]string{}}
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(64<<20))
	defer server.Stop()
	server.RegisterService(&grpc.ServiceDesc{ServiceName: adsService, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: methodSotW, Handler: f.handler(false), ServerStreams: true, ClientStreams: true},
		{StreamName: methodDelta, Handler: f.handler(true), ServerStreams: true, ClientStreams: true},
	}}, nil)
	for i, at := range append(args[:1:1], args[2:]...) {
		l, err := net.Listen([]string{"tcp", "unix"}[i], at)
		if err != nil {
			return fmt.Errorf("listen for proxies: %w", err)
		}
		go func() { _ = server.Serve(l) }() // it ends with Stop
	}
	ended := make(chan error, 1)
	go func() { ended <- f.obey(os.Stdin) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

func floorFile(dir, typeURL, what string) string {
	return filepath.Join(dir, typeURL[strings.LastIndexByte(typeURL, '.')+1:]+"."+what)
}

// obey executes the orders of its input.
func (f *floor) obey(input io.Reader) error {
	lines := bufio.NewScanner(input)
	for lines.Scan() {
		to, rest, _ := strings.Cut(lines.Text(), " ")
		file, marker, _ := strings.Cut(rest, " ")
		f.mu.Lock()
		for orders, cluster := range f.streams {
			if cluster == to {
				orders <- order{file, marker}
			}
		}
		f.mu.Unlock()
	}
	return lines.Err()
}

// load returns the content of a file, which is read once.
func (f *floor) load(file string) (response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, known := f.responses[file]
	if known {
		return r, nil
	}
	var err error
	if r.data, err = os.ReadFile(file); err != nil {
		return r, fmt.Errorf("read a response: %w", err)
	}
	if f.encode {
		r.decoded = &discoveryv3.DiscoveryResponse{}
		if err := proto.Unmarshal(r.data, r.decoded); err != nil {
			return r, fmt.Errorf("read a response: %s: %w", file, err)
		}
	}
	f.responses[file] = r
	return r, nil
}

// handler serves one stream.
func (f *floor) handler(delta bool) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		orders := make(chan order, 16)
		f.note(orders, "")
		defer func() {
			f.mu.Lock()
			delete(f.streams, orders)
			f.mu.Unlock()
		}()
		go f.subscribed(stream, layoutOf(delta), orders)
		for {
			select {
			case <-stream.Context().Done():
				return nil
			case o := <-orders:
				if err := f.send(stream, o); err != nil {
					return err
				}
			}
		}
	}
}

// note records the cluster of a stream; a new stream has an empty one.
func (f *floor) note(stream chan order, cluster string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, open := f.streams[stream]; open || cluster == "" {
		f.streams[stream] = cluster
	}
}

// subscribed orders responses to requests that are not acknowledgements. The first request contains
// the node.
func (f *floor) subscribed(stream grpc.ServerStream, l layout, orders chan order) {
	for {
		var m message
		if stream.RecvMsg(&m) != nil {
			return
		}
		fields, err := head(m.data, l.nonce, l.typeURL, l.node)
		m.data.Free()
		if err != nil || fields[l.nonce] != "" {
			continue
		}
		var node corev3.Node
		if err := proto.Unmarshal([]byte(fields[l.node]), &node); err == nil && node.GetCluster() != "" {
			f.note(orders, node.GetCluster())
		}
		select {
		case orders <- order{file: floorFile(f.dir, fields[l.typeURL], "all")}:
		case <-stream.Context().Done():
			return
		}
	}
}

// send sends a response. Its nonce is the time at which it was passed to gRPC. If the bytes are
// shared, only the end of the message is individual.
func (f *floor) send(stream grpc.ServerStream, o order) error {
	r, err := f.load(o.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	now, failed := monotonic()
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	nonce := strconv.FormatInt(int64(now), 10)
	if d := r.decoded; d != nil {
		return stream.SendMsg(&discoveryv3.DiscoveryResponse{TypeUrl: d.GetTypeUrl(), VersionInfo: d.GetVersionInfo(), Resources: d.GetResources(), Nonce: nonce})
	}
	tail := appendText(appendText(nil, markerField, o.marker), wire.ResponseNonce, nonce)
	return stream.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(r.data), mem.SliceBuffer(tail)}})
}

// source starts a floor that encodes its responses, at an address and on a Unix socket. It responds
// to the first request of a proxy, to confirm that its stream is registered.
func (b *bench) source(ctx context.Context, address, socket string) *process {
	writeFile(floorFile(b.dir, typeCluster, "all"), string(must(proto.Marshal(&discoveryv3.DiscoveryResponse{TypeUrl: typeCluster}))))
	p := b.helper(floorHelper, address, b.dir, socket)
	p.listens(ctx, "unix", socket)
	return p
}

// order makes the floor send the response in a file to the nodes of a cluster. It uses a separate
// channel that does not wake up any measured process.
func (p *process) order(cluster, file, marker string) {
	if _, err := fmt.Fprintln(p.Stdin, cluster, file, marker); err != nil {
		fail("order a response: %w: %s", err, p.LastWords())
	}
}

// monotonic returns the time since the start of the machine, which is the same for all processes.
func monotonic() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
