// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"encoding/binary"
	"math/rand/v2"

	miekg "github.com/miekg/dns"
)

// ttl is the time, in seconds, for which a client may cache an answer from the table. It is short
// because the table may change at any time.
const ttl = 30

// question is a compression pointer to the name in the question, which has the same offset in every
// message.
const question = 0xC000 | headerLen

// soa is the data of the SOA record in answers without records. It tells clients how long to cache
// the answer (RFC 2308). Its names point to the name in the question.
const soa = "\xC0\x0C\x0Ahostmaster\xC0\x0C" +
	"\x00\x00\x00\x01" + // serial
	"\x00\x00\x0E\x10" + "\x00\x00\x02\x58" + "\x00\x01\x51\x80" + // refresh, retry, expire
	"\x00\x00\x00\x1E" // how long nothing may be remembered: ttl

// answer writes the answer to a request that the table can answer to dst, which is empty. It
// returns nil if upstream must be asked. known is true if the table has the name, in which case
// upstream's NXDOMAIN must not be passed on.
//
// The mesh alone answers for addresses and for record types that lead to addresses (HTTPS and SVCB
// records contain some). Other records of a name, such as mail servers, are known only to its zone.
func (t *table) answer(dst []byte, q *query) (reply []byte, known bool) {
	h, target := t.find(q)
	if h == nil {
		return nil, false
	}
	var v4, v6 []byte
	switch q.qtype {
	case miekg.TypeA:
		v4 = h.v4
	case miekg.TypeAAAA:
		v6 = h.v6
	case miekg.TypeANY:
		v4, v6 = h.v4, h.v6
	case miekg.TypeHTTPS, miekg.TypeSVCB:
	case miekg.TypeCNAME:
		if target == nil {
			return nil, true
		}
	default:
		return nil, true
	}
	w := newWriter(dst, q)
	if len(v4)+len(v6) == 0 && q.qtype != miekg.TypeCNAME {
		return w.noData(), true
	}
	owner := uint16(question)
	if target != nil {
		if owner = w.alias(target); owner == 0 {
			return w.end(flagAuthority, fine), true
		}
	}
	w.addresses(owner, miekg.TypeA, v4, 4)
	w.addresses(owner, miekg.TypeAAAA, v6, 16)
	return w.end(flagAuthority, fine), true
}

// refuse writes an answer that contains only a response code.
func refuse(dst []byte, q *query, code int) []byte {
	w := newWriter(dst, q)
	return w.end(0, code)
}

// writer writes one answer.
type writer struct {
	b           []byte
	q           *query
	limit       int // bytes before the OPT record
	answers     uint16
	authorities uint16
	truncated   bool
}

// newWriter begins an answer with the client's id and question, byte for byte: a client may verify
// the case of the letters in its question.
func newWriter(dst []byte, q *query) writer {
	w := writer{q: q, limit: q.limit}
	if q.edns {
		w.limit -= optLen
	}
	w.b = append(dst, q.msg[:max(q.end, headerLen)]...)
	return w
}

func (w *writer) record(owner, kind uint16, length int) {
	w.b = binary.BigEndian.AppendUint16(w.b, owner)
	w.b = binary.BigEndian.AppendUint16(w.b, kind)
	w.b = binary.BigEndian.AppendUint16(w.b, miekg.ClassINET)
	w.b = binary.BigEndian.AppendUint32(w.b, ttl)
	w.b = binary.BigEndian.AppendUint16(w.b, uint16(length))
}

// alias writes a CNAME record and returns a pointer to its target, or 0 if the record exceeds the
// client's limit.
func (w *writer) alias(target []byte) (owner uint16) {
	if len(w.b)+12+len(target)+1 > w.limit {
		w.truncated = true
		return 0
	}
	w.record(question, miekg.TypeCNAME, len(target)+1)
	owner = 0xC000 | uint16(len(w.b))
	w.b = append(append(w.b, target...), 0)
	w.answers++
	return owner
}

// addresses writes as many addresses as the client accepts, in random order, so that clients are
// spread over them.
func (w *writer) addresses(owner, kind uint16, all []byte, size int) {
	n := len(all) / size
	if n == 0 {
		return
	}
	length := 12 + size // length of a record
	room := max(w.limit-len(w.b), 0) / length
	if room < n {
		w.truncated = true
	}
	// Choose the first address at random, since the omitted ones are contiguous, and shuffle those
	// that are written.
	begin, first := len(w.b), rand.IntN(n)
	for i := range min(n, room) {
		at := (first + i) % n * size
		w.record(owner, kind, size)
		w.b = append(w.b, all[at:at+size]...)
	}
	written := w.b[begin:]
	for i := len(written)/length - 1; i > 0; i-- {
		swap(written, i*length, rand.IntN(i+1)*length, length)
	}
	w.answers += uint16(len(written) / length)
}

func swap(b []byte, i, j, length int) {
	var spare [28]byte
	copy(spare[:length], b[i:i+length])
	copy(b[i:i+length], b[j:j+length])
	copy(b[j:j+length], spare[:length])
}

// noData completes an answer for a name that exists but has no record of the requested type.
// Without the SOA record, some resolvers treat the name as nonexistent and do not use its
// addresses.
func (w *writer) noData() []byte {
	w.record(question, miekg.TypeSOA, len(soa))
	w.b = append(w.b, soa...)
	w.authorities++
	return w.end(flagAuthority, fine)
}

// end writes the OPT record and the header.
func (w *writer) end(flags uint16, code int) []byte {
	questions, additional := uint16(0), uint16(0)
	if w.q.end > 0 {
		questions = 1
	}
	if w.q.edns {
		w.b = append(w.b, 0)
		w.b = binary.BigEndian.AppendUint16(w.b, miekg.TypeOPT)
		w.b = binary.BigEndian.AppendUint16(w.b, ednsUDP)
		w.b = append(w.b, byte(code>>4), 0) // the upper part of the code; the supported EDNS version
		do := uint16(0)
		if w.q.dnssec {
			do = doBit
		}
		w.b = binary.BigEndian.AppendUint16(w.b, do)
		w.b = append(w.b, 0, 0)
		additional = 1
	}
	if w.truncated {
		flags |= flagTruncated
	}
	flags |= flagResponse | flagRecursive | w.q.flags&(flagOpcode|flagRecurse|flagUnchecked)
	header := w.b[2:headerLen]
	for i, v := range [...]uint16{flags | uint16(code&0xF), questions, w.answers, w.authorities, additional} {
		binary.BigEndian.PutUint16(header[2*i:], v)
	}
	return w.b
}
