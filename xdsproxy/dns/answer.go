// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"encoding/binary"
	"math/rand/v2"

	miekg "github.com/miekg/dns"
)

// ttl is how long, in seconds, a client may keep what the table says. It is
// short because the table may change at any time.
const ttl = 30

// question points to the name in the question, where every message has it.
const question = 0xC000 | headerLen

// soa are the data of the SOA record that comes with an answer without
// records, so that clients know how long they may remember it (RFC 2308). The
// names in it are that of the question.
const soa = "\xC0\x0C\x0Ahostmaster\xC0\x0C" +
	"\x00\x00\x00\x01" + // serial
	"\x00\x00\x0E\x10" + "\x00\x00\x02\x58" + "\x00\x01\x51\x80" + // refresh, retry, expire
	"\x00\x00\x00\x1E" // how long nothing may be remembered: ttl

// answer writes the answer to a request that the table can answer, into dst,
// which is empty. known tells that the table has the name, also if somebody
// else must be asked: of such a name nobody may say that it does not exist.
//
// Addresses, and everything that leads to addresses (HTTPS and SVCB records
// have some in them), are the mesh's own matter. What else a name may have,
// mail servers for example, only its own zone knows.
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

// refuse writes the answer that says no more than a code.
func refuse(dst []byte, q *query, code int) []byte {
	w := newWriter(dst, q)
	return w.end(0, code)
}

// writer writes one answer.
type writer struct {
	b           []byte
	q           *query
	limit       int // octets before the OPT record
	answers     uint16
	authorities uint16
	truncated   bool
}

// newWriter begins an answer with the client's own number and question, letter
// for letter: a client may have chosen capitals to know its answer by.
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

// alias writes that the name is another's, and returns a pointer to that one; 0
// when the client does not take as much.
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

// addresses writes as many as the client takes, in an order by chance, so that
// clients spread over them.
func (w *writer) addresses(owner, kind uint16, all []byte, size int) {
	n := len(all) / size
	if n == 0 {
		return
	}
	length := 12 + size // of a record
	room := max(w.limit-len(w.b), 0) / length
	if room < n {
		w.truncated = true
	}
	// All that are left out follow one another, so the first is chosen by
	// chance, and the order of those that are written too.
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

// noData ends an answer that says: the name exists, but has no record of this
// kind. Without that, some resolvers take the name for one that does not exist
// and never use the address that it has.
func (w *writer) noData() []byte {
	w.record(question, miekg.TypeSOA, len(soa))
	w.b = append(w.b, soa...)
	w.authorities++
	return w.end(flagAuthority, fine)
}

// end writes what comes last, and the header.
func (w *writer) end(flags uint16, code int) []byte {
	questions, additional := uint16(0), uint16(0)
	if w.q.end > 0 {
		questions = 1
	}
	if w.q.edns {
		w.b = append(w.b, 0)
		w.b = binary.BigEndian.AppendUint16(w.b, miekg.TypeOPT)
		w.b = binary.BigEndian.AppendUint16(w.b, ednsUDP)
		w.b = append(w.b, byte(code>>4), 0) // the upper part of the code; our version of EDNS
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
