// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// floorCommand as the first argument makes this program the floor.
const floorCommand = "floor"

// floor is a control plane without any logic: it answers each subscription with the
// same bytes for everybody, from one buffer, and pushes on request. Its cost is that
// of gRPC.
type floor struct {
	responses map[string][]byte // by type
	pushes    map[string][]byte // by type, what a change sends

	mu      sync.Mutex // guards streams
	streams map[chan pushed]struct{}
}

// pushed is an order: send the change of a type, with a marker.
type pushed struct{ typeURL, marker string }

// markerField is a field number that no response has.
const markerField = 100

// runFloor serves until its input, lines of a type and a marker, ends.
func runFloor(ctx context.Context, args []string, orders io.Reader) error {
	flags := flag.NewFlagSet(floorCommand, flag.ContinueOnError)
	listen := flags.String("listen", "", "address")
	dir := flags.String("dir", "", "directory of the responses")
	if err := flags.Parse(args); err != nil {
		return err
	}
	f := &floor{responses: map[string][]byte{}, pushes: map[string][]byte{}, streams: map[chan pushed]struct{}{}}
	for _, t := range types(true) {
		var err error
		if f.responses[t], err = os.ReadFile(floorFile(*dir, t, "all")); errors.Is(err, fs.ErrNotExist) && t == typeVirtualHost {
			continue // not with state of the world
		} else if err != nil {
			return fmt.Errorf("read the responses: %w", err)
		}
		if f.pushes[t], err = os.ReadFile(floorFile(*dir, t, "change")); err != nil {
			return fmt.Errorf("read the responses: %w", err)
		}
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return fmt.Errorf("listen for proxies: %w", err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(64<<20))
	server.RegisterService(&grpc.ServiceDesc{ServiceName: adsService, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: methodSotW, Handler: f.handler(false), ServerStreams: true, ClientStreams: true},
		{StreamName: methodDelta, Handler: f.handler(true), ServerStreams: true, ClientStreams: true},
	}}, nil)
	go f.obey(orders, server.Stop)
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	if err := server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve proxies: %w", err)
	}
	return nil
}

func floorFile(dir, typeURL, what string) string {
	return filepath.Join(dir, typeURL[strings.LastIndexByte(typeURL, '.')+1:]+"."+what)
}

// obey pushes what its input requests, and ends with the input.
func (f *floor) obey(orders io.Reader, stop func()) {
	lines := bufio.NewScanner(orders)
	for lines.Scan() {
		typeURL, marker, _ := strings.Cut(lines.Text(), " ")
		f.mu.Lock()
		for stream := range f.streams {
			stream <- pushed{typeURL, marker}
		}
		f.mu.Unlock()
	}
	stop()
}

// handler serves one stream: subscriptions, and pushes.
func (f *floor) handler(delta bool) grpc.StreamHandler {
	l := layoutOf(delta)
	return func(_ any, stream grpc.ServerStream) error {
		pushes, asked := make(chan pushed, 16), make(chan string)
		f.mu.Lock()
		f.streams[pushes] = struct{}{}
		f.mu.Unlock()
		defer func() {
			f.mu.Lock()
			delete(f.streams, pushes)
			f.mu.Unlock()
		}()
		go subscribed(stream, l, asked)
		for n := 0; ; n++ {
			var err error
			select {
			case <-stream.Context().Done():
				return nil
			case typeURL := <-asked:
				err = send(stream, f.responses[typeURL], "", n)
			case p := <-pushes:
				err = send(stream, f.pushes[p.typeURL], p.marker, n)
			}
			if err != nil {
				return err
			}
		}
	}
}

// subscribed hands on the types of requests that are no acknowledgements.
func subscribed(stream grpc.ServerStream, l layout, asked chan<- string) {
	for {
		var m message
		if stream.RecvMsg(&m) != nil {
			return
		}
		fields, err := head(m.data, l.nonce, l.typeURL)
		m.data.Free()
		if err != nil || fields[l.nonce] != "" {
			continue
		}
		select {
		case asked <- fields[l.typeURL]:
		case <-stream.Context().Done():
			return
		}
	}
}

// send sends the shared bytes; only the end of the message is its own.
func send(stream grpc.ServerStream, shared []byte, marker string, n int) error {
	tail := appendText(nil, markerField, marker)
	tail = protowire.AppendTag(tail, responseNonce, protowire.BytesType)
	tail = protowire.AppendString(tail, fmt.Sprint(n))
	return stream.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(shared), mem.SliceBuffer(tail)}})
}
