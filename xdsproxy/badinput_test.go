// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// rawPlane runs a control plane that sends arbitrary bytes.
func rawPlane(t *testing.T, handle func(s grpc.ServerStream) error) (address string) {
	t.Helper()
	g := grpc.NewServer(grpc.ForceServerCodecV2(codec{}))
	handler := func(_ any, s grpc.ServerStream) error { return handle(s) }
	g.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: methodSotW, Handler: handler, ServerStreams: true, ClientStreams: true},
		{StreamName: methodDelta, Handler: handler, ServerStreams: true, ClientStreams: true},
	}}, nil)
	l := listen(t, "127.77.51.10:0")
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return l.Addr().String()
}

// responseOf encodes a response of either variant.
func responseOf(delta bool, typeURL, nonce string, size int) []byte {
	var m proto.Message = &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, Resources: []*anypb.Any{{TypeUrl: typeURL, Value: make([]byte, size)}}}
	if delta {
		m = &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, Resources: []*discoveryv3.Resource{
			{Name: "r", Resource: &anypb.Any{TypeUrl: typeURL, Value: make([]byte, size)}},
		}}
	}
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// TestBadResponses checks that malformed responses and responses of unknown types are dropped,
// without effect on later responses. Envoy must receive the nonces of the control plane unchanged.
func TestBadResponses(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		good := func(nonce string) []byte { return responseOf(delta, clusterType, nonce, 100) }
		frames := [][]byte{
			good("7"),
			{},
			{0xff},
			[]byte("this is not a message"), good("x")[:50], append(good("x"), 0x80),
			{0x0b, 0x0b, 0x0b},
			responseOf(delta, "type.googleapis.com/example.Unknown", "x", 10), responseOf(delta, "", "x", 10),
			responseOf(delta, "istio.io/debug/syncz", "x", 10), responseOf(delta, healthType, "x", 10),
			responseOf(delta, envoyPrefix+strings.Repeat("x", maxText), "x", 10),
			good("7"), good("3"), good(""),
		}
		address := rawPlane(t, func(s grpc.ServerStream) error {
			for _, f := range frames {
				if err := s.SendMsg(frameOf(f)); err != nil {
					return err
				}
			}
			<-s.Context().Done()
			return nil
		})
		reg := prometheus.NewRegistry()
		r := startRig(t, Config{Registerer: reg, Upstream: UpstreamConfig{Address: address}}, delta)
		e := r.envoy(t)
		e.ask(clusterType)
		for _, nonce := range []string{"7", "7", "3", ""} {
			e.wants(clusterType, nonce)
		}
		e.take(clusterType, "", "of nobody")
		if n := counter(t, reg, "outrigger_agent_xds_dropped_total"); int(n) != len(frames)-4 {
			t.Errorf("%v messages were dropped, want %d", n, len(frames)-4)
		}
		if n := len(r.proxy.Status().Types); n > 6 {
			t.Errorf("%d types in the status", n)
		}
	})
}

// TestBadRequests checks that malformed requests are passed to the control plane, which ends the
// stream, and that the next stream works. The number of types in status and metrics is limited,
// whatever a peer requests.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r := startRig(t, Config{Registerer: reg}, false)
	stream, err := r.dial(t).NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/"+methodSotW, grpc.ForceCodecV2(codec{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(frameOf([]byte{0xff, 0xff})); err != nil {
		t.Fatal(err)
	}
	var f frame
	if err := stream.RecvMsg(&f); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v, want Unavailable", err)
	}
	e := r.envoy(t)
	for i := range 3 * maxTypes {
		e.send(&discoveryv3.DiscoveryRequest{TypeUrl: fmt.Sprintf("%d", i), ResponseNonce: "n", ErrorDetail: nackFor("no")})
		r.next(t, "request")
	}
	if n := len(r.proxy.Status().Types); n > maxTypes {
		t.Errorf("%d types are in the status, want %d at most", n, maxTypes)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if n := len(family.GetMetric()); n > maxTypes {
			t.Errorf("%s has %d series", family.GetName(), n)
		}
	}
}

// TestGiganticResponse checks that a response above the size limit ends the stream before it is
// read, and that later streams work.
func TestGiganticResponse(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		var times atomic.Int32
		address := rawPlane(t, func(s grpc.ServerStream) error {
			if err := s.RecvMsg(&frame{}); err != nil { // a stream that ends before would refuse the request
				return err
			}
			size := 100
			if times.Add(1) == 1 {
				size = 2 << 20
			}
			if err := s.SendMsg(frameOf(responseOf(delta, clusterType, "1", size))); err != nil {
				return err
			}
			<-s.Context().Done()
			return nil
		})
		r := startRig(t, Config{MaxMessage: 1 << 20, Upstream: UpstreamConfig{Address: address}}, delta)
		e := r.envoy(t)
		e.ask(clusterType)
		if _, err := e.recv(); grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "larger than max") {
			t.Errorf("envoy's stream ended with %v, want Unavailable with the reason", err)
		}
		if st := r.proxy.Status(); !strings.Contains(st.Failure, "larger than max") {
			t.Errorf("status %+v does not say why", st)
		}
		e = r.envoy(t)
		e.ask(clusterType)
		e.wants(clusterType, "1")
	})
}

// cable is a connection between relay and control plane that a test can cut.
type cable struct {
	left atomic.Int64 // bytes that may still pass to the relay
	cut  func(net.Conn)
}

// lay returns an address that forwards connections to another one.
func (c *cable) lay(t *testing.T, to string) string {
	t.Helper()
	l := listen(t, "127.77.51.11:0")
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(far, near)
				_ = far.Close()
			}()
			go c.towards(near, far)
		}
	}()
	return l.Addr().String()
}

func (c *cable) towards(near, far net.Conn) {
	buf := make([]byte, 4<<10)
	for {
		n, err := far.Read(buf)
		if err != nil {
			_ = near.Close()
			return
		}
		n = int(min(int64(n), c.left.Load()))
		c.left.Add(-int64(n))
		if _, err := near.Write(buf[:n]); err != nil || c.left.Load() == 0 {
			c.cut(near)
			_, _ = io.Copy(io.Discard, far) // the control plane notices nothing
			return
		}
	}
}

// TestHalfAResponse checks that a control plane that resets the connection, closes it or stops
// sending in the middle of a response affects only that stream.
func TestHalfAResponse(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(net.Conn){
		"reset":  func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); _ = c.Close() },
		"close":  func(c net.Conn) { _ = c.Close() },
		"silent": func(net.Conn) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &cable{cut: cut}
			c.left.Store(1 << 40)
			got := make(chan struct{}, 10)
			send := make(chan int)
			var streams atomic.Int32
			address := rawPlane(t, func(s grpc.ServerStream) error {
				streams.Add(1)
				defer streams.Add(-1)
				go func() {
					for {
						var f frame
						if s.RecvMsg(&f) != nil {
							return
						}
						got <- struct{}{}
					}
				}()
				for {
					select {
					case size := <-send:
						if err := s.SendMsg(frameOf(responseOf(false, clusterType, "1", size))); err != nil {
							return err
						}
					case <-s.Context().Done():
						return nil
					}
				}
			})
			r := startRig(t, Config{Upstream: UpstreamConfig{Address: c.lay(t, address)}}, false)
			e := r.envoy(t)
			e.ask(clusterType)
			receive(t, got, "request")
			send <- 100
			e.wants(clusterType, "1")
			c.left.Store(300 << 10)
			send <- 1 << 20
			if name == "silent" {
				eventually(t, "half of it has come", func() bool { return c.left.Load() == 0 })
				e.take(clusterType, "", "1") // the other direction still works
				receive(t, got, "request")
			} else if _, err := e.recv(); grpcstatus.Code(err) != codes.Unavailable {
				t.Errorf("envoy's stream ended with %v, want Unavailable", err)
			}
			c.left.Store(1 << 40)
			again := r.envoy(t)
			again.ask(clusterType)
			receive(t, got, "request of the next stream")
			eventually(t, "the control plane has lost the other stream", func() bool { return streams.Load() == 1 })
			send <- 1 << 20
			again.wants(clusterType, "1")
			_ = e.conn.Close()
			_ = again.conn.Close()
		})
	}
}

// TestFlood checks that an Envoy that does not read slows down the control plane. The relay buffers
// no more than flow-control windows, and nothing is lost or reordered.
func TestFlood(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		const count, size = 1500, 100 << 10 // 150 MB
		var sent atomic.Int64
		address := rawPlane(t, func(s grpc.ServerStream) error {
			for i := range count {
				if err := s.SendMsg(frameOf(responseOf(delta, clusterType, fmt.Sprint(i), size))); err != nil {
					return err
				}
				sent.Store(int64(i + 1))
			}
			<-s.Context().Done()
			return nil
		})
		r := startRig(t, Config{Upstream: UpstreamConfig{Address: address}}, delta)
		e := r.envoy(t)
		e.ask(clusterType)
		e.wants(clusterType, "0")
		before := int64(-1)
		eventually(t, "the control plane has to wait", func() bool {
			now := sent.Load()
			still := now == before
			before = now
			time.Sleep(100 * time.Millisecond)
			return still
		})
		if held := before * size; held > 40<<20 {
			t.Errorf("%d bytes are in flight to an Envoy that does not read", held)
		}
		for i := 1; i < count; i++ {
			e.wants(clusterType, fmt.Sprint(i))
		}
	})
}

// TestDeafControlPlane checks that a control plane that reads nothing and sends many responses of
// the agent's own types does not block Envoy's types. Acknowledgements are merged, not queued.
func TestDeafControlPlane(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		const count = 20_000
		address := rawPlane(t, func(s grpc.ServerStream) error {
			for range count {
				if err := s.SendMsg(frameOf(responseOf(delta, tableType, "n", 10))); err != nil {
					return err
				}
			}
			if err := s.SendMsg(frameOf(responseOf(delta, clusterType, "1", 10))); err != nil {
				return err
			}
			<-s.Context().Done()
			return nil
		})
		r := startRig(t, Config{Upstream: UpstreamConfig{Address: address}, Consumers: []Consumer{
			{TypeURL: tableType, Subscribe: true, Handle: func([][]byte, []string) error { return nil }},
		}}, delta)
		e := r.envoy(t)
		e.ask(listenerType)
		e.wants(clusterType, "1")
		r.proxy.mu.Lock()
		defer r.proxy.mu.Unlock()
		for _, s := range r.proxy.current {
			s.outbox.mu.Lock()
			if n := len(s.outbox.order); n > 1 || len(s.outbox.next) != n {
				t.Errorf("%d messages wait to be sent, %d of them known", n, len(s.outbox.next))
			}
			s.outbox.mu.Unlock()
		}
	})
}

func nackFor(reason string) *status.Status { return &status.Status{Code: 13, Message: reason} }
