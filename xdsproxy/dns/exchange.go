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

// ask is a query to upstream servers.
type ask struct {
	name     string // in the format of the table's keys
	question []byte // as sent by the client: name, type, class
	qtype    uint16
	flags    uint16 // flags of the client that are forwarded
	edns     bool
	dnssec   bool
	// whole retries over TCP if the answer does not fit into our datagram size, because the client
	// accepts more.
	whole bool
	tcp   bool
}

// message encodes the request with the given id.
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

// matches reports whether a message answers this request, by its id and the repeated question. Some
// servers omit the question when they refuse to answer.
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

// isAnswer reports whether a message describes the name rather than a failure of the server.
func isAnswer(msg []byte) bool {
	code := codeOf(msg)
	return code == fine || code == miekg.RcodeNameError
}

var errMalformed = errors.New("the answer is malformed")

// wellFormed returns a message that can be parsed completely. It removes all records from a message
// that is truncated in the middle of a record: the client retries over TCP.
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

// recordsOf returns the number of records in the header of a message.
func recordsOf(msg []byte) (n int) {
	for at := 6; at < headerLen; at += 2 {
		n += int(binary.BigEndian.Uint16(msg[at:]))
	}
	return n
}

// newID returns an unpredictable id.
func newID() uint16 {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return binary.BigEndian.Uint16(b[:])
}

// exchange sends one request to one server.
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
	return msg, nil // a truncated answer is better than none, and is marked as such
}

// exchangeOver sends one request to one server over one protocol and waits until ctx is done. Each
// request uses its own connection and therefore an unpredictable source port. The system drops
// packets from other addresses.
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
			// The message may be forged: the real answer may still arrive.
			s.metrics.ignored.Inc()
			continue
		}
		if network == "udp" && len(msg) == maxUDP {
			msg[2] |= flagTruncated >> 8 // it may have been longer
		}
		return a.wellFormed(bytes.Clone(msg))
	}
}

// receive reads one message. It uses the buffer only for datagrams.
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
