// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// kind says how proxies are served.
type kind struct {
	delta bool
	// redirect is true for sidecars that traffic is redirected to; the others
	// serve as HTTP proxies.
	redirect bool
}

// subscriptions are what all proxies ask for, learnt by the first one.
type subscriptions struct {
	kind
	// names are the encoded names of the types that are not wildcards.
	names map[string][]byte
	// learnt are the responses that the first proxy got, by type.
	learnt map[string][]byte
	// back is what proxies ask for when they come back after their stream has
	// ended; nil if that is an error.
	back map[string][]byte
}

// proxies are many sidecars: each has a connection, subscribes what a sidecar
// subscribes, in Envoy's order, and acknowledges what it gets.
type proxies struct {
	address string
	subs    subscriptions
	cancel  context.CancelCauseFunc
	running sync.WaitGroup
	// done is closed when one of them failed, or all are to end; cause says
	// why.
	done  <-chan struct{}
	cause func() error

	synced chan struct{} // one token for each proxy that has every type
	seen   chan time.Time
	wanted atomic.Pointer[wanted]
	bytes  atomic.Int64
}

// wanted is what proxies look for in responses of one type.
type wanted struct {
	typeURL string
	marker  []byte
	// added are the encoded names of the endpoints that clusters with the marker
	// need, all those of all clusters; nil if there are no such clusters.
	added, all []byte
}

// startProxies opens count streams.
func startProxies(ctx context.Context, address string, count int, subs subscriptions) *proxies {
	p := &proxies{address: address, subs: subs, synced: make(chan struct{}, count), seen: make(chan time.Time, 2*count)}
	ctx, p.cancel = context.WithCancelCause(ctx)
	p.done, p.cause = ctx.Done(), func() error { return context.Cause(ctx) }
	for i := range count {
		p.running.Go(func() {
			if err := p.one(ctx, i); err != nil {
				p.cancel(fmt.Errorf("proxy %d: %w", i, err))
			}
		})
	}
	return p
}

func (p *proxies) stop() {
	p.cancel(nil)
	p.running.Wait()
}

// next waits for one value of each proxy and returns the last.
func next[T any](p *proxies, from <-chan T, limit time.Duration) (last T, err error) {
	timeout := time.After(limit)
	count := cap(p.synced)
	for i := range count {
		select {
		case last = <-from:
		case <-p.done:
			return last, p.cause()
		case <-timeout:
			return last, fmt.Errorf("only %d of %d proxies got it within %s", i, count, limit)
		}
	}
	return last, nil
}

// one is one proxy.
func (p *proxies) one(ctx context.Context, i int) error {
	conn, err := dialADS(p.address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // its stream has ended
	s, err := openADS(ctx, conn, p.subs.delta)
	if err != nil {
		return err
	}
	node, err := encodeNode(i, p.subs.redirect)
	if err != nil {
		return err
	}
	if err := s.subscribe(typeCluster, node, p.subs.names); err != nil {
		return err
	}
	got := map[string]bool{}
	var found, widened *wanted
	eds := received{typeURL: typeEndpoint}
	endpoints := p.subs.names[typeEndpoint]
	for {
		r, err := s.receive()
		if err != nil && p.subs.back != nil && ctx.Err() == nil {
			if s, err = p.comeBack(ctx, conn, node); err == nil {
				continue
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		p.bytes.Add(int64(r.data.Len()))
		if w := p.wanted.Load(); w != nil && w != found && w.typeURL == r.typeURL && contains(r.data, w.marker) {
			found = w
			p.seen <- time.Now()
		}
		widen := p.wanted.Load()
		if widen == widened || widen == nil || widen.added == nil || r.typeURL != typeCluster || !contains(r.data, widen.marker) {
			widen = nil
		}
		r.data.Free()
		names := p.subs.names[r.typeURL]
		if r.typeURL == typeEndpoint {
			eds, names = r, endpoints
		}
		if err := s.acknowledge(r, names); err != nil && p.subs.back == nil {
			return ignoreEnd(ctx, err)
		}
		if widen != nil {
			widened, endpoints = widen, widen.all
			if err := s.widen(eds, widen); err != nil {
				return ignoreEnd(ctx, err)
			}
		}
		if got[r.typeURL] {
			continue
		}
		got[r.typeURL] = true
		if err := s.follow(r.typeURL, p.subs.names); err != nil {
			return ignoreEnd(ctx, err)
		}
		if len(got) == len(types(p.subs.delta)) {
			p.synced <- struct{}{}
		}
	}
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func types(delta bool) []string {
	all := []string{typeCluster, typeEndpoint, typeListener, typeRoute}
	if delta {
		return append(all, typeVirtualHost)
	}
	return all
}

// ads is an ADS stream as a proxy sees it.
type ads struct {
	stream grpc.ClientStream
	layout layout
	delta  bool
}

// received is a response; its owner frees its buffers.
type received struct {
	data                    mem.BufferSlice
	typeURL, nonce, version string
}

func dialADS(address string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(1<<20),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

func openADS(ctx context.Context, conn *grpc.ClientConn, delta bool) (*ads, error) {
	method := methodSotW
	if delta {
		method = methodDelta
	}
	desc := &grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true}
	stream, err := conn.NewStream(ctx, desc, "/"+adsService+"/"+method)
	if err != nil {
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	return &ads{stream: stream, layout: layoutOf(delta), delta: delta}, nil
}

// subscribe asks for a type; node is encoded and goes with the first request.
func (s *ads) subscribe(typeURL string, node []byte, names map[string][]byte) error {
	var b []byte
	if node != nil {
		b = protowire.AppendTag(b, s.layout.node, protowire.BytesType)
		b = protowire.AppendBytes(b, node)
	}
	return s.send(appendText(b, s.layout.typeURL, typeURL), names[typeURL])
}

// follow subscribes what Envoy subscribes after the first response of a type.
func (s *ads) follow(typeURL string, names map[string][]byte) error {
	switch typeURL {
	case typeCluster:
		return errors.Join(s.subscribe(typeEndpoint, nil, names), s.subscribe(typeListener, nil, names))
	case typeListener:
		return s.subscribe(typeRoute, nil, names)
	case typeRoute:
		if s.delta {
			return s.subscribe(typeVirtualHost, nil, names)
		}
	}
	return nil
}

func (s *ads) acknowledge(r received, names []byte) error {
	b := appendText(nil, s.layout.typeURL, r.typeURL)
	b = appendText(b, s.layout.nonce, r.nonce)
	if s.delta {
		return s.send(b, nil)
	}
	return s.send(appendText(b, requestVersion, r.version), names)
}

// widen asks for the endpoints of clusters that are new; last is the last response
// of the type.
func (s *ads) widen(last received, w *wanted) error {
	if !s.delta {
		return s.acknowledge(last, w.all)
	}
	return s.subscribe(typeEndpoint, nil, map[string][]byte{typeEndpoint: w.added})
}

// send sends a request whose names are the shared ones.
func (s *ads) send(b, names []byte) error {
	m := &message{data: mem.BufferSlice{mem.SliceBuffer(b)}}
	if len(names) > 0 {
		m.data = append(m.data, mem.SliceBuffer(names))
	}
	return s.stream.SendMsg(m)
}

func (s *ads) receive() (received, error) {
	var m message
	if err := s.stream.RecvMsg(&m); err != nil {
		return received{}, err
	}
	fields, err := head(m.data, responseType, responseNonce, responseVersion)
	if err != nil {
		return received{}, err
	}
	return received{data: m.data, typeURL: fields[responseType], nonce: fields[responseNonce], version: fields[responseVersion]}, nil
}

// encodeNode returns the node of proxy i: an application that nobody calls, or, where
// traffic is redirected, an endpoint of one of 500 services.
func encodeNode(i int, redirect bool) ([]byte, error) {
	ip, mode := fmt.Sprintf("10.10.%d.%d", i/250, i%250+1), "NONE"
	if redirect {
		service := i % 500
		ip, mode = fmt.Sprintf("10.%d.%d.%d", 201+i/500%3, service/250, service%250+1), "REDIRECT"
	}
	metadata, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": "default", "CLUSTER_ID": "Kubernetes", "MESH_ID": "cluster.local", "INTERCEPTION_MODE": mode,
		"NAME": fmt.Sprintf("bench-%d", i), "SERVICE_ACCOUNT": "default", "INSTANCE_IPS": ip, "LABELS": map[string]any{"app": "bench"},
	})
	if err != nil {
		return nil, fmt.Errorf("make the node's metadata: %w", err)
	}
	return proto.Marshal(&corev3.Node{
		Id:      fmt.Sprintf("sidecar~%s~bench-%d.default~default.svc.cluster.local", ip, i),
		Cluster: "bench.default", Metadata: metadata, UserAgentName: "envoy",
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 39, Patch: 3},
		}},
	})
}
