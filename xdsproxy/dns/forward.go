// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	miekg "github.com/miekg/dns"
)

const (
	// maxForwards is the maximum number of requests that wait for upstream, and maxFlights that of
	// concurrent queries to upstream. Further requests are answered at once with the last answer or
	// SERVFAIL.
	maxForwards = 512
	maxFlights  = 512
	// staleAfter is how long to wait for upstream if there is a last answer (RFC 8767). It is
	// shorter than the timeout of resolvers.
	staleAfter = 1800 * time.Millisecond
	// recheckAfter is how long upstream counts as dead after it has not responded. During this
	// time, last answers are returned at once while upstream is queried again.
	recheckAfter = 5 * time.Second
)

// forward is a request that is forwarded to upstream.
type forward struct {
	ask
	id       uint16
	rawFlags uint16
	limit    int
	known    bool // the table also has the name
}

// newForward copies what is needed from a request, whose memory is reused.
func newForward(q *query, tcp, known bool) *forward {
	return &forward{
		ask: ask{
			name: string(q.name()), question: append([]byte(nil), q.msg[headerLen:q.end]...), qtype: q.qtype,
			flags: q.flags & (flagRecurse | flagAuthentic | flagUnchecked), edns: q.edns, dnssec: q.dnssec,
			whole: q.limit > ednsUDP, tcp: tcp,
		},
		id: q.id(), rawFlags: q.flags, limit: q.limit, known: known,
	}
}

// flight is one query to upstream and all requests that wait for it. Sharing a query among equal
// requests also terminates loops through another server, and leaves an attacker only one id to
// guess.
type flight struct {
	done chan struct{} // closed when the result is available
	msg  []byte        // nil if upstream did not respond
}

type flightKey struct {
	name         string
	qtype, flags uint16
	edns, dnssec bool
	whole, tcp   bool
}

func (f *forward) flightKey() flightKey {
	return flightKey{name: f.name, qtype: f.qtype, flags: f.flags, edns: f.edns, dnssec: f.dnssec, whole: f.whole, tcp: f.tcp}
}

func (f *forward) staleKey() staleKey {
	return staleKey{name: f.name, qtype: f.qtype, dnssec: f.dnssec, unchecked: f.flags&flagUnchecked != 0}
}

// flights are the queries in progress.
type flights struct {
	mu    sync.Mutex // guards the fields below
	byKey map[flightKey]*flight
	// deadSince is when upstream was first found dead, or zero if it responds. deadUntil is when
	// this state expires.
	deadSince, deadUntil time.Time
}

// ended removes a flight and records whether upstream responded. changed reports whether that is a
// change.
func (f *flights) ended(key flightKey, answered bool, now time.Time) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byKey, key)
	changed = answered == !f.deadSince.IsZero()
	switch {
	case answered:
		f.deadSince, f.deadUntil = time.Time{}, time.Time{}
	default:
		if f.deadSince.IsZero() {
			f.deadSince = now
		}
		f.deadUntil = now.Add(recheckAfter)
	}
	return changed
}

// revive resets the state of upstream to alive.
func (f *flights) revive() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deadUntil = time.Time{}
}

func (f *flights) dead(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Before(f.deadUntil)
}

// join returns the flight of a request, creating it if necessary, or nil if there are too many.
func (s *Server) join(ctx context.Context, f *forward) *flight {
	key := f.flightKey()
	s.flights.mu.Lock()
	defer s.flights.mu.Unlock()
	if fl := s.flights.byKey[key]; fl != nil {
		return fl
	}
	if len(s.flights.byKey) >= maxFlights {
		return nil
	}
	fl := &flight{done: make(chan struct{})}
	s.flights.byKey[key] = fl
	s.running.Go(func() { s.fly(ctx, f, key, fl) })
	return fl
}

// fly queries upstream and publishes the result to the waiting requests.
func (s *Server) fly(ctx context.Context, f *forward, key flightKey, fl *flight) {
	defer close(fl.done)
	s.metrics.upstreamRequests.Inc()
	begin := time.Now()
	msg, err := s.askUpstream(ctx, &f.ask)
	now := time.Now()
	if ctx.Err() != nil && msg == nil {
		s.flights.ended(key, true, now)
		return // shutdown, which does not mean that upstream is dead
	}
	if fl.msg = msg; msg == nil {
		s.metrics.upstreamFailures.Inc()
	} else {
		s.metrics.upstreamSeconds.Observe(now.Sub(begin).Seconds())
	}
	if msg != nil && isAnswer(msg) && !isTruncated(msg) {
		s.stale.put(f.staleKey(), msg, now)
	}
	if !s.flights.ended(key, msg != nil, now) {
		return
	}
	if msg == nil {
		s.log.Warn("upstream does not respond: names outside the mesh receive the last answer, or none", "err", err)
	} else {
		s.log.Info("upstream responds again")
	}
}

// serve returns the answer to a request that the table cannot answer, or nil on shutdown.
func (s *Server) serve(ctx context.Context, f *forward) []byte {
	if s.sent.has(&f.ask, f.id) {
		s.metrics.refused.WithLabelValues(reasonLoop).Inc()
		s.loop.Do(func() {
			s.log.Error("a request that this server sent to upstream came back to it: exclude the agent's user from capture, " +
				"or name another server in resolv.conf")
		})
		return f.fail(miekg.RcodeRefused)
	}
	now := time.Now()
	last := s.stale.get(f.staleKey(), now)
	fl := s.join(ctx, f)
	if fl == nil {
		s.metrics.refused.WithLabelValues(reasonOverload).Inc()
		return s.lastAnswer(f, last)
	}
	var late <-chan time.Time // blocks forever if there is no last answer
	if last != nil {
		wait := min(staleAfter, s.cfg.Upstream.Timeout/2)
		if s.flights.dead(now) {
			wait = 0
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-fl.done:
	case <-late:
		return s.lastAnswer(f, last)
	case <-ctx.Done():
		return nil
	}
	switch {
	case fl.msg != nil && (isAnswer(fl.msg) || last == nil):
		return f.reply(fl.msg, false)
	case ctx.Err() != nil:
		return nil
	}
	return s.lastAnswer(f, last)
}

// lastAnswer returns the answer to a request to which upstream did not respond.
func (s *Server) lastAnswer(f *forward, last []byte) []byte {
	if last == nil {
		return f.fail(miekg.RcodeServerFailure)
	}
	s.metrics.stale.Inc()
	s.log.Debug("answered with upstream's last answer", "name", f.presentation())
	return f.reply(last, true)
}

// presentation returns the name, as sent by the client, in presentation format.
func (f *forward) presentation() slog.Value {
	name, _, err := miekg.UnpackDomainName(f.question, 0)
	if err != nil {
		return slog.StringValue("?")
	}
	return slog.StringValue(name)
}

// fail returns an answer that contains only a response code.
func (f *forward) fail(code int) []byte {
	q := query{msg: append(make([]byte, headerLen, headerLen+len(f.question)), f.question...), flags: f.rawFlags, edns: f.edns, dnssec: f.dnssec}
	q.msg[0], q.msg[1] = byte(f.id>>8), byte(f.id)
	q.end, q.limit = len(q.msg), f.limit
	return refuse(nil, &q, code)
}

// reply converts upstream's answer to the client's: with the client's id and question, byte for
// byte, within its size limit, and with EDNS if the client uses it.
func (f *forward) reply(raw []byte, stale bool) []byte {
	var m miekg.Msg
	if err := m.Unpack(raw); err != nil {
		return f.fail(miekg.RcodeServerFailure)
	}
	name, _, err := miekg.UnpackDomainName(f.question, 0)
	if err != nil {
		return f.fail(miekg.RcodeServerFailure)
	}
	m.Id, m.RecursionDesired, m.CheckingDisabled = f.id, f.rawFlags&flagRecurse != 0, f.rawFlags&flagUnchecked != 0
	m.RecursionAvailable = true
	m.Question = []miekg.Question{{Name: name, Qtype: f.qtype, Qclass: miekg.ClassINET}}
	if m.Rcode == miekg.RcodeNameError && f.known {
		// Upstream does not know the name. The mesh does, but has no record of this type.
		m.Rcode = miekg.RcodeSuccess
	}
	extra := m.Extra[:0]
	for _, rr := range m.Extra {
		if rr.Header().Rrtype != miekg.TypeOPT {
			extra = append(extra, rr)
		}
	}
	m.Extra = extra
	keepRelevant(&m, name, f.known)
	for _, section := range [][]miekg.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h := rr.Header()
			if strings.EqualFold(h.Name, name) {
				h.Name = name
			}
			if stale {
				h.Ttl = min(h.Ttl, staleTTL)
			}
		}
	}
	f.addEDNS(&m, stale)
	m.Truncate(f.limit)
	b, err := m.Pack()
	// A message that can be parsed may still be packed to one that cannot, for example with records
	// without data.
	if err != nil || len(b) > f.limit || new(miekg.Msg).Unpack(b) != nil {
		return f.fail(miekg.RcodeServerFailure)
	}
	return b
}

// addEDNS adds an OPT record if the client uses EDNS. EDNS applies to a single hop: upstream's OPT
// record was meant for us.
func (f *forward) addEDNS(m *miekg.Msg, stale bool) {
	if !f.edns {
		if m.Rcode > 0xF {
			m.Rcode = miekg.RcodeServerFailure // the upper part of the code cannot be represented
		}
		return
	}
	m.SetEdns0(ednsUDP, f.dnssec)
	if stale {
		opt := m.IsEdns0()
		opt.Option = append(opt.Option, &miekg.EDNS0_EDE{InfoCode: miekg.ExtendedErrorCodeStaleAnswer})
	}
}
