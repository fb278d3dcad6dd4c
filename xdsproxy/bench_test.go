// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"runtime/pprof"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/anypb"
)

// BenchmarkRelay measures one response from a control plane to a proxy, directly over a Unix
// socket and through the relay. Neither end encodes or decodes messages. The relay's goroutines
// have the label part=relay:
//
//	go test -run '^$' -bench Relay/10MB/through -cpuprofile cpu.out ./xdsproxy
//	go tool pprof -tagfocus part=relay -top cpu.out
func BenchmarkRelay(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"10kB", 10e3}, {"1MB", 1e6}, {"10MB", 10e6}} {
		for _, through := range []bool{false, true} {
			name := size.name + "/straight"
			if through {
				name = size.name + "/through"
			}
			b.Run(name, func(b *testing.B) { benchmarkRelay(b, benchmarkResponse(b, size.bytes), through) })
		}
	}
}

// benchmarkResponse returns a response of about the given size, with resources that resemble
// clusters.
func benchmarkResponse(b *testing.B, size int) []byte {
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: "1"}
	for range max(1, size/1500) {
		r.Resources = append(r.Resources, &discoveryv3.Resource{Name: "n", Resource: &anypb.Any{TypeUrl: clusterType, Value: make([]byte, 1440)}})
	}
	return encode(b, r)
}

func benchmarkRelay(b *testing.B, response []byte, through bool) {
	push, socket := make(chan struct{}), filepath.Join(b.TempDir(), "XDS")
	unix, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	if through {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		benchmarkSource(b, tcp, response, push)
		p, err := New(Config{Listener: unix, Upstream: UpstreamConfig{Address: tcp.Addr().String()}})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		pprof.Do(ctx, pprof.Labels("part", "relay"), func(ctx context.Context) {
			go func() { done <- p.Run(ctx) }()
		})
		b.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				b.Error(err)
			}
		})
	} else {
		benchmarkSource(b, unix, response, push)
	}
	stream := benchmarkStream(b, socket)
	b.SetBytes(int64(len(response)))
	for b.Loop() {
		push <- struct{}{}
		var f frame
		if err := stream.RecvMsg(&f); err != nil {
			b.Fatal(err)
		}
		if f.data.Len() != len(response) {
			b.Fatalf("got %d bytes, want %d", f.data.Len(), len(response))
		}
		f.free()
	}
}

// benchmarkSource runs a control plane that sends the response for each value received from push.
func benchmarkSource(b *testing.B, l net.Listener, response []byte, push <-chan struct{}) {
	b.Helper()
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec{}))
	server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: methodDelta, ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				select {
				case <-s.Context().Done():
					return nil
				case <-push:
					if err := s.SendMsg(&frame{data: mem.BufferSlice{mem.SliceBuffer(response)}}); err != nil {
						return err
					}
				}
			}
		},
	}}}, nil)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	b.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			b.Error(fmt.Errorf("serve: %w", err))
		}
	})
}

// benchmarkStream opens a stream like a proxy does.
func benchmarkStream(b *testing.B, socket string) grpc.ClientStream {
	b.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := conn.Close(); err != nil {
			b.Error(err)
		}
	})
	desc := &grpc.StreamDesc{StreamName: methodDelta, ServerStreams: true, ClientStreams: true}
	stream, err := conn.NewStream(b.Context(), desc, "/"+service+"/"+methodDelta)
	if err != nil {
		b.Fatal(err)
	}
	if err := stream.SendMsg(&frame{data: mem.BufferSlice{mem.SliceBuffer([]byte("\x12\x01x"))}}); err != nil {
		b.Fatal(err)
	}
	return stream
}
