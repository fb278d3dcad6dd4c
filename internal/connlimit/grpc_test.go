// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package connlimit

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// counting is a listener that counts the bytes read from all its connections.
type counting struct {
	net.Listener
	read *atomic.Int64
}

func (l counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.read}, err
}

type countingConn struct {
	net.Conn
	read *atomic.Int64
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// rpc is a gRPC server with limits that counts its calls.
type rpc struct {
	grpc_health_v1.UnimplementedHealthServer
	address     string
	calls, read atomic.Int64
	closed      chan string // reasons
}

// Check returns immediately if the caller is authenticated.
func (r *rpc) Check(ctx context.Context, q *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	r.calls.Add(1)
	if q.GetService() != "known" {
		return nil, status.Error(codes.Unauthenticated, "unknown caller")
	}
	Trust(ctx)
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func serveRPC(t *testing.T, cfg Config) *rpc {
	t.Helper()
	r := &rpc{closed: make(chan string, 1000)}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.OnClose = func(reason string) {
		select {
		case r.closed <- reason:
		default:
		}
	}
	r.address = raw.Addr().String()
	server := NewGRPCServer(insecure.NewCredentials(), GRPC{
		HeaderBytes: 64 << 10, MessageBytes: 1 << 20, Streams: 100, Window: 64 << 10,
		Handshake: time.Minute, Idle: time.Hour, Keepalive: time.Hour, Answer: time.Minute, PingEvery: time.Millisecond,
	})
	grpc_health_v1.RegisterHealthServer(server, r)
	go func() { _ = server.Serve(Listen(counting{raw, &r.read}, cfg)) }()
	t.Cleanup(server.Stop)
	return r
}

// badPeer is a connection that sends arbitrary HTTP/2 frames.
type badPeer struct {
	net.Conn
	*http2.Framer
	headers []byte
}

// attack connects from an address of this machine.
func (r *rpc) attack(t *testing.T, from string) *badPeer {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() { _, _ = io.Copy(io.Discard, c) }() // returns when the connection is closed
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: "/grpc.health.v1.Health/Check"},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	} {
		_ = e.WriteField(f) // writing to memory cannot fail
	}
	b := &badPeer{Conn: c, Framer: http2.NewFramer(c, nil), headers: block.Bytes()}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := b.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return b
}

// floods are the frames that a peer can send without end. Each function sends one or a few frames;
// id is a new stream.
var floods = map[string]func(b *badPeer, id uint32) error{
	"rapid reset": func(b *badPeer, id uint32) error {
		return errors.Join(b.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.headers, EndHeaders: true}), b.WriteRSTStream(id, http2.ErrCodeCancel))
	},
	"calls that are refused": func(b *badPeer, id uint32) error {
		return errors.Join(b.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.headers, EndHeaders: true}), b.WriteData(id, true, make([]byte, 5)))
	},
	"requests that are no calls": func(b *badPeer, id uint32) error {
		return b.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x82}, EndHeaders: true, EndStream: true})
	},
	"settings":         func(b *badPeer, _ uint32) error { return b.WriteSettings() },
	"pings":            func(b *badPeer, _ uint32) error { return b.WritePing(false, [8]byte{}) },
	"answers to pings": func(b *badPeer, _ uint32) error { return b.WritePing(true, [8]byte{}) },
	"windows":          func(b *badPeer, _ uint32) error { return b.WriteWindowUpdate(0, 1) },
	"empty data":       func(b *badPeer, _ uint32) error { return b.WriteData(1, false, nil) },
	"priorities": func(b *badPeer, _ uint32) error {
		return b.WritePriority(1, http2.PriorityParam{Weight: 1})
	},
	"unknown frames": func(b *badPeer, _ uint32) error { return b.WriteRawFrame(0xfa, 0, 0, nil) },
}

// TestFloods sends each kind of frame as fast as possible. The budget of the source must limit what
// the server reads and processes over all connections of the peer, and a client with another
// address must be served.
func TestFloods(t *testing.T) {
	t.Parallel()
	for name, send := range floods {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			budget := ratelimit.Limit{PerSecond: 50, Burst: 2000}
			r := serveRPC(t, Config{Work: budget})
			var sent atomic.Int64
			began := time.Now()
			for range 4 {
				b := r.attack(t, "127.66.1.1")
				go func() {
					for id := uint32(1); send(b, id) == nil; id += 2 {
						sent.Add(1)
					}
				}()
			}
			client, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close() })
			const served = 20
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			for i := range served {
				if _, err := grpc_health_v1.NewHealthClient(client).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "known"}); err != nil {
					t.Fatalf("call %d from another address: %v", i, err)
				}
			}
			for sent.Load() < 20000 && len(r.closed) == 0 { // the connection may have been closed earlier
				select {
				case <-ctx.Done():
					t.Fatalf("timeout after %d frames of the attack", sent.Load())
				case <-time.After(10 * time.Millisecond):
				}
			}
			// The budget of the peer since the start, including the permitted debt.
			allowed := float64(budget.Burst) + budget.PerSecond*(time.Since(began)+maxDebt).Seconds()
			if calls := r.calls.Load() - served; float64(calls) > allowed/costHeaders {
				t.Errorf("%d calls of the attack were handled, want at most %.0f", calls, allowed/costHeaders)
			}
			// Each of these frames has at most 128 bytes. The last ones of each connection were
			// read but not processed.
			if read := r.read.Load(); float64(read) > 128*(allowed+4*1<<10) {
				t.Errorf("%d bytes of the attack were read, want at most %.0f", read, 128*(allowed+4*1<<10))
			}
		})
	}
}

// TestHeaders sends endless headers, in a HEADERS frame and CONTINUATION frames. The server must
// stop reading soon, whatever the headers contain.
func TestHeaders(t *testing.T) {
	t.Parallel()
	random := make([]byte, 16<<10)
	_, _ = rand.Read(random) // never fails
	endless := append([]byte{0x00, 0x01, 'a', 0x7f, 0xff, 0xff, 0xff, 0x7f}, random...)
	for name, block := range map[string][]byte{
		"a value without end": endless[:16<<10],
		"many small fields":   bytes.Repeat([]byte{0x00, 0x01, 'a', 0x01, 'b'}, 3000),
		"table updates":       bytes.Repeat([]byte{0x20}, 16<<10),
		"empty fragments":     {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := serveRPC(t, Config{Work: ratelimit.Limit{PerSecond: 100, Burst: 1000}})
			b := r.attack(t, "127.66.1.1")
			err := b.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
			deadline := time.Now().Add(2 * time.Minute)
			_ = b.SetWriteDeadline(deadline)
			var sent int
			for ; err == nil && sent < 1<<20; sent++ {
				err = b.WriteContinuation(1, false, block)
			}
			if err == nil || time.Now().After(deadline) {
				t.Errorf("the server accepted %d frames, error %v", sent, err)
			}
			if read := r.read.Load(); read > 1<<20 {
				t.Errorf("the server read %d bytes of one header, want at most 1 MiB", read)
			}
		})
	}
}

// TestMeter checks that the meter finds the frames regardless of how the data is split into reads.
func TestMeter(t *testing.T) {
	t.Parallel()
	var sent bytes.Buffer
	sent.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&sent, nil)
	want := 0
	for i := range uint32(50) {
		_ = f.WriteSettings() // writing to memory cannot fail; this applies to all writes below
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: make([]byte, i*7), EndHeaders: i%2 == 0})
		_ = f.WriteContinuation(2*i+1, true, make([]byte, 3*i))
		_ = f.WriteData(2*i+1, true, make([]byte, i*i))
		want += 2*costFrame + 2*costHeaders
	}
	for size := 1; size < 200; size++ {
		m, got := newMeter(), 0
		for b := sent.Bytes(); len(b) > 0; {
			n := min(size, len(b))
			got += m.count(b[:n])
			b = b[n:]
		}
		if got != want {
			t.Fatalf("cost with reads of %d bytes: got %d, want %d", size, got, want)
		}
	}
}

// TestTrust checks that authenticated callers have their own budgets, so that a flood from their
// address does not delay them.
func TestTrust(t *testing.T) {
	t.Parallel()
	r := serveRPC(t, Config{Work: ratelimit.Limit{PerSecond: 0.001, Burst: 100}, Unused: time.Hour})
	client, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	known := &grpc_health_v1.HealthCheckRequest{Service: "known"}
	if _, err := grpc_health_v1.NewHealthClient(client).Check(ctx, known); err != nil {
		t.Fatal(err)
	}
	b := r.attack(t, "127.0.0.1")
	for b.WriteSettings() == nil { // until the server closes the connection
	}
	if reason := <-r.closed; reason != ReasonFlood {
		t.Errorf("reason of the close: got %s, want a flood", reason)
	}
	if _, err := grpc_health_v1.NewHealthClient(client).Check(ctx, known); err != nil {
		t.Errorf("a call after the flood: %v", err)
	}
}
