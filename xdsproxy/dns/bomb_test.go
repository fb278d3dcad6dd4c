// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
)

// TestCompressionBomb lets upstream answer with as many records as a message can contain, each with
// a compressed name of maximum length, which expands to sixteen times the size. Clients receive
// what they accept.
func TestCompressionBomb(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(strings.Repeat("x", 49)+".", 5)
	bomb := func(w miekg.ResponseWriter, r *miekg.Msg) {
		b, err := new(miekg.Msg).SetReply(r).Pack()
		if err != nil {
			t.Error(err)
		}
		records := 0
		for len(b) < 65500 {
			b = append(b, 0xC0, headerLen, 0, byte(miekg.TypeA), 0, miekg.ClassINET, 0, 0, 0, 60, 0, 4, 10, byte(records>>16), byte(records>>8), byte(records))
			records++
		}
		binary.BigEndian.PutUint16(b[6:], uint16(records))
		_, _ = w.Write(b)
	}
	s := start(t, config(t, upstream(t, bomb).Address()), nil)
	begin := time.Now()
	const times = 5
	for range times {
		if r := exchange(t, s, "tcp", request(long, miekg.TypeA, 0)); len(r.Answer) < 4000 {
			t.Fatalf("%d records", len(r.Answer))
		}
	}
	if took := time.Since(begin) / times; took > 5*time.Second {
		t.Errorf("one answer took %s", took)
	}
	if kept := len(s.stale.byKey); kept != 0 {
		t.Errorf("%d such answers are kept", kept)
	}
	t.Logf("%s for each of %d answers", time.Since(begin)/times, times)
}

// TestAliasInCircles lets upstream answer with a cycle of aliases: they are passed on and not
// followed.
func TestAliasInCircles(t *testing.T) {
	t.Parallel()
	u := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		m := new(miekg.Msg).SetReply(r)
		for _, text := range []string{"a.example.org. 60 IN CNAME b.example.org.", "b.example.org. 60 IN CNAME a.example.org.", "a.example.org. 60 IN CNAME reviews.shop.svc.cluster.local."} {
			rr, err := miekg.NewRR(text)
			if err != nil {
				t.Error(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		_ = w.WriteMsg(m)
	})
	s := start(t, config(t, u.Address()), hosts())
	if r := exchange(t, s, "udp", request("a.example.org.", miekg.TypeA, 0)); len(r.Answer) != 3 || u.Asked() != 1 {
		t.Errorf("after %d questions: %v", u.Asked(), r)
	}
}
