// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

const (
	meshName     = "pay.shop.svc.cluster.local."
	rightAddress = "192.0.2.1"
	falseAddress = "203.0.113.66"
	// falseZone contains a name for each fault of the resolver.
	falseZone = ".example.org."
)

// falsehoods returns the modifications of the messages that the resolver sends before the correct
// answer, by the first label of the requested name.
func falsehoods() map[string]func(*dns.Msg) {
	return map[string]func(*dns.Msg){
		"id":       func(m *dns.Msg) { m.Id++ },
		"name":     func(m *dns.Msg) { m.Question[0].Name = "other" + falseZone },
		"type":     func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeTXT },
		"class":    func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
		"question": func(m *dns.Msg) { m.Question = nil },
		"query":    func(m *dns.Msg) { m.Response = false },
		"opcode":   func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate },
	}
}

// damages returns the modifications of the resolver's only answer, by the first label of the name.
func damages() map[string]func([]byte) []byte {
	const end = 12 // size of the header
	return map[string]func([]byte) []byte{
		"loop": func(b []byte) []byte {
			return append(b[:len(b)-16], 0xc0, byte(len(b)-16), 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 66)
		},
		"count":  func(b []byte) []byte { binary.BigEndian.PutUint16(b[6:], 0xffff); return b },
		"length": func(b []byte) []byte { b[len(b)-6] = 0xff; return b },
		"short":  func(b []byte) []byte { return b[:len(b)-3] },
		"header": func(b []byte) []byte { return b[:end] },
		"empty":  func([]byte) []byte { return nil },
		"noise":  func(b []byte) []byte { return append(b[:end], strings.Repeat("\xff", 3000)...) },
		"giant":  func(b []byte) []byte { return append(b, make([]byte, 60_000)...) },
	}
}

// liar is a resolver that sends false answers.
type liar struct {
	udp   net.PacketConn
	tcp   net.Listener
	other net.PacketConn // with another address
	flood int            // number of false messages per question
}

func newLiar(address, other string, flood int) (l *liar, err error) {
	l = &liar{flood: flood}
	if l.udp, err = net.ListenPacket("udp", address+":53"); err != nil {
		return nil, err
	}
	if l.other, err = net.ListenPacket("udp", other+":53"); err != nil {
		l.close()
		return nil, err
	}
	if l.tcp, err = net.Listen("tcp", address+":53"); err != nil {
		l.close()
		return nil, err
	}
	go l.serveUDP()
	go l.serveTCP()
	return l, nil
}

func (l *liar) close() {
	if l.udp != nil {
		_ = l.udp.Close() // it is no longer used
	}
	if l.other != nil {
		_ = l.other.Close() // as above
	}
	if l.tcp != nil {
		_ = l.tcp.Close() // as above
	}
}

// answer returns an answer with the address, and with addresses of a mesh name in every section.
func answer(q *dns.Msg, address string) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	record := func(name, address string) dns.RR {
		return &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 3600}, A: net.ParseIP(address).To4()}
	}
	mesh := record(meshName, falseAddress)
	m.Ns, m.Extra = []dns.RR{mesh}, []dns.RR{mesh}
	m.Answer = []dns.RR{mesh, record(q.Question[0].Name, address)}
	return m
}

func (l *liar) serveUDP() {
	buffer := make([]byte, 64<<10)
	for {
		n, peer, err := l.udp.ReadFrom(buffer)
		if err != nil {
			return
		}
		q := new(dns.Msg)
		if q.Unpack(buffer[:n]) != nil || len(q.Question) != 1 {
			continue
		}
		if strings.HasPrefix(q.Question[0].Name, "source.") {
			if b, err := answer(q, falseAddress).Pack(); err == nil {
				_, _ = l.other.WriteTo(b, peer) // it may be lost
			}
		}
		for _, b := range l.messages(q) {
			_, _ = l.udp.WriteTo(b, peer) // it may be lost
		}
	}
}

// messages returns the messages to send over UDP for a question.
func (l *liar) messages(q *dns.Msg) (all [][]byte) {
	pack := func(m *dns.Msg) []byte {
		b, err := m.Pack()
		if err != nil {
			return nil
		}
		return b
	}
	label, _, _ := strings.Cut(strings.ToLower(q.Question[0].Name), ".")
	if lie := falsehoods()[label]; lie != nil {
		m := answer(q, falseAddress)
		lie(m)
		all = append(all, pack(m))
	}
	if damage := damages()[label]; damage != nil {
		m := new(dns.Msg).SetReply(q)
		m.Answer = answer(q, falseAddress).Answer[1:]
		return append(all, damage(pack(m)))
	}
	switch label {
	case "flood":
		for i := range l.flood {
			m := answer(q, falseAddress)
			m.Id += uint16(i + 1)
			all = append(all, pack(m))
		}
	case "tcp", "stream", "silent":
		m := new(dns.Msg).SetReply(q)
		m.Truncated = true
		return append(all, pack(m))
	}
	if q.Question[0].Name == meshName {
		return append(all, pack(answer(q, falseAddress)))
	}
	return append(all, pack(answer(q, rightAddress)))
}

// serveTCP answers questions over TCP: with messages for other questions, without end, or never.
func (l *liar) serveTCP() {
	for {
		raw, err := l.tcp.Accept()
		if err != nil {
			return
		}
		go func() {
			conn := &dns.Conn{Conn: raw}
			defer func() { _ = conn.Close() }()            // the peer may have closed it
			_ = conn.SetDeadline(time.Now().Add(patience)) // cannot fail on an open connection
			q, err := conn.ReadMsg()
			if err != nil || len(q.Question) != 1 {
				return
			}
			m := answer(q, falseAddress)
			m.Id++
			switch label, _, _ := strings.Cut(q.Question[0].Name, "."); label {
			case "stream":
				for conn.WriteMsg(m) == nil {
				}
			case "silent":
				_, _ = raw.Write([]byte{0xff, 0xff}) // length of a message that is never sent
				_, _ = io.Copy(io.Discard, raw)      // until the peer closes it
			default:
				_ = conn.WriteMsg(m) // the peer may be gone
				_ = conn.WriteMsg(answer(q, rightAddress))
			}
		}()
	}
}

func believeResolver(ctx context.Context, s *suite) (outcome, error) {
	if !ownnet.Own() || os.Geteuid() != 0 {
		return outcome{}, fmt.Errorf("%w: a resolver needs port 53 and a network namespace of its own", errSkipped)
	}
	l, err := newLiar(s.address(), s.address(), s.some(20_000, 2000))
	if err != nil {
		return outcome{}, err
	}
	defer l.close()
	resolv := filepath.Join(s.dir, "resolv.conf")
	host, _, err := net.SplitHostPort(l.udp.LocalAddr().String())
	if err != nil {
		return outcome{}, err
	}
	if err := write(resolv, "nameserver "+host+"\n", 0o644); err != nil {
		return outcome{}, err
	}
	address := s.address() + ":15053"
	r := rig{resolv: resolv, env: []string{"ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR=" + address, "DNS_FORWARD_TIMEOUT=2s"}}
	return r.run(ctx, s, func(c *sidecar) (string, error) {
		if err := eventually(ctx, func() error { return resolves(ctx, address) }); err != nil {
			return "", err
		}
		before, err := c.process.usage()
		if err != nil {
			return "", err
		}
		c.process.resetPeak()
		n, err := askLiar(ctx, address)
		if err != nil {
			return "", err
		}
		after, err := c.process.usage()
		if err != nil {
			return "", err
		}
		if grown := after.Peak - before.RSS; grown > dnsMemory {
			return "", fmt.Errorf("memory of the agent grew by %.1f MB", float64(grown)/1e6)
		}
		return fmt.Sprintf("%d of %d questions got no false answer", n, n), resolves(ctx, address)
	})
}

// askLiar queries each name of the resolver, all concurrently, and the name of the mesh.
func askLiar(ctx context.Context, address string) (int, error) {
	right, broken := []string{"flood", "source", "tcp", "www"}, []string{"stream", "silent"}
	for label := range falsehoods() {
		right = append(right, label)
	}
	for label := range damages() {
		broken = append(broken, label)
	}
	var questions []func() error
	for _, label := range right {
		for _, network := range []string{"udp", "tcp"} {
			questions = append(questions, func() error {
				return answeredRight(ctx, network, address, label+falseZone)
			})
		}
	}
	for _, label := range broken {
		questions = append(questions, func() error {
			m, err := lookUp(ctx, "udp", address, label+falseZone, dns.TypeA)
			if err == nil && strings.Contains(m.String(), falseAddress) {
				err = fmt.Errorf("%s: a broken answer is passed on: %v", label, m)
			}
			return err
		})
	}
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeANY, dns.TypeHTTPS, dns.TypeSVCB, dns.TypeCNAME, dns.TypeTXT, dns.TypeMX} {
		questions = append(questions, func() error {
			m, err := lookUp(ctx, "udp", address, meshName, kind)
			if err == nil && strings.Contains(m.String(), falseAddress) {
				err = fmt.Errorf("a question of type %s about a name of the mesh is answered from outside: %v", dns.TypeToString[kind], m)
			}
			return err
		})
	}
	errs := make([]error, len(questions))
	many(len(questions), func(i int) { errs[i] = questions[i]() })
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return len(questions), nil
}

// lookUp queries until it receives an answer, since datagrams may be lost.
func lookUp(ctx context.Context, network, address, name string, kind uint16) (m *dns.Msg, err error) {
	client := &dns.Client{Net: network, Timeout: 10 * time.Second, UDPSize: 4096}
	q := new(dns.Msg).SetQuestion(name, kind)
	q.SetEdns0(4096, false)
	err = eventually(ctx, func() error {
		m, _, err = client.ExchangeContext(ctx, q, address)
		return err
	})
	return m, err
}

// answeredRight returns an error unless a name resolves to its correct address only. It retries
// without an answer: on a slow machine, the resolver may be late.
func answeredRight(ctx context.Context, network, address, name string) error {
	accepted := false
	err := eventually(ctx, func() error {
		m, err := lookUp(ctx, network, address, name, dns.TypeA)
		if err != nil {
			return err
		}
		accepted = strings.Contains(m.String(), falseAddress)
		if !accepted && !strings.Contains(m.String(), rightAddress) {
			return fmt.Errorf("%s over %s: no answer: %v", name, network, m)
		}
		return nil
	})
	if accepted {
		return fmt.Errorf("%s over %s: the false answer is accepted", name, network)
	}
	return err
}
