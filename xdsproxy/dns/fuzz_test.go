// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"bytes"
	"encoding/binary"
	"testing"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// offline returns a server without sockets.
func offline(t testing.TB, table *nds.Table) *Server {
	t.Helper()
	z := newZone("shop.svc.cluster.local", "shop", search)
	s := &Server{
		log: discard(), zone: z, named: make(chan struct{}), metrics: newMetrics(prometheus.NewRegistry()), slots: make(chan struct{}, maxForwards),
		flights: flights{byKey: map[flightKey]*flight{}}, sent: sentIDs{ids: map[sentID]int{}}, stale: newStaleAnswers(0),
	}
	s.Update(table)
	return s
}

func seed(f *testing.F, m *miekg.Msg) []byte {
	f.Helper()
	b, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// FuzzRequest sends arbitrary data. Answers must be valid for other parsers, match the request and
// fit. Data that other parsers accept as a request must not be dropped.
func FuzzRequest(f *testing.F) {
	for name := range hosts().Hosts {
		if _, ok := miekg.IsDomainName(name); !ok {
			continue
		}
		if m := request(miekg.Fqdn(name), miekg.TypeA, 1232); len(name) < 60 {
			f.Add(seed(f, m), false)
			m.Question[0].Name += "corp.example."
			m.Question[0].Qtype = miekg.TypeANY
			f.Add(seed(f, m), true)
		}
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), true)
	f.Add(bytes.Repeat([]byte{0xC0, 0x0C}, 20), false)
	s := offline(f, hosts())
	q, out := new(query), make([]byte, 0, maxUDP)
	f.Fuzz(func(t *testing.T, msg []byte, tcp bool) {
		if len(msg) > maxRequest {
			return
		}
		before := bytes.Clone(msg)
		reply, forward := s.respond(out, q, msg, tcp)
		if !bytes.Equal(before, msg) {
			t.Fatal("the request was changed")
		}
		if forward != nil {
			reply = forward.fail(miekg.RcodeServerFailure)
			if sent := forward.message(7); new(miekg.Msg).Unpack(sent) != nil {
				t.Fatalf("the request to upstream is malformed: %x", sent)
			}
		}
		if reply == nil {
			if len(msg) >= headerLen && msg[2]&0x80 == 0 {
				t.Fatalf("a request was dropped: %x", msg)
			}
			return
		}
		var m miekg.Msg
		if err := m.Unpack(reply); err != nil {
			t.Fatalf("the answer is malformed: %v\n%x", err, reply)
		}
		if m.Id != binary.BigEndian.Uint16(msg) || !m.Response || len(reply) > q.limit || (!tcp && len(reply) > maxUDP) {
			t.Fatalf("the answer does not match the request: %v", m)
		}
		if q.end > 0 && !bytes.Equal(reply[headerLen:q.end], msg[headerLen:q.end]) {
			t.Fatalf("the question differs: %x, %x", msg, reply)
		}
		var in miekg.Msg
		if in.Unpack(msg) != nil || in.Opcode != 0 || len(in.Question) != 1 || len(in.Answer)+len(in.Ns)+len(in.Extra) != 0 {
			return
		}
		if same, err := in.Pack(); err == nil && bytes.Equal(same, msg) && m.Rcode == miekg.RcodeFormatError {
			t.Fatalf("a request that others would write is refused: %v", &in)
		}
	})
}

// FuzzUpstream answers with arbitrary data. The client must receive a valid message with its id and
// question that fits.
func FuzzUpstream(f *testing.F) {
	for _, rr := range []string{
		"www.example.org. 60 IN A 192.0.2.1", "www.example.org. 60 IN CNAME x.example.org.", "example.org. 60 IN SOA a. b. 1 2 3 4 5",
		"www.example.org. 60 IN HTTPS 1 . alpn=h2 ipv4hint=192.0.2.1", "www.example.org. 60 IN TXT \"a\" \"b\"",
	} {
		record, err := miekg.NewRR(rr)
		if err != nil {
			f.Fatal(err)
		}
		m := request(outsideName, miekg.TypeA, 1232)
		m.Response, m.Answer, m.Ns = true, []miekg.RR{record, record}, []miekg.RR{record}
		b := seed(f, m)
		f.Add(b, true, uint16(512))
		f.Add(b[:len(b)-5], false, uint16(4096))
	}
	f.Fuzz(func(t *testing.T, msg []byte, edns bool, limit uint16) {
		m := request(outsideName, miekg.TypeA, 0)
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		q := new(query)
		if code := q.parse(b, false); code != fine {
			t.Fatal(code)
		}
		q.edns, q.limit = edns, max(int(limit), miekg.MinMsgSize)
		fw := newForward(q, false, limit%2 == 0)
		if !fw.matches(msg, fw.id) {
			if len(msg) < headerLen {
				return
			}
			binary.BigEndian.PutUint16(msg, fw.id) // otherwise the message would always be ignored
		}
		if !fw.matches(msg, fw.id) {
			return
		}
		raw, err := fw.wellFormed(msg)
		if err != nil {
			return
		}
		for _, stale := range []bool{false, true} {
			reply := fw.reply(raw, stale)
			var got miekg.Msg
			if err := got.Unpack(reply); err != nil {
				t.Fatalf("the answer is malformed: %v\n%x", err, reply)
			}
			if got.Id != m.Id || !got.Response || len(got.Question) != 1 || got.Question[0] != m.Question[0] || len(reply) > q.limit || (got.IsEdns0() != nil) != edns {
				t.Fatalf("the answer does not match the request: %v", got)
			}
		}
	})
}
