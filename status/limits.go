// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
)

const (
	// maxConns is the limit of connections. reservedConns of them are reserved for
	// the kubelet and this machine's Envoy. maxConnsPerSource is the limit of any
	// other source, and fairConns is what each source may have even if connections
	// of others must be closed for it.
	maxConns          = 512
	reservedConns     = 128
	maxConnsPerSource = 64
	fairConns         = 8
	// stallTime is how long a peer may stop reading an answer.
	stallTime = 10 * time.Second
	// sendBuffer is the size of the kernel's send buffer in bytes.
	sendBuffer = 64 << 10
	// gatewayAge is how long the gateways of the routes are cached.
	gatewayAge = 10 * time.Second
)

// limit returns the server's listener with limits that prevent strangers from locking
// out the kubelet: if its address is known, connections are reserved for it; if not,
// its connection replaces one of a peer that has more connections.
func (s *Server) limit() net.Listener {
	return connlimit.Listen(s.cfg.Listener, connlimit.Config{
		Total: maxConns, Reserve: reservedConns, Reserved: s.node.has, PerSource: maxConnsPerSource, EachAddress: true, Fair: fairConns, Stall: stallTime, SendBuffer: sendBuffer,
		OnClose: func(reason string) { s.metrics.closed.WithLabelValues(reason).Inc() },
	})
}

// knownNode has the addresses of the kubelet and of this machine's Envoy.
type knownNode struct {
	sources HookSources
	own     netip.Addr

	mu       sync.Mutex // guards the fields below
	gateways []netip.Addr
	read     time.Time
}

// newKnownNode returns the known addresses, given the address of the server.
func newKnownNode(sources HookSources, listens net.Addr) *knownNode {
	node := &knownNode{sources: sources}
	if tcp, ok := listens.(*net.TCPAddr); ok && !tcp.IP.IsUnspecified() {
		node.own = tcp.AddrPort().Addr().Unmap() // Envoy may connect from the server's own address
	}
	return node
}

// has reports whether an address is known.
func (n *knownNode) has(ip netip.Addr) bool {
	switch ip {
	case netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback(), n.own:
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.read.IsZero() || time.Since(n.read) > gatewayAge {
		n.gateways, n.read = gateways(os.ReadFile), time.Now()
	}
	return n.sources.isNode(ip, n.gateways)
}

const (
	// maxScrapes is the limit of concurrent scrapes, and maxScrapesPerSource that of
	// one source other than this machine, to save memory and time of Envoy's main
	// thread. Others wait for a short time.
	maxScrapes          = 16
	maxScrapesPerSource = 4
	scrapeWait          = 2 * time.Second
	// scrapeTurn is how long a scrape may run while others wait whose sources would
	// then have as many scrapes as its own source.
	scrapeTurn = 5 * time.Second
)

// scrapeSlots are the running scrapes.
type scrapeSlots struct {
	mu      sync.Mutex    // guards the fields below
	running []*scrapeSlot // the oldest first
	left    chan struct{} // closed when one ends; nil if none waits
}

// scrapeSlot is a running scrape.
type scrapeSlot struct {
	source netip.Addr
	exempt bool   // from maxScrapesPerSource
	end    func() // aborts it
	begun  time.Time
	ending bool // end was called
}

// enter waits for a slot, until ctx ends. If all are taken, it aborts the oldest scrape
// of the source that has the most. If the source of mine would then have as many, the
// other scrape may run for scrapeTurn first.
func (s *scrapeSlots) enter(ctx context.Context, mine *scrapeSlot) (ok bool) {
	for {
		wait := s.try(mine)
		if wait == nil {
			return true
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return false
		}
	}
}

// try takes a slot, or returns a channel that is closed when to try again.
func (s *scrapeSlots) try(mine *scrapeSlot) (wait <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts, most, ending := map[netip.Addr]int{}, 0, 0
	for _, other := range s.running {
		if other.ending {
			ending++
			continue
		}
		counts[other.source]++
		most = max(most, counts[other.source])
	}
	own := counts[mine.source]
	switch {
	case own >= maxScrapesPerSource && !mine.exempt:
	case len(s.running) < maxScrapes:
		mine.begun = time.Now()
		s.running = append(s.running, mine)
		return nil
	case ending == 0 && own < most:
		i := slices.IndexFunc(s.running, func(other *scrapeSlot) bool { return counts[other.source] == most })
		if oldest := s.running[i]; own+1 < most || time.Since(oldest.begun) > scrapeTurn {
			oldest.ending = true
			oldest.end()
		}
	}
	if s.left == nil {
		s.left = make(chan struct{})
	}
	return s.left
}

// leave frees the slot of a scrape.
func (s *scrapeSlots) leave(mine *scrapeSlot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(other *scrapeSlot) bool { return other == mine })
	if s.left != nil {
		close(s.left)
		s.left = nil
	}
}

// sourceOf returns the address of a peer, without the zone of IPv6.
func sourceOf(peer string) netip.Addr {
	address, err := netip.ParseAddrPort(peer)
	if err != nil {
		return netip.Addr{}
	}
	return address.Addr().Unmap().WithZone("")
}
