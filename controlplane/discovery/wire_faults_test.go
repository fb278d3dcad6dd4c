// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// A proxy that never acknowledges affects no other: others are served, and it receives the newest
// state when it resumes.
func TestNeverAcknowledges(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		p.subscribe(xds.TypeCluster)
		p.want("cds a=1 b=1")
		other := h.connect(p.t, p.delta)
		other.subscribe(xds.TypeCluster)
		other.wantAck("cds a=1 b=1")
		for i := range 200 {
			h.set(xds.TypeCluster, map[string]string{"a": "a=1", "b": fmt.Sprint("b=1.", i)})
			h.push()
			if other.delta {
				other.wantAck(fmt.Sprint("cds b=1.", i))
			} else {
				other.wantAck(fmt.Sprint("cds a=1 b=1.", i))
			}
		}
		p.quiet() // one response waits, and no more were sent
		p.ack(xds.TypeCluster)
		if p.delta {
			p.wantAck("cds b=1.199")
		} else {
			p.wantAck("cds a=1 b=1.199")
		}
		p.quiet()
	})
}

// A proxy that reads nothing delays no other, and its stream can be closed.
func TestNeverReads(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	long := strings.Repeat("x", 1<<20)
	h.set(xds.TypeCluster, map[string]string{"a": "0" + long})
	h.push()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := h.client.StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 { // each is answered with a megabyte, far beyond the window
		if err := s.Send(&discoveryv3.DiscoveryRequest{Node: shopNode(t, nil), TypeUrl: xds.TypeCluster, ResourceNames: []string{"a", fmt.Sprint(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	other := h.onOwnConnection(t, false)
	other.subscribe(xds.TypeCluster)
	other.ack(other.any())
	for i := range 20 {
		h.set(xds.TypeCluster, map[string]string{"a": fmt.Sprint("a=", i)})
		h.push()
		other.wantAck(fmt.Sprint("cds a=", i))
	}
	cancel()
	until(t, "the stream has ended", func() bool { return h.server.Connected() == 1 })
}

// onOwnConnection connects without sharing flow control with others, and accepts long responses.
func (h *harness) onOwnConnection(t *testing.T, delta bool) *peer {
	t.Helper()
	conn, err := grpc.NewClient(h.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	own := &harness{table: h.table, server: h.server, address: h.address, client: discoveryv3.NewAggregatedDiscoveryServiceClient(conn)}
	return own.connect(t, delta)
}

// Answers to nothing, twice, with the nonces of other types or of other
// streams change nothing.
func TestAcknowledgesWrongly(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		say := func(typeURL, nonce string) {
			if p.delta {
				p.must(&discoveryv3.DeltaDiscoveryRequest{Node: p.node, TypeUrl: typeURL, ResponseNonce: nonce})
			} else {
				p.must(&discoveryv3.DiscoveryRequest{Node: p.node, TypeUrl: typeURL, ResponseNonce: nonce, VersionInfo: "made up"})
			}
		}
		say(xds.TypeCluster, "never sent") // and yet the first of its type
		p.want("cds a=1 b=1")
		p.subscribe(xds.TypeListener)
		p.quiet() // listeners wait for the answer to clusters
		for _, nonce := range []string{"never sent", "-1", strings.Repeat("9", maxShortText), p.nonce[xds.TypeListener] + "x"} {
			say(xds.TypeCluster, nonce)
		}
		p.quiet()
		p.ack(xds.TypeCluster)
		p.wantAck("lds l=1")
		p.ack(xds.TypeListener)
		p.ack(xds.TypeCluster)
		p.ack(xds.TypeCluster)
		p.quiet()
		h.set(xds.TypeCluster, map[string]string{"a": "a=2", "b": "b=1"})
		h.push()
		if p.delta {
			p.wantAck("cds a=2")
		} else {
			p.wantAck("cds a=2 b=1")
		}
		p.quiet()
	})
}

// rawCodec sends bytes.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// Garbage in place of a request, at the beginning of a stream or later, ends the stream or counts
// as an empty request; it never affects others.
func TestGarbage(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	h.push()
	conn, err := grpc.NewClient(h.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	good, err := proto.Marshal(&discoveryv3.DiscoveryRequest{Node: shopNode(t, nil), TypeUrl: xds.TypeCluster, ResponseNonce: "1"})
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	ends := map[codes.Code]int{}
	for i := range 600 {
		method := []string{"StreamAggregatedResources", "DeltaAggregatedResources"}[i%2]
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
			"/envoy.service.discovery.v3.AggregatedDiscoveryService/"+method, grpc.ForceCodecV2(rawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + rnd.IntN(3) {
			junk := spoil(rnd, good)
			if err := s.SendMsg(&junk); err != nil {
				break // the stream has ended
			}
		}
		_ = s.CloseSend() // as above
		for err = nil; err == nil; {
			var b []byte
			err = s.RecvMsg(&b)
		}
		ends[status.Code(err)]++
		cancel()
	}
	for code := range ends {
		switch code {
		case codes.InvalidArgument, codes.FailedPrecondition, codes.Unknown, codes.OK: // io.EOF is Unknown
		default:
			t.Errorf("garbage ends a stream with %s", code)
		}
	}
	if ends[codes.InvalidArgument] < 100 {
		t.Errorf("garbage is hardly refused: %v", ends)
	}
	until(t, "all streams are gone", func() bool { return h.server.Connected() == 0 })
	p := h.connect(t, false)
	p.subscribe(xds.TypeCluster)
	p.wantAck("cds a=1")
}

// spoil returns noise, or a request with some bytes changed, cut or repeated.
func spoil(rnd *rand.Rand, good []byte) []byte {
	b := append([]byte(nil), good...)
	switch rnd.IntN(4) {
	case 0:
		b = make([]byte, rnd.IntN(2000))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
	case 1:
		for range 1 + rnd.IntN(8) {
			b[rnd.IntN(len(b))] = byte(rnd.Uint32())
		}
	case 2:
		b = b[:rnd.IntN(len(b))]
	case 3:
		at := rnd.IntN(len(b))
		b = append(b[:at:at], b[rnd.IntN(len(b)):]...)
	}
	return b
}

// TestStorm connects and disconnects many proxies at random during changes: none of them leaks, and
// a permanent proxy is served.
func TestStorm(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	h.set(xds.TypeCluster, map[string]string{"a": "a=0"})
	h.push()
	stays := h.connect(t, true)
	stays.subscribe(xds.TypeCluster)
	stays.wantAck("cds a=0")
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; ; i++ {
			h.set(xds.TypeCluster, map[string]string{"a": "a=0", "b": fmt.Sprint("b=", i)})
			h.push()
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	all.Go(func() {
		for m := range stays.got {
			typeURL, line := stays.describe(m)
			if strings.Contains(line, "b=end") {
				return
			}
			stays.ack(typeURL)
		}
	})
	var storm sync.WaitGroup
	for w := range 20 {
		storm.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 3))
			for range 50 {
				h.comeAndGo(t, rnd)
			}
		})
	}
	storm.Wait()
	close(stop)
	until(t, "only one stream is left", func() bool { return h.server.Connected() == 1 })
	h.set(xds.TypeCluster, map[string]string{"a": "a=0", "b": "b=end"})
	h.push()
	all.Wait()
	until(t, "nothing waits for a push", func() bool { return h.server.queue.Len() == 0 })
	runtime.GC()
	h.server.shared.mu.Lock()
	defer h.server.shared.mu.Unlock()
	if n := len(h.server.shared.updates); n > maxUpdates {
		t.Errorf("%d differences are remembered", n)
	}
}

// comeAndGo opens a stream, perhaps subscribes, perhaps reads, and leaves.
func (h *harness) comeAndGo(t *testing.T, rnd *rand.Rand) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := h.client.DeltaAggregatedResources(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	if rnd.IntN(4) == 0 {
		return
	}
	for _, typeURL := range []string{xds.TypeCluster, xds.TypeEndpoint, xds.TypeListener}[:1+rnd.IntN(3)] {
		if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: shopNode(t, nil), TypeUrl: typeURL, ResourceNamesSubscribe: []string{"a", "*"}[:rnd.IntN(3)]}); err != nil {
			t.Error(err)
			return
		}
	}
	if rnd.IntN(2) == 0 {
		_, _ = s.Recv() // whatever it is
	}
}
