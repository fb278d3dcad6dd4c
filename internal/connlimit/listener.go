// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package connlimit

import (
	"container/list"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// Why a connection is closed, as OnClose names it.
const (
	ReasonTotal   = "total"   // there are too many
	ReasonSource  = "source"  // its source has too many
	ReasonRate    = "rate"    // its source opens too many in a short time
	ReasonEvicted = "evicted" // another one needed its place
	ReasonUnused  = "unused"  // nobody used it for Config.Unused
	ReasonStalled = "stalled" // its peer did not read for Config.Stall
	ReasonFlood   = "flood"   // its peer sent more frames than Config.Work
)

// Reasons returns all reasons, so that counters can begin with zero.
func Reasons() []string {
	return []string{ReasonTotal, ReasonSource, ReasonRate, ReasonEvicted, ReasonUnused, ReasonStalled, ReasonFlood}
}

// maxSources bounds the sources whose rate is remembered.
const maxSources = 16384

// Config holds the limits of a listener. The zero value of a field means that
// there is no such limit.
type Config struct {
	// Total is how many connections are open at once.
	Total int
	// PerSource is how many connections one source may have. A source is an IPv4
	// address, or a /64 network of IPv6, which one machine can have as a whole.
	PerSource int
	// Network is how many times PerSource, Rate and Work a /64 network has: machines
	// or pods may share one. Zero means once.
	Network int
	// EachAddress makes each address of IPv6 a source of its own. It is for servers
	// with Fair, where a machine with many addresses gains little: in many clusters
	// all pods and nodes share a /64 network.
	EachAddress bool
	// Rate limits new connections of one source.
	Rate ratelimit.Limit
	// Reserved reports whether a source is exempt from PerSource and Rate, and may
	// use the Reserve connections of Total that nobody else may.
	Reserved func(source netip.Addr) bool
	Reserve  int
	// Evict makes room for a new connection when there are Total: the connection
	// that has waited for its first or next request the longest is closed. A
	// connection of a reserved source is closed only for another one of them.
	// If all are in use, and without Evict, the new one is closed.
	Evict bool
	// Fair makes room among connections that are in use too, for servers whose
	// requests may be cut off, and replaces Evict. If a source has more than Fair
	// connections, one of the source that has the most is closed: the one that has
	// waited the longest or, if all are in use, the oldest. A source that would then
	// have the most itself gets no room. If no source has more, the oldest of all is
	// closed. A reserved source always gets room, if need be that of another one.
	Fair int
	// Unused is how long a new connection may stay before it is in use.
	Unused time.Duration
	// Stall is how long a write may wait for the peer to read.
	Stall time.Duration
	// Work is the budget of what a peer sends a gRPC server; see [DefaultWork]. The
	// connections of a source share one until they are trusted.
	Work ratelimit.Limit
	// SendBuffer is how many bytes the kernel holds of what a peer has not read. It
	// counts as memory of the process's control group.
	SendBuffer int
	// OnClose is called with the reason for each connection that a limit closes. It
	// must be quick, and may be called concurrently.
	OnClose func(reason string)
}

// Loopback reports whether a source is this machine itself. An Envoy hands on
// what others sent from 127.0.0.6 and ::6; these addresses are not.
func Loopback(source netip.Addr) bool {
	source = source.Unmap()
	return source.IsLoopback() && source != netip.AddrFrom4([4]byte{127, 0, 0, 6})
}

// Listener is a net.Listener with limits. Make it with [Listen].
type Listener struct {
	net.Listener
	cfg   Config
	rates *ratelimit.Keyed[netip.Prefix] // of new connections
	work  *ratelimit.Keyed[netip.Prefix] // of frames

	mu       sync.Mutex // guards the fields below
	open     int
	ordinary int                  // of them, those of sources that are not reserved
	sources  map[netip.Prefix]int // ordinary connections of each
	// waiting are the connections that are not in use, the one that has waited the
	// longest in front: those of ordinary sources, and of reserved ones.
	waiting [2]*list.List // of *Conn
	// all are all connections in the order of their arrival; empty without Config.Fair.
	all [2]*list.List
}

// Listen returns a listener that accepts the connections of l within limits.
func Listen(l net.Listener, cfg Config) *Listener {
	if cfg.Reserved == nil {
		cfg.Reserved = func(netip.Addr) bool { return false }
	}
	if cfg.OnClose == nil {
		cfg.OnClose = func(string) {}
	}
	return &Listener{
		Listener: l, cfg: cfg, rates: ratelimit.NewKeyed[netip.Prefix](maxSources), work: ratelimit.NewKeyed[netip.Prefix](maxSources),
		sources: map[netip.Prefix]int{}, waiting: [2]*list.List{list.New(), list.New()}, all: [2]*list.List{list.New(), list.New()},
	}
}

// Accept implements net.Listener. Connections beyond a limit are closed, and
// Accept waits for another one.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := l.wrap(raw)
		reason, evicted := l.admit(c)
		if evicted != nil {
			evicted.end(ReasonEvicted)
		}
		if reason != "" {
			l.cfg.OnClose(reason)
			_ = raw.Close() // nobody has seen it
			continue
		}
		return c, nil
	}
}

// admit counts a connection, or returns the reason why there is no room for it.
// It returns a connection that the caller must close for it, if there is one.
func (l *Listener) admit(c *Conn) (reason string, evicted *Conn) {
	if !c.reserved && c.source.IsValid() && l.cfg.Rate.Burst > 0 {
		if wait, _ := l.rates.Take(c.source, l.times(c.source, l.cfg.Rate), time.Now()); wait > 0 {
			return ReasonRate, nil
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.reserved && c.source.IsValid() && l.cfg.PerSource > 0 && l.sources[c.source] >= l.cfg.PerSource*l.share(c.source) {
		return ReasonSource, nil
	}
	if l.full(c.reserved) {
		if evicted = l.victim(c); evicted == nil {
			return ReasonTotal, nil
		}
		l.release(evicted)
	}
	l.open++
	if !c.reserved {
		l.ordinary++
		if c.source.IsValid() {
			l.sources[c.source]++
		}
	}
	c.waiting = l.waiting[c.class()].PushBack(c)
	if l.cfg.Fair > 0 {
		c.place = l.all[c.class()].PushBack(c)
	}
	if l.cfg.Unused > 0 {
		c.unused = time.AfterFunc(l.cfg.Unused, func() { c.end(ReasonUnused) })
	}
	return "", evicted
}

// share returns how many times the limits of an address a source has.
func (l *Listener) share(source netip.Prefix) int {
	if source.Addr().Is6() {
		return max(1, l.cfg.Network)
	}
	return 1
}

// times returns the limit of a source, given that of an address.
func (l *Listener) times(source netip.Prefix, limit ratelimit.Limit) ratelimit.Limit {
	n := l.share(source)
	return ratelimit.Limit{PerSecond: limit.PerSecond * float64(n), Burst: limit.Burst * n}
}

// full reports whether a new connection needs the place of another one. The
// caller holds mu.
func (l *Listener) full(reserved bool) bool {
	if l.cfg.Total <= 0 {
		return false
	}
	return l.open >= l.cfg.Total || !reserved && l.ordinary >= l.cfg.Total-l.cfg.Reserve
}

// victim returns the connection that makes room for a new one. The caller holds mu.
func (l *Listener) victim(c *Conn) *Conn {
	var front *list.Element
	switch {
	case l.cfg.Fair > 0:
		front = l.unfair(c)
	case l.cfg.Evict:
		front = l.waiting[ordinary].Front()
	default:
		return nil
	}
	if front == nil && c.reserved {
		if front = l.waiting[exempt].Front(); front == nil {
			front = l.all[exempt].Front()
		}
	}
	if front == nil {
		return nil
	}
	return front.Value.(*Conn)
}

// unfair returns the ordinary connection that Config.Fair closes for c, nil if there is
// none. The caller holds mu.
func (l *Listener) unfair(c *Conn) *list.Element {
	most := 0
	for _, n := range l.sources {
		most = max(most, n)
	}
	if most <= l.cfg.Fair {
		return l.all[ordinary].Front()
	}
	if !c.reserved && l.sources[c.source] >= most {
		return nil
	}
	for _, candidates := range []*list.List{l.waiting[ordinary], l.all[ordinary]} {
		for e := candidates.Front(); e != nil; e = e.Next() {
			if l.sources[e.Value.(*Conn).source] == most {
				return e
			}
		}
	}
	return nil
}

// release takes a connection out of the counts, once, and stops its timer. The
// caller holds mu.
func (l *Listener) release(c *Conn) {
	if c.released {
		return
	}
	c.released = true
	close(c.closed)
	c.stopUnused()
	l.open--
	if !c.reserved {
		l.ordinary--
		if c.source.IsValid() {
			if l.sources[c.source]--; l.sources[c.source] == 0 {
				delete(l.sources, c.source)
			}
		}
	}
	if c.waiting != nil {
		l.waiting[c.class()].Remove(c.waiting)
		c.waiting = nil
	}
	if c.place != nil {
		l.all[c.class()].Remove(c.place)
		c.place = nil
	}
}

// Open returns how many connections are open.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// ConnState tells the listener which connections have a request. It is meant for
// http.Server.ConnState; connections of other listeners are ignored.
func ConnState(conn net.Conn, state http.ConnState) {
	c := Of(conn)
	if c == nil {
		return
	}
	switch state {
	case http.StateActive, http.StateHijacked:
		c.Use()
	case http.StateIdle:
		c.Wait()
	case http.StateNew, http.StateClosed: // Accept and Close know
	}
}

// sourceOf returns the source of an address: nothing for sockets without one.
func (l *Listener) sourceOf(addr net.Addr) (source netip.Prefix, ip netip.Addr) {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}, netip.Addr{}
	}
	ip = tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() && !l.cfg.EachAddress {
		bits = 64
	}
	source, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}, netip.Addr{}
	}
	return source, ip
}
