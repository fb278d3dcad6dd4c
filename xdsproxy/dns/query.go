// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"encoding/binary"

	miekg "github.com/miekg/dns"
)

// Limits of DNS messages, in octets.
const (
	headerLen  = 12
	maxName    = 254 // of a name in wire form, without the root's octet
	maxLabels  = 127
	optLen     = 11   // of an OPT record without options
	ednsUDP    = 1232 // what we ask for and say that we take: it is not cut into fragments on any usual network
	maxUDP     = 4096 // what we send at most, whatever a client says that it takes
	maxRequest = 4096
)

// Flags of the header, as the two octets after the number.
const (
	flagResponse  = 0x8000
	flagOpcode    = 0x7800
	flagAuthority = 0x0400
	flagTruncated = 0x0200
	flagRecurse   = 0x0100
	flagRecursive = 0x0080
	flagAuthentic = 0x0020
	flagUnchecked = 0x0010

	doBit = 0x8000 // in the lower half of an OPT record's TTL
)

// What parse returns of a request beside the code of the answer that refuses it.
const (
	dropped = -1
	fine    = miekg.RcodeSuccess
)

// query is a request as far as it must be understood. One is used again for
// all requests of a socket.
type query struct {
	msg    []byte // the request
	flags  uint16
	end    int // where the question ends in msg; 0: there is none that can be read
	qtype  uint16
	class  uint16
	edns   bool
	dnssec bool // EDNS with the DO bit
	// limit is how many octets the client takes.
	limit int

	// name is the name that is asked for, in wire form and lower case, without
	// the root's octet at the end; labels are where its labels begin.
	wire   [maxName]byte
	length int
	labels [maxLabels]uint8
	count  int
}

func (q *query) name() []byte { return q.wire[:q.length] }

// id is the number that the client gave to its request.
func (q *query) id() uint16 { return binary.BigEndian.Uint16(q.msg) }

// parse reads a request and judges it: fine, dropped, or the code of the
// answer that refuses it.
func (q *query) parse(msg []byte, tcp bool) int {
	q.msg, q.end, q.edns, q.dnssec = msg, 0, false, false
	q.limit = miekg.MinMsgSize
	if tcp {
		q.limit = miekg.MaxMsgSize
	}
	if len(msg) < headerLen {
		return dropped
	}
	q.flags = binary.BigEndian.Uint16(msg[2:])
	if q.flags&flagResponse != 0 {
		return dropped // an answer to an answer never ends
	}
	if q.flags&flagOpcode != 0 {
		return miekg.RcodeNotImplemented
	}
	additional := int(binary.BigEndian.Uint16(msg[10:]))
	if binary.BigEndian.Uint16(msg[4:]) != 1 || binary.BigEndian.Uint32(msg[6:]) != 0 {
		return miekg.RcodeFormatError // one question, no answers, no authorities
	}
	if !q.parseQuestion() {
		return miekg.RcodeFormatError
	}
	version, ok := q.parseAdditional(additional, tcp)
	switch {
	case !ok:
		return miekg.RcodeFormatError
	case version != 0:
		return miekg.RcodeBadVers
	case q.class != miekg.ClassINET, q.qtype == miekg.TypeAXFR, q.qtype == miekg.TypeIXFR, q.qtype == miekg.TypeOPT:
		return miekg.RcodeRefused
	}
	return fine
}

// parseQuestion reads the one question. Its name must stand there in full.
func (q *query) parseQuestion() bool {
	msg, at := q.msg, headerLen
	q.length, q.count = 0, 0
	for {
		if at >= len(msg) {
			return false
		}
		n := int(msg[at])
		if n == 0 {
			at++
			break
		}
		if n > 63 || at+1+n > len(msg) || q.length+1+n > maxName {
			return false
		}
		q.labels[q.count] = uint8(q.length)
		q.count++
		q.wire[q.length] = byte(n)
		lower(q.wire[q.length+1:], msg[at+1:at+1+n])
		q.length += 1 + n
		at += 1 + n
	}
	if at+4 > len(msg) {
		return false
	}
	q.qtype = binary.BigEndian.Uint16(msg[at:])
	q.class = binary.BigEndian.Uint16(msg[at+2:])
	q.end = at + 4
	return true
}

// lower copies with ASCII letters in lower case.
func lower(to, from []byte) {
	for i, c := range from {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		to[i] = c
	}
}

// parseAdditional looks for an OPT record. Other records (signatures of
// transactions, for example) say nothing to a local server and are passed over.
func (q *query) parseAdditional(records int, tcp bool) (version uint8, ok bool) {
	at := q.end
	for range records {
		root := at < len(q.msg) && q.msg[at] == 0
		if at = skipName(q.msg, at); at < 0 || at+10 > len(q.msg) {
			return 0, false
		}
		kind := binary.BigEndian.Uint16(q.msg[at:])
		size := int(binary.BigEndian.Uint16(q.msg[at+2:]))
		if kind == miekg.TypeOPT {
			if !root || q.edns {
				return 0, false
			}
			q.edns = true
			q.dnssec = binary.BigEndian.Uint16(q.msg[at+6:])&doBit != 0
			version = q.msg[at+5]
			if !tcp {
				q.limit = min(max(size, miekg.MinMsgSize), maxUDP)
			}
		}
		if at += 10 + int(binary.BigEndian.Uint16(q.msg[at+8:])); at > len(q.msg) {
			return 0, false
		}
	}
	return version, true
}

// skipName returns where a name ends, -1 if it does not.
func skipName(msg []byte, at int) int {
	for at < len(msg) {
		switch n := int(msg[at]); {
		case n == 0:
			return at + 1
		case n >= 0xC0: // the rest stands elsewhere
			return at + 2
		case n > 63:
			return -1
		default:
			at += 1 + n
		}
	}
	return -1
}
