// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package connlimit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// network is a listener whose connections the test creates.
type network struct{ conns chan net.Conn }

func (n network) Accept() (net.Conn, error) {
	c, ok := <-n.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (n network) Close() error   { close(n.conns); return nil }
func (n network) Addr() net.Addr { return &net.TCPAddr{} }

// from is a pipe with the address of its peer.
type from struct {
	net.Conn
	peer net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.peer }

// world is a Listener with its metrics, whose connections the test creates.
type world struct {
	t        *testing.T
	network  network
	listener *Listener
	closed   map[string]int // reasons
}

func newWorld(t *testing.T, cfg Config) *world {
	w := &world{t: t, network: network{make(chan net.Conn)}, closed: map[string]int{}}
	cfg.OnClose = func(reason string) { w.closed[reason]++ }
	w.listener = Listen(w.network, cfg)
	return w
}

// dial connects from an address. server is nil if the connection was rejected.
func (w *world) dial(address string) (client net.Conn, server *Conn) {
	w.t.Helper()
	client, raw := net.Pipe()
	var peer net.Addr = &net.UnixAddr{}
	if address != "" {
		peer = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 1234))
	}
	accepted := make(chan *Conn, 1)
	go func() {
		c, err := w.listener.Accept()
		if err == nil {
			accepted <- c.(*Conn)
		}
	}()
	w.network.conns <- from{raw, peer}
	synctest.Wait()
	select {
	case server = <-accepted:
	default:
		// Accept is waiting for the next connection; make it return.
		_ = w.network.Close()
		synctest.Wait()
		w.network.conns = make(chan net.Conn)
		w.listener.Listener = w.network
	}
	return client, server
}

// want checks whether a connection from an address is accepted.
func (w *world) want(address string, accepted bool) *Conn {
	w.t.Helper()
	_, c := w.dial(address)
	if (c != nil) != accepted {
		w.t.Errorf("connection from %q accepted: %v, want %v", address, c != nil, accepted)
	}
	return c
}

func isOpen(c *Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, net.ErrClosed)
}

func TestPerSource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{PerSource: 2, Reserved: Loopback})
		first := w.want("10.0.0.1", true)
		w.want("::ffff:10.0.0.1", true) // the same address
		w.want("10.0.0.1", false)
		w.want("10.0.0.2", true)
		w.want("2001:db8::1", true)
		w.want("2001:db8::2", true)
		w.want("2001:db8:0:0:ffff::3", false) // in the same network
		w.want("2001:db8:0:1::1", true)
		for range 10 {
			w.want("127.0.0.1", true)
			w.want("", true) // a Unix socket has no source
		}
		w.want("127.0.0.6", true)
		w.want("127.0.0.6", true)
		w.want("127.0.0.6", false)
		_ = first.Close()
		_ = first.Close() // counted once
		w.want("10.0.0.1", true)
		w.want("10.0.0.1", false)
		if w.closed[ReasonSource] != 4 || len(w.closed) != 1 {
			t.Errorf("closed connections: got %v", w.closed)
		}
	})
}

// TestNetwork configures an IPv6 network with a multiple of the limits of an address.
func TestNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{PerSource: 2, Network: 3, Rate: ratelimit.Limit{PerSecond: 1, Burst: 3}, Work: ratelimit.Limit{PerSecond: 1, Burst: 10}})
		for i := range 6 {
			c := w.want(fmt.Sprintf("2001:db8::%d", i+1), true)
			if got := c.budget.Load().Burst(); got != 30 {
				t.Errorf("burst of the network: got %d frames, want 30", got)
			}
		}
		w.want("2001:db8::7", false)
		w.want("10.0.0.1", true)
		if c := w.want("10.0.0.1", true); c.budget.Load().Burst() != 10 {
			t.Errorf("burst of an address: got %d frames, want 10", c.budget.Load().Burst())
		}
		w.want("10.0.0.1", false)
		if w.closed[ReasonSource] != 2 || len(w.closed) != 1 {
			t.Errorf("closed connections: got %v", w.closed)
		}
	})
}

// TestEachAddress checks that addresses in an IPv6 network cannot use each other's share.
func TestEachAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{PerSource: 1, EachAddress: true, Rate: ratelimit.Limit{PerSecond: 1, Burst: 2}})
		w.want("2001:db8::1", true)
		w.want("2001:db8::1", false)
		for i := range 10 {
			w.want(fmt.Sprintf("2001:db8::%x", i+2), true)
		}
	})
}

func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Rate: ratelimit.Limit{PerSecond: 1, Burst: 3}})
		for range 3 {
			_ = w.want("10.0.0.1", true).Close()
		}
		w.want("10.0.0.1", false)
		w.want("10.0.0.2", true)
		time.Sleep(time.Second)
		w.want("10.0.0.1", true)
		if w.closed[ReasonRate] != 1 {
			t.Errorf("closed connections: got %v", w.closed)
		}
	})
}

func TestTotal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Total: 4, Reserve: 2, Reserved: Loopback})
		a := w.want("10.0.0.1", true)
		w.want("10.0.0.2", true)
		w.want("10.0.0.3", false)
		w.want("127.0.0.1", true)
		w.want("127.0.0.1", true)
		w.want("127.0.0.1", false)
		_ = a.Close()
		w.want("10.0.0.3", true)
		if w.closed[ReasonTotal] != 2 || w.listener.Open() != 4 {
			t.Errorf("%d connections are open, closed: %v", w.listener.Open(), w.closed)
		}
	})
}

func TestEvict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Total: 4, Reserve: 1, Reserved: Loopback, Evict: true})
		a, b, c := w.want("10.0.0.1", true), w.want("10.0.0.2", true), w.want("10.0.0.3", true)
		a.Use()
		c.Use()
		c.Wait()
		w.want("10.0.0.4", true).Use() // replaces b
		if isOpen(b) || !isOpen(a) || !isOpen(c) {
			t.Errorf("open: a %v, b %v, c %v; want only b closed, which waited longest", isOpen(a), isOpen(b), isOpen(c))
		}
		own := w.want("127.0.0.1", true) // uses the reserve
		w.want("10.0.0.5", true).Use()   // replaces c
		w.want("10.0.0.6", false)        // all are in use, and a reserved connection is not closed for an ordinary one
		if !isOpen(own) {
			t.Error("a reserved connection was closed for an ordinary one")
		}
		own.Use()
		w.want("127.0.0.1", false)
		a.Wait()
		w.want("127.0.0.1", true)
		if isOpen(a) || w.listener.Open() != 4 {
			t.Errorf("%d connections are open, want 4 without a", w.listener.Open())
		}
		if w.closed[ReasonEvicted] != 3 || w.closed[ReasonTotal] != 2 {
			t.Errorf("closed connections: got %v", w.closed)
		}
	})
}

func TestFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Total: 6, Reserve: 1, Reserved: Loopback, Fair: 1})
		many := []*Conn{w.want("10.0.0.1", true), w.want("10.0.0.1", true), w.want("10.0.0.1", true)}
		two := []*Conn{w.want("10.0.0.2", true), w.want("10.0.0.2", true)}
		for _, c := range append(many, two...) {
			c.Use()
		}
		w.want("10.0.0.1", false) // this source already has the most connections
		many[1].Wait()
		single := w.want("10.0.0.3", true) // replaces the waiting one
		if isOpen(many[1]) || !isOpen(many[0]) || !isOpen(many[2]) {
			t.Errorf("connections of the source with the most: open: %v, %v, %v", isOpen(many[0]), isOpen(many[1]), isOpen(many[2]))
		}
		w.want("10.0.0.4", true) // replaces the oldest, because all connections of the sources with the most are in use
		if isOpen(many[0]) || !isOpen(single) {
			t.Error("the closed connection is not the oldest of the source with the most")
		}
		w.want("10.0.0.2", false)
		w.want("10.0.0.5", true) // replaces one of two
		if isOpen(two[0]) || !isOpen(two[1]) {
			t.Error("the closed connection is not the oldest of the source with two")
		}
		w.want("10.0.0.4", true) // no source has more than one: replaces the oldest of all
		if isOpen(many[2]) || !isOpen(two[1]) {
			t.Error("the closed connection is not the oldest of all")
		}
		w.want("127.0.0.1", true) // uses the reserve
		w.want("127.0.0.1", true) // replaces an ordinary one
		if w.listener.Open() != 6 || w.closed[ReasonEvicted] != 5 || w.closed[ReasonTotal] != 2 || w.listener.all[ordinary].Len() != 4 {
			t.Errorf("%d connections are open, closed: %v, %d ordinary", w.listener.Open(), w.closed, w.listener.all[ordinary].Len())
		}
		for range 10 {
			w.want("127.0.0.1", true).Use() // replace the ordinary ones, then the oldest reserved ones
		}
		if w.listener.Open() != 6 || w.listener.all[ordinary].Len() != 0 {
			t.Errorf("%d connections are open, %d ordinary", w.listener.Open(), w.listener.all[ordinary].Len())
		}
	})
}

func TestUnused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Unused: time.Minute})
		idle, used, gone := w.want("10.0.0.1", true), w.want("10.0.0.1", true), w.want("10.0.0.1", true)
		used.Use()
		used.Wait()
		_ = gone.Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		if isOpen(idle) || !isOpen(used) || w.closed[ReasonUnused] != 1 {
			t.Errorf("open: idle %v, used %v; closed: %v", isOpen(idle), isOpen(used), w.closed)
		}
	})
}

// TestStall uses peers that read nothing, slowly, or everything, and servers that set their own
// deadline.
func TestStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Stall: 10 * time.Second})
		text := make([]byte, 1<<20)
		client, server := w.dial("10.0.0.1")
		began := time.Now()
		n, err := server.Write(text)
		if n != 0 || err == nil || time.Since(began) != 10*time.Second || w.closed[ReasonStalled] != 1 {
			t.Errorf("a peer that reads nothing: wrote %d bytes, error %v after %s, closed: %v", n, err, time.Since(began), w.closed)
		}
		_ = client.Close()

		client, server = w.dial("10.0.0.1")
		go func() {
			for { // reads until the connection is closed
				time.Sleep(9 * time.Second)
				if _, err := client.Read(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		}()
		if n, err := server.Write(text[:100<<10]); n != 100<<10 || err != nil {
			t.Errorf("a peer that reads slowly: wrote %d bytes, error %v", n, err)
		}
		_ = server.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := server.Write(text); err == nil {
			t.Error("the deadline of the server is ignored")
		}
		_ = server.Close()
		time.Sleep(time.Minute)
		if w.closed[ReasonStalled] != 1 {
			t.Errorf("closed connections: got %v", w.closed)
		}
	})
}

// TestHTTP uses a real HTTP server. A new connection must be served while others send no request,
// send part of one, or are idle. Requests in progress must not be interrupted.
func TestHTTP(t *testing.T) {
	t.Parallel()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const total = 8
	l := Listen(raw, Config{Total: total, Evict: true})
	busy, done := make(chan struct{}), make(chan struct{})
	server := &http.Server{ConnState: ConnState, ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(busy)
			<-done
		}
		_, _ = fmt.Fprintf(w, "hello %s", r.RemoteAddr)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	send := func(text string) net.Conn {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_, _ = io.WriteString(c, text)
		return c
	}
	answer := func(c net.Conn) string {
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		return string(b[:n])
	}
	const get = "GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
	slow := send(fmt.Sprintf(get, "slow"))
	<-busy
	for i := range 3 * total {
		send([]string{"", "GET / HTTP/1.1\r\nX-A: "}[i%2])
		c := send(fmt.Sprintf(get, ""))
		if a := answer(c); !strings.Contains(a, "hello "+c.LocalAddr().String()) {
			t.Fatalf("request %d: got %q", i, a)
		}
	}
	if l.Open() > total {
		t.Errorf("%d connections are open, want at most %d", l.Open(), total)
	}
	close(done)
	if a := answer(slow); !strings.Contains(a, "hello "+slow.LocalAddr().String()) {
		t.Errorf("the request in progress: got %q", a)
	}
}
