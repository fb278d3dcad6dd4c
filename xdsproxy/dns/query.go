// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"encoding/binary"

	miekg "github.com/miekg/dns"
)

// Sizes in DNS messages, in bytes.
const (
	headerLen  = 12
	maxName    = 254 // of a name in wire format, without the byte of the root
	maxLabels  = 127
	optLen     = 11   // of an OPT record without options
	ednsUDP    = 1232 // our advertised size, which is not fragmented in common networks
	maxUDP     = 4096 // maximum size that we send, even if a client advertises more
	maxRequest = 4096
)

// Header flags, in the two bytes after the id.
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

// Results of parse other than a response code that refuses the request.
const (
	dropped = -1
	fine    = miekg.RcodeSuccess
)

// query is a parsed request. Each socket reuses one for all requests.
type query struct {
	msg    []byte // the request
	flags  uint16
	end    int // end of the question in msg; 0 if it could not be parsed
	qtype  uint16
	class  uint16
	edns   bool
	dnssec bool // EDNS with the DO bit
	// limit is the maximum size of an answer, in bytes.
	limit int

	// name is the requested name in wire format and lower case, without the final byte of the root;
	// labels are the offsets of its labels.
	wire   [maxName]byte
	length int
	labels [maxLabels]uint8
	count  int
}

func (q *query) name() []byte { return q.wire[:q.length] }

// id returns the id of the request.
func (q *query) id() uint16 { return binary.BigEndian.Uint16(q.msg) }

// parse parses a request. It returns whether the request is fine, must be dropped, or must be
// refused with a response code.
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
		return dropped // answering an answer could cause a loop
	}
	if q.flags&flagOpcode != 0 {
		return miekg.RcodeNotImplemented
	}
	additional := int(binary.BigEndian.Uint16(msg[10:]))
	if binary.BigEndian.Uint16(msg[4:]) != 1 || binary.BigEndian.Uint32(msg[6:]) != 0 {
		return miekg.RcodeFormatError // exactly one question, no answers, no authorities
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

// parseQuestion parses the question. Its name must not be compressed.
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

// lower copies bytes and converts ASCII letters to lower case.
func lower(to, from []byte) {
	for i, c := range from {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		to[i] = c
	}
}

// parseAdditional looks for an OPT record. It skips other records, such as transaction signatures,
// which are irrelevant to a local server.
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

// skipName returns the offset after a name, or -1 if it is malformed.
func skipName(msg []byte, at int) int {
	for at < len(msg) {
		switch n := int(msg[at]); {
		case n == 0:
			return at + 1
		case n >= 0xC0: // compression pointer to the rest
			return at + 2
		case n > 63:
			return -1
		default:
			at += 1 + n
		}
	}
	return -1
}
