// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
)

// TestRefused sends requests that must not be answered with records.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := start(t, config(t, upstream(t, good(t)).Address()), hosts())
	pack := func(change func(*miekg.Msg)) []byte {
		m := request("reviews.", miekg.TypeA, 0)
		change(m)
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	fineRequest := pack(func(*miekg.Msg) {})
	patch := func(at int, with ...byte) []byte {
		b := append([]byte(nil), fineRequest...)
		copy(b[at:], with)
		return b
	}
	const silence = -1
	tests := map[string]struct {
		request []byte
		rcode   int
	}{
		"two questions":               {pack(func(m *miekg.Msg) { m.Question = append(m.Question, m.Question[0]) }), miekg.RcodeFormatError},
		"no question":                 {pack(func(m *miekg.Msg) { m.Question = nil }), miekg.RcodeFormatError},
		"question that is not there":  {fineRequest[:headerLen], miekg.RcodeFormatError},
		"question that breaks off":    {fineRequest[:len(fineRequest)-1], miekg.RcodeFormatError},
		"label that is too long":      {patch(headerLen, 64), miekg.RcodeFormatError},
		"name that points to itself":  {patch(headerLen, 0xC0, headerLen), miekg.RcodeFormatError},
		"name that never ends":        {append(patch(4, 0, 1)[:headerLen], []byte(strings.Repeat("\x01a", 200))...), miekg.RcodeFormatError},
		"an answer in it":             {patch(6, 0, 1), miekg.RcodeFormatError},
		"an authority in it":          {patch(8, 0, 1), miekg.RcodeFormatError},
		"more records than there are": {patch(10, 0xFF, 0xFF), miekg.RcodeFormatError},
		"status":                      {pack(func(m *miekg.Msg) { m.Opcode = miekg.OpcodeStatus }), miekg.RcodeNotImplemented},
		"update":                      {pack(func(m *miekg.Msg) { m.Opcode = miekg.OpcodeUpdate }), miekg.RcodeNotImplemented},
		"notify":                      {pack(func(m *miekg.Msg) { m.Opcode = miekg.OpcodeNotify }), miekg.RcodeNotImplemented},
		"class CHAOS": {pack(func(m *miekg.Msg) {
			m.Question[0] = miekg.Question{Name: "version.bind.", Qtype: miekg.TypeTXT, Qclass: miekg.ClassCHAOS}
		}), miekg.RcodeRefused},
		"class ANY":               {pack(func(m *miekg.Msg) { m.Question[0].Qclass = miekg.ClassANY }), miekg.RcodeRefused},
		"whole zone":              {pack(func(m *miekg.Msg) { m.Question[0].Qtype = miekg.TypeAXFR }), miekg.RcodeRefused},
		"changes of a zone":       {pack(func(m *miekg.Msg) { m.Question[0].Qtype = miekg.TypeIXFR }), miekg.RcodeRefused},
		"OPT as a question":       {pack(func(m *miekg.Msg) { m.Question[0].Qtype = miekg.TypeOPT }), miekg.RcodeRefused},
		"EDNS of a later version": {pack(func(m *miekg.Msg) { m.SetEdns0(1232, true); m.IsEdns0().SetVersion(1) }), miekg.RcodeBadVers},
		"EDNS twice":              {pack(func(m *miekg.Msg) { m.SetEdns0(1232, false); m.SetEdns0(1232, false) }), miekg.RcodeFormatError},
		"EDNS of a name":          {pack(func(m *miekg.Msg) { m.SetEdns0(1232, false); m.IsEdns0().Hdr.Name = "x." }), miekg.RcodeFormatError},
		"an answer":               {pack(func(m *miekg.Msg) { m.Response = true }), silence},
		"less than a header":      {fineRequest[:headerLen-1], silence},
		"nothing":                 {[]byte{}, silence},
		"text":                    {[]byte("GET / HTTP/1.1\r\n\r\n"), miekg.RcodeNotImplemented},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("udp", s.address())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			buffer := make([]byte, 4096)
			read := func(b []byte) *miekg.Msg {
				t.Helper()
				if _, err := conn.Write(b); err != nil {
					t.Fatal(err)
				}
				if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
					t.Fatal(err)
				}
				n, err := conn.Read(buffer)
				if err != nil {
					t.Fatal(err)
				}
				m := new(miekg.Msg)
				if err := m.Unpack(buffer[:n]); err != nil {
					t.Fatalf("the answer is malformed: %v", err)
				}
				return m
			}
			if test.rcode != silence {
				m := read(test.request)
				if m.Rcode != test.rcode || m.Id != binary.BigEndian.Uint16(test.request) || !m.Response || len(m.Answer) != 0 {
					t.Errorf("got %v, want %s", m, miekg.RcodeToString[test.rcode])
				}
			} else if _, err := conn.Write(test.request); err != nil {
				t.Fatal(err)
			}
			// The next valid request is answered, with no other answer in between.
			if m := read(fineRequest); len(m.Answer) != 1 {
				t.Errorf("a good request after it: %v", m)
			}
		})
	}
}

func TestPassedOver(t *testing.T) {
	t.Parallel()
	s := start(t, config(t), hosts())
	m := request("reviews.", miekg.TypeA, 1232)
	m.IsEdns0().SetDo()
	m.IsEdns0().Option = []miekg.EDNS0{&miekg.EDNS0_COOKIE{Code: miekg.EDNS0COOKIE, Cookie: "0011223344556677"}}
	m.Extra = append([]miekg.RR{&miekg.TXT{Hdr: miekg.RR_Header{Name: "x.y.", Rrtype: miekg.TypeTXT, Class: 1}, Txt: []string{"?"}}}, m.Extra...)
	m.CheckingDisabled = true
	m.RecursionDesired = false
	r := exchange(t, s, "udp", m)
	if opt := r.IsEdns0(); len(r.Answer) != 1 || opt == nil || !opt.Do() || opt.UDPSize() != ednsUDP || len(opt.Option) != 0 {
		t.Errorf("got %v", r)
	}
	if !r.CheckingDisabled || r.RecursionDesired || !r.Authoritative {
		t.Errorf("flags: %v", r.MsgHdr)
	}
}

// TestTCPConnections misuses connections.
func TestTCPConnections(t *testing.T) {
	t.Parallel()
	u := upstream(t, good(t))
	s := start(t, config(t, u.Address()), hosts())
	dial := func(t *testing.T) *miekg.Conn {
		t.Helper()
		c, err := net.Dial("tcp", s.address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		return &miekg.Conn{Conn: c}
	}
	ended := func(t *testing.T, c *miekg.Conn) {
		t.Helper()
		if _, err := c.ReadMsg(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection is open: %v", err)
		}
	}
	t.Run("many requests at once, then half closed", func(t *testing.T) {
		t.Parallel()
		c := dial(t)
		want := map[uint16]bool{}
		for i := range 3 * maxPending {
			m := request([]string{"reviews.", outsideName}[i%2], miekg.TypeA, 0)
			m.Id = uint16(i)
			want[m.Id] = true
			if err := c.WriteMsg(m); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		for range len(want) {
			r, err := c.ReadMsg()
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Answer) != 1 || !want[r.Id] {
				t.Errorf("got %v", r)
			}
			delete(want, r.Id)
		}
		if _, err := c.ReadMsg(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the end", err)
		}
	})
	for name, b := range map[string]string{
		"a request of 64 kB":   "\xff\xff" + strings.Repeat("x", 5000),
		"a request of nothing": "\x00\x00",
		"an answer":            "\x00\x0c\x00\x01\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"HTTP":                 "GET / HTTP/1.1\r\nHost: " + strings.Repeat("x", 30000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t)
			if _, err := io.WriteString(c.Conn, b); err != nil {
				t.Fatal(err)
			}
			ended(t, c)
		})
	}
	t.Run("a refused request does not end it", func(t *testing.T) {
		t.Parallel()
		c := dial(t)
		for _, qtype := range []uint16{miekg.TypeAXFR, miekg.TypeA} {
			if err := c.WriteMsg(request("reviews.", qtype, 0)); err != nil {
				t.Fatal(err)
			}
			if r, err := c.ReadMsg(); err != nil || (len(r.Answer) == 1) != (qtype == miekg.TypeA) {
				t.Errorf("got %v, %v", r, err)
			}
		}
	})
}

// TestTooManyConnections opens more connections than allowed: the one that has waited longest is
// closed, and the others continue to work.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	s := start(t, config(t), hosts())
	var open []*miekg.Conn
	for range maxConns + 1 {
		c, err := net.Dial("tcp", s.address())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		open = append(open, &miekg.Conn{Conn: c})
	}
	if _, err := open[0].ReadMsg(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first connection is open: %v", err)
	}
	for _, c := range []*miekg.Conn{open[maxConns-1], open[maxConns]} {
		if err := c.WriteMsg(request("reviews.", miekg.TypeA, 0)); err != nil {
			t.Fatal(err)
		}
		if r, err := c.ReadMsg(); err != nil || len(r.Answer) != 1 {
			t.Errorf("got %v, %v", r, err)
		}
	}
}
