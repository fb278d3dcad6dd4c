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

// Reasons for closing a connection, as passed to OnClose.
const (
	ReasonTotal   = "total"   // there are too many connections
	ReasonSource  = "source"  // its source has too many
	ReasonRate    = "rate"    // its source opens connections too fast
	ReasonEvicted = "evicted" // it was closed to make room for another one
	ReasonUnused  = "unused"  // it was not used for Config.Unused
	ReasonStalled = "stalled" // its peer did not read for Config.Stall
	ReasonFlood   = "flood"   // its peer sent more frames than Config.Work
)

// Reasons returns all reasons, so that counters can be initialised to zero.
func Reasons() []string {
	return []string{ReasonTotal, ReasonSource, ReasonRate, ReasonEvicted, ReasonUnused, ReasonStalled, ReasonFlood}
}

// maxSources is the maximum number of sources whose rate is tracked.
const maxSources = 16384

// Config holds the limits of a listener. The zero value of a field means that
// there is no such limit.
type Config struct {
	// Total is the maximum number of open connections.
	Total int
	// PerSource is the maximum number of connections of one source. A source is an IPv4 address or
	// an IPv6 /64 network, since one machine can use a whole /64 network.
	PerSource int
	// Network multiplies PerSource, Rate and Work for a /64 network, which several machines or pods
	// may share. Zero means one.
	Network int
	// EachAddress treats each IPv6 address as a source of its own. It is meant for servers with
	// Fair, where a machine with many addresses gains little: in many clusters, all pods and nodes
	// share a /64 network.
	EachAddress bool
	// Rate limits the new connections of one source.
	Rate ratelimit.Limit
	// Reserved reports whether a source is exempt from PerSource and Rate, and may use the last
	// Reserve connections of Total, which other sources may not.
	Reserved func(source netip.Addr) bool
	Reserve  int
	// Evict makes room for a new connection when Total is reached, by closing the connection that
	// has waited longest for its first or next request. A connection of a reserved source is closed
	// only for another reserved source. If all connections are in use, or Evict is not set, the new
	// one is closed.
	Evict bool
	// Fair also makes room among connections in use, for servers whose requests may be interrupted.
	// It replaces Evict. If a source has more than Fair connections, one of the source with the
	// most is closed: the one that has waited longest or, if all are in use, the oldest. A source
	// that would then have the most connections gets no room. If no source has more than Fair, the
	// oldest connection is closed. A reserved source always gets room, if necessary from another
	// reserved source.
	Fair int
	// Unused is how long a new connection may stay open before it is used.
	Unused time.Duration
	// Stall is how long a write may wait for the peer to read.
	Stall time.Duration
	// Work is the budget for frames that a peer sends to a gRPC server; see [DefaultWork]. The
	// connections of a source share a budget until they are trusted.
	Work ratelimit.Limit
	// SendBuffer is the size of the kernel's buffer for data that a peer has not read. It counts
	// towards the memory of the process's control group.
	SendBuffer int
	// OnClose is called with the reason for each connection that a limit closes. It must return
	// quickly and be safe for concurrent use.
	OnClose func(reason string)
}

// Loopback reports whether a source is this machine. It excludes 127.0.0.6 and ::6, which Envoy
// uses as source for forwarded connections.
func Loopback(source netip.Addr) bool {
	source = source.Unmap()
	return source.IsLoopback() && source != netip.AddrFrom4([4]byte{127, 0, 0, 6})
}

// Listener is a net.Listener with limits. Create it with [Listen].
type Listener struct {
	net.Listener
	cfg   Config
	rates *ratelimit.Keyed[netip.Prefix] // of new connections
	work  *ratelimit.Keyed[netip.Prefix] // of frames

	mu       sync.Mutex // guards the fields below
	open     int
	ordinary int                  // those of sources that are not reserved
	sources  map[netip.Prefix]int // number of ordinary connections of each source
	// waiting holds the connections that are not in use, the one that has waited longest in front.
	// It has one list for ordinary and one for reserved sources.
	waiting [2]*list.List // of *Conn
	// all holds all connections in order of arrival. It is empty without Config.Fair.
	all [2]*list.List
}

// Listen returns a listener that accepts connections of l within limits.
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

// Accept implements net.Listener. It closes connections that exceed a limit and waits for the next
// one.
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
			_ = raw.Close() // the server has not seen it
			continue
		}
		return c, nil
	}
}

// admit counts a connection, or returns the reason why it must be rejected. If it returns another
// connection as evicted, the caller must close it.
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

// share returns the multiplier of the limits of a source.
func (l *Listener) share(source netip.Prefix) int {
	if source.Addr().Is6() {
		return max(1, l.cfg.Network)
	}
	return 1
}

// times returns the limit of a source, given the limit of a single address.
func (l *Listener) times(source netip.Prefix, limit ratelimit.Limit) ratelimit.Limit {
	n := l.share(source)
	return ratelimit.Limit{PerSecond: limit.PerSecond * float64(n), Burst: limit.Burst * n}
}

// full reports whether a new connection requires closing another one. The caller holds mu.
func (l *Listener) full(reserved bool) bool {
	if l.cfg.Total <= 0 {
		return false
	}
	return l.open >= l.cfg.Total || !reserved && l.ordinary >= l.cfg.Total-l.cfg.Reserve
}

// victim returns the connection to close for a new one. The caller holds mu.
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

// unfair returns the ordinary connection to close for c according to Config.Fair, or nil. The
// caller holds mu.
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

// release removes a connection from the counts, once, and stops its timer. The caller holds mu.
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

// Open returns the number of open connections.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// ConnState tracks which connections have a request. It is meant for http.Server.ConnState and
// ignores connections of other listeners.
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
	case http.StateNew, http.StateClosed: // handled by Accept and Close
	}
}

// sourceOf returns the source of an address. It returns zero values for sockets without an IP
// address.
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
