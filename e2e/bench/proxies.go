// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// proxies simulates many sidecars: each has a connection, subscribes like a sidecar, in Envoy's
// order, and acknowledges its responses.
type proxies struct {
	server  *process
	address string
	nodes   [][]byte // encoded
	subs    subscriptions
	cancel  context.CancelCauseFunc
	running sync.WaitGroup
	// done is closed when one of them has failed or all have to stop; cause returns the reason.
	done  <-chan struct{}
	cause func() error

	synced chan time.Time // when each proxy had received every type
	seen   chan time.Time // when each proxy had received what is wanted
	wanted atomic.Pointer[wanted]
	bytes  atomic.Int64
}

// wanted describes what proxies look for in responses of one type.
type wanted struct {
	typeURL string
	marker  []byte
	// added are the encoded names of the endpoints that clusters with the marker need, and all
	// those of all clusters. Both are nil if there are no such clusters.
	added, all []byte
}

// newProxies returns proxies for a server. They are not started.
func newProxies(server *process, address string, count int, subs subscriptions) *proxies {
	p := &proxies{
		server: server, address: address, nodes: make([][]byte, count), subs: subs,
		synced: make(chan time.Time, count), seen: make(chan time.Time, 2*count), cancel: func(error) {},
	}
	for i := range p.nodes {
		p.nodes[i] = encodeNode(i, subs.redirect)
	}
	return p
}

// start opens the streams of all proxies.
func (p *proxies) start(ctx context.Context) {
	ctx, p.cancel = context.WithCancelCause(ctx)
	p.done, p.cause = ctx.Done(), func() error { return context.Cause(ctx) }
	for i, node := range p.nodes {
		p.running.Go(func() {
			if err := p.one(ctx, node); err != nil && ctx.Err() == nil {
				p.cancel(fmt.Errorf("proxy %d: %w", i, err))
			}
		})
	}
}

func (p *proxies) stop() {
	p.cancel(nil)
	p.running.Wait()
}

// by receives one time from each proxy and returns the time by which the given percentage of the
// proxies was done.
func (p *proxies) by(percent int, from <-chan time.Time) time.Time {
	timeout := time.After(2 * time.Minute)
	all := make([]time.Time, 0, len(p.nodes))
	for len(all) < len(p.nodes) {
		select {
		case at := <-from:
			all = append(all, at)
		case <-p.done:
			fail("%w: %s", p.cause(), p.server.LastWords())
		case <-timeout:
			fail("only %d of %d proxies got it within two minutes: %s", len(all), len(p.nodes), p.server.LastWords())
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all[(len(all)*percent-1)/100]
}

// one runs one proxy until its context is done.
func (p *proxies) one(ctx context.Context, node []byte) error {
	conn, err := dialADS(p.address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // its stream has ended
	s, err := openADS(ctx, conn, p.subs.delta)
	if err != nil {
		return err
	}
	s.subscribe(typeCluster, node, p.subs.names)
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
		if err != nil {
			return err
		}
		p.bytes.Add(int64(r.data.Len()))
		w := p.wanted.Load()
		if w != nil && w != found && w.typeURL == r.typeURL && contains(r.data, w.marker) {
			found = w
			p.seen <- time.Now()
		}
		widen := w != nil && w != widened && w.added != nil && r.typeURL == typeCluster && contains(r.data, w.marker)
		r.data.Free()
		names := p.subs.names[r.typeURL]
		if r.typeURL == typeEndpoint {
			eds, names = r, endpoints
		}
		s.acknowledge(r, names)
		if widen {
			widened, endpoints = w, w.all
			s.widen(eds, w)
		}
		if got[r.typeURL] {
			continue
		}
		got[r.typeURL] = true
		s.follow(r.typeURL, p.subs.names)
		if len(got) == len(types(p.subs.delta)) {
			p.synced <- time.Now()
		}
	}
}

// ads is an ADS stream from the view of a proxy. If sending fails, the stream ends, and receive
// returns the reason.
type ads struct {
	stream grpc.ClientStream
	layout layout
	delta  bool
}

// received is a response. Its owner must free its buffers.
type received struct {
	data                    mem.BufferSlice
	typeURL, nonce, version string
}

func dialADS(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(1<<20),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(1<<30)))
}

func openADS(ctx context.Context, conn *grpc.ClientConn, delta bool) (*ads, error) {
	method := methodSotW
	if delta {
		method = methodDelta
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true}, "/"+adsService+"/"+method)
	return &ads{stream: stream, layout: layoutOf(delta), delta: delta}, err
}

// subscribe subscribes to a type. The encoded node is sent with the first request.
func (s *ads) subscribe(typeURL string, node []byte, names map[string][]byte) {
	b := appendText(nil, s.layout.node, string(node))
	s.send(appendText(b, s.layout.typeURL, typeURL), names[typeURL])
}

// follow sends the subscriptions that Envoy sends after the first response of a type.
func (s *ads) follow(typeURL string, names map[string][]byte) {
	switch {
	case typeURL == typeCluster:
		s.subscribe(typeEndpoint, nil, names)
		s.subscribe(typeListener, nil, names)
	case typeURL == typeListener:
		s.subscribe(typeRoute, nil, names)
	case typeURL == typeRoute && s.delta:
		s.subscribe(typeVirtualHost, nil, names)
	}
}

func (s *ads) acknowledge(r received, names []byte) {
	b := appendText(appendText(nil, s.layout.typeURL, r.typeURL), s.layout.nonce, r.nonce)
	if s.delta {
		s.send(b, nil)
	} else {
		s.send(appendText(b, wire.RequestVersion, r.version), names)
	}
}

// widen subscribes to the endpoints of new clusters. last is the last response of the type.
func (s *ads) widen(last received, w *wanted) {
	if s.delta {
		s.subscribe(typeEndpoint, nil, map[string][]byte{typeEndpoint: w.added})
	} else {
		s.acknowledge(last, w.all)
	}
}

// send sends a request with shared names.
func (s *ads) send(b, names []byte) {
	_ = s.stream.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(b), mem.SliceBuffer(names)}}) // receive returns the error
}

func (s *ads) receive() (received, error) {
	var m message
	if err := s.stream.RecvMsg(&m); err != nil {
		return received{}, err
	}
	fields, err := head(m.data, wire.ResponseTypeURL, wire.ResponseNonce, wire.ResponseVersion)
	return received{data: m.data, typeURL: fields[wire.ResponseTypeURL], nonce: fields[wire.ResponseNonce], version: fields[wire.ResponseVersion]}, err
}

// proxyCluster is the cluster of all nodes.
const proxyCluster = "bench.default"

// encodeNode returns the encoded node of proxy i: an application without clients or, if redirect is
// set, an endpoint of one of 500 services.
func encodeNode(i int, redirect bool) []byte {
	ip, mode := fmt.Sprintf("10.10.%d.%d", i/250, i%250+1), "NONE"
	if redirect {
		service := i % 500
		ip, mode = fmt.Sprintf("10.%d.%d.%d", 201+i/500%3, service/250, service%250+1), "REDIRECT"
	}
	return must(proto.Marshal(&corev3.Node{
		Id:      fmt.Sprintf("sidecar~%s~bench-%d.default~default.svc.cluster.local", ip, i),
		Cluster: proxyCluster, UserAgentName: "envoy",
		Metadata: must(structpb.NewStruct(map[string]any{
			"NAMESPACE": "default", "CLUSTER_ID": "Kubernetes", "MESH_ID": "cluster.local", "INTERCEPTION_MODE": mode,
			"NAME": fmt.Sprintf("bench-%d", i), "SERVICE_ACCOUNT": "default", "INSTANCE_IPS": ip, "LABELS": map[string]any{"app": "bench"},
		})),
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 39, Patch: 3},
		}},
	}))
}

// comeBack opens a new stream with the state of the proxy.
func (p *proxies) comeBack(ctx context.Context, conn *grpc.ClientConn, node []byte) (*ads, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(50+rand.IntN(100)) * time.Millisecond):
		}
		s, err := openADS(ctx, conn, p.subs.delta)
		if err != nil {
			continue // the control plane is not available yet
		}
		for _, typeURL := range types(p.subs.delta) {
			s.subscribe(typeURL, node, p.subs.back)
			node = nil // only in the first request
		}
		return s, nil
	}
}
