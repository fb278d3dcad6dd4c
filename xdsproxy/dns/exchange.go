// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	miekg "github.com/miekg/dns"
)

// ask is what upstream servers are asked.
type ask struct {
	name     string // in the form of the table's keys
	question []byte // as the client wrote it: name, type, class
	qtype    uint16
	flags    uint16 // those of the client that are passed on
	edns     bool
	dnssec   bool
	// whole asks again over TCP for what does not fit into a datagram of ours:
	// the client takes more.
	whole bool
	tcp   bool
}

// message writes the request with a number of its own.
func (a *ask) message(id uint16) []byte {
	b := make([]byte, 0, headerLen+len(a.question)+optLen)
	b = binary.BigEndian.AppendUint16(b, id)
	b = binary.BigEndian.AppendUint16(b, a.flags)
	b = append(b, 0, 1, 0, 0, 0, 0, 0, 0)
	b = append(b, a.question...)
	if a.edns {
		b[headerLen-1] = 1
		b = append(b, 0)
		b = binary.BigEndian.AppendUint16(b, miekg.TypeOPT)
		b = binary.BigEndian.AppendUint16(b, ednsUDP)
		do := byte(0)
		if a.dnssec {
			do = doBit >> 8
		}
		b = append(b, 0, 0, do, 0, 0, 0)
	}
	return b
}

// matches reports whether a message answers this request: its number, and the
// question that it repeats. Some servers leave the question out when they only
// say that they will not answer.
func (a *ask) matches(msg []byte, id uint16) bool {
	if len(msg) < headerLen || binary.BigEndian.Uint16(msg) != id || binary.BigEndian.Uint16(msg[2:])&(flagResponse|flagOpcode) != flagResponse {
		return false
	}
	switch binary.BigEndian.Uint16(msg[4:]) {
	case 0:
		code := codeOf(msg)
		return code != fine && code != miekg.RcodeNameError
	case 1:
		end := headerLen + len(a.question)
		return len(msg) >= end && bytes.EqualFold(msg[headerLen:end-4], a.question[:len(a.question)-4]) &&
			bytes.Equal(msg[end-4:end], a.question[len(a.question)-4:])
	}
	return false
}

func codeOf(msg []byte) int { return int(msg[3] & 0xF) }

func isTruncated(msg []byte) bool { return binary.BigEndian.Uint16(msg[2:])&flagTruncated != 0 }

// isAnswer reports whether a message says something about the name, and not
// about the server.
func isAnswer(msg []byte) bool {
	code := codeOf(msg)
	return code == fine || code == miekg.RcodeNameError
}

var errMalformed = errors.New("the answer is malformed")

// wellFormed returns a message that can be read to its end. One that was cut in
// the middle of a record loses all its records: the client asks again over TCP.
func (a *ask) wellFormed(msg []byte) ([]byte, error) {
	var m miekg.Msg
	err := m.Unpack(msg)
	if err == nil && len(m.Answer)+len(m.Ns)+len(m.Extra) != recordsOf(msg) {
		err = errors.New("records are missing")
	}
	switch end := headerLen + len(a.question); {
	case err == nil:
		return msg, nil
	case isTruncated(msg) && binary.BigEndian.Uint16(msg[4:]) == 1:
		clear(msg[6:headerLen])
		return msg[:end], nil
	default:
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
}

// recordsOf returns how many records the header of a message announces.
func recordsOf(msg []byte) (n int) {
	for at := 6; at < headerLen; at += 2 {
		n += int(binary.BigEndian.Uint16(msg[at:]))
	}
	return n
}

// newID returns a number that nobody can guess.
func newID() uint16 {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return binary.BigEndian.Uint16(b[:])
}

// exchange asks one server once.
func (s *Server) exchange(ctx context.Context, server string, a *ask) ([]byte, error) {
	if a.tcp {
		return s.exchangeOver(ctx, "tcp", server, a)
	}
	msg, err := s.exchangeOver(ctx, "udp", server, a)
	if err != nil || !a.whole || !isTruncated(msg) {
		return msg, err
	}
	if all, err := s.exchangeOver(ctx, "tcp", server, a); err == nil {
		return all, nil
	}
	return msg, nil // a part is better than nothing, and says that it is one
}

// exchangeOver asks one server over one protocol, until ctx is done. Each
// request has a connection of its own, and so an unpredictable source port; the
// system drops what comes from other addresses.
func (s *Server) exchangeOver(ctx context.Context, network, server string, a *ask) ([]byte, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // there is nothing left to be lost
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	id := newID()
	defer s.sent.add(a, id)()
	if _, err := (&miekg.Conn{Conn: conn}).Write(a.message(id)); err != nil {
		return nil, err
	}
	buffer := make([]byte, maxUDP)
	for {
		msg, err := receive(conn, network, buffer)
		if err != nil {
			return nil, err
		}
		if !a.matches(msg, id) {
			// Even if a stranger sent it, the answer may still come.
			s.metrics.ignored.Inc()
			continue
		}
		if network == "udp" && len(msg) == maxUDP {
			msg[2] |= flagTruncated >> 8 // it may have been longer
		}
		return a.wellFormed(bytes.Clone(msg))
	}
}

// receive reads one message, into the buffer if it is a datagram.
func receive(conn net.Conn, network string, buffer []byte) ([]byte, error) {
	if network == "udp" {
		n, err := conn.Read(buffer)
		return buffer[:n], err
	}
	if _, err := io.ReadFull(conn, buffer[:2]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint16(buffer))
	_, err := io.ReadFull(conn, msg)
	return msg, err
}
