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
	// maxForwards bounds the requests that wait for upstream, and maxFlights
	// what upstream is asked at a time; more are answered with the last answer,
	// or SERVFAIL, at once.
	maxForwards = 512
	maxFlights  = 512
	// staleAfter is how long upstream is waited for when there is a last answer
	// (RFC 8767): resolvers do not wait forever either.
	staleAfter = 1800 * time.Millisecond
	// recheckAfter is how long upstream counts as dead once it has not answered:
	// last answers are given at once meanwhile, while upstream is asked again.
	recheckAfter = 5 * time.Second
)

// forward is a request on its way through upstream.
type forward struct {
	ask
	id       uint16
	rawFlags uint16
	limit    int
	known    bool // the table has the name, too
}

// newForward takes what is needed out of a request, whose memory is used again.
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

// flight is one question to upstream, and all requests that wait for it. That
// equal questions share one is also what ends a loop that goes through another
// server, and leaves who wants to forge an answer one number to guess.
type flight struct {
	done chan struct{} // closed when there is an outcome
	msg  []byte        // nil when upstream did not answer
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

// flights are those that are on their way.
type flights struct {
	mu    sync.Mutex // guards what follows
	byKey map[flightKey]*flight
	// deadSince is when upstream was first found not to answer, zero while it
	// does; deadUntil is how long that is believed.
	deadSince, deadUntil time.Time
}

// ended takes a flight away, and notes how upstream is. changed tells that it
// was not so before.
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

// revive forgets that upstream did not answer.
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

// join returns the flight of a request, a new one if there is none, or nil when
// there are too many.
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

// fly asks upstream, and tells those who wait.
func (s *Server) fly(ctx context.Context, f *forward, key flightKey, fl *flight) {
	defer close(fl.done)
	s.metrics.upstreamRequests.Inc()
	begin := time.Now()
	msg, err := s.askUpstream(ctx, &f.ask)
	now := time.Now()
	if ctx.Err() != nil && msg == nil {
		s.flights.ended(key, true, now)
		return // the server ends; that says nothing of upstream
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
		s.log.Warn("upstream does not answer: names that are not of the mesh get the last answer, or none", "err", err)
	} else {
		s.log.Info("upstream answers again")
	}
}

// serve returns the answer to a request that the table cannot answer, nil when
// the server ends.
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
	var late <-chan time.Time // never, when there is nothing else to give
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

// lastAnswer is what a request gets when upstream did not answer it.
func (s *Server) lastAnswer(f *forward, last []byte) []byte {
	if last == nil {
		return f.fail(miekg.RcodeServerFailure)
	}
	s.metrics.stale.Inc()
	s.log.Debug("answered with upstream's last answer", "name", f.presentation())
	return f.reply(last, true)
}

// presentation is the name as the client wrote it, in words.
func (f *forward) presentation() slog.Value {
	name, _, err := miekg.UnpackDomainName(f.question, 0)
	if err != nil {
		return slog.StringValue("?")
	}
	return slog.StringValue(name)
}

// fail answers with a code only.
func (f *forward) fail(code int) []byte {
	q := query{msg: append(make([]byte, headerLen, headerLen+len(f.question)), f.question...), flags: f.rawFlags, edns: f.edns, dnssec: f.dnssec}
	q.msg[0], q.msg[1] = byte(f.id>>8), byte(f.id)
	q.end, q.limit = len(q.msg), f.limit
	return refuse(nil, &q, code)
}

// reply makes the client's answer of upstream's: the client's number and
// question, letter for letter, no more octets than it takes, EDNS if it speaks
// that.
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
		// Upstream does not know the name. The mesh does, but has no record of this kind.
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
	// What can be read may still give something that cannot: records without
	// data, for example.
	if err != nil || len(b) > f.limit || new(miekg.Msg).Unpack(b) != nil {
		return f.fail(miekg.RcodeServerFailure)
	}
	return b
}

// addEDNS answers EDNS with EDNS. It is spoken from one hop to the next: what
// upstream said there was for us.
func (f *forward) addEDNS(m *miekg.Msg, stale bool) {
	if !f.edns {
		if m.Rcode > 0xF {
			m.Rcode = miekg.RcodeServerFailure // the upper part has no place
		}
		return
	}
	m.SetEdns0(ednsUDP, f.dnssec)
	if stale {
		opt := m.IsEdns0()
		opt.Option = append(opt.Option, &miekg.EDNS0_EDE{InfoCode: miekg.ExtendedErrorCodeStaleAnswer})
	}
}
