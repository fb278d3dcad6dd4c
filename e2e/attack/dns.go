// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// dnsMemory is the maximum memory, in bytes, that local attackers of the DNS proxy may cost an
// agent.
const dnsMemory = 100e6

// dnsAttacks attack the DNS proxy of an agent.
func dnsAttacks() []attack {
	return []attack{
		{"DNS", "floods of names that do not exist, broken messages, zone transfers, and silent TCP connections", "names of the mesh are answered meanwhile; no zone is given; memory grows by less than 100 MB", floodDNS},
		{"DNS", "a resolver that sends other ids, questions, types and source addresses, floods, giant, broken and endless answers, and addresses of names of the mesh", "no false answer is accepted, names of the mesh have the addresses of the mesh; memory grows by less than 100 MB", believeResolver},
	}
}

func floodDNS(ctx context.Context, s *suite) (outcome, error) {
	address := s.address() + ":15053"
	return withSidecar(ctx, s, nil, func(c *sidecar) (string, error) {
		if err := eventually(ctx, func() error { return resolves(ctx, address) }); err != nil {
			return "", err
		}
		before, err := c.process.usage()
		if err != nil {
			return "", err
		}
		c.process.resetPeak()
		err = during(ctx, func(ctx context.Context) error {
			_, end := openConnections(ctx, address, s.some(2000, 300))
			defer end()
			many(8, func(i int) { floodNames(address, i, s.some(20_000, 2000)) })
			return zones(address)
		}, func(ctx context.Context) error { return resolves(ctx, address) })
		if err != nil {
			return "", err
		}
		after, err := c.process.usage()
		if err != nil {
			return "", err
		}
		grown := after.Peak - before.RSS
		if grown > dnsMemory {
			return "", fmt.Errorf("memory of the agent grew by %.1f MB", float64(grown)/1e6)
		}
		if lines := after.lines - before.lines; lines > floodLines {
			return "", fmt.Errorf("%d lines were logged", lines)
		}
		return fmt.Sprintf("names were answered; at most %d MB", rounded(max(0, grown)/1e6)), nil
	}, "ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR="+address)
}

// resolves returns an error unless a name of the mesh is answered. Like a resolver, it retries a
// query that is lost in a flood.
func resolves(ctx context.Context, address string) error {
	q := new(dns.Msg).SetQuestion("pay.shop.svc.cluster.local.", dns.TypeA)
	var last error
	for range 20 {
		answer, _, err := (&dns.Client{Timeout: 5 * time.Second}).ExchangeContext(ctx, q, address)
		if err == nil && len(answer.Answer) == 1 && strings.Contains(answer.Answer[0].String(), "10.96.0.1") {
			return nil
		}
		if last = err; err == nil {
			last = fmt.Errorf("the answer is %v", answer)
		}
	}
	return fmt.Errorf("a name of the mesh is not answered: %w", last)
}

// floodNames sends queries and invalid messages without waiting for answers.
func floodNames(address string, sender, n int) {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }() // nothing depends on it
	for i := range n {
		q := new(dns.Msg).SetQuestion(fmt.Sprintf("%s%d-%d.example.", strings.Repeat("x", 20), sender, i), []uint16{dns.TypeA, dns.TypeANY, dns.TypeTXT, dns.TypeAAAA}[i%4])
		b, err := q.Pack()
		if err != nil {
			return
		}
		switch i % 8 {
		case 3:
			b = b[:len(b)/2]
		case 5:
			b = append(b[:12], 0xc0, 0x0c, 0xc0, 0x0c) // a name that points to itself
		case 7:
			b[2] |= 0x80 // a response
		}
		_, _ = conn.Write(b) // it may be lost
	}
}

// zones requests zone transfers.
func zones(address string) error {
	for _, zone := range []string{".", "svc.cluster.local.", "shop.svc.cluster.local."} {
		tr := &dns.Transfer{DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second}
		records, err := tr.In(new(dns.Msg).SetAxfr(zone), address)
		if err != nil {
			continue // rejected
		}
		for r := range records {
			if r.Error == nil && len(r.RR) > 0 {
				return fmt.Errorf("the zone %s was given", zone)
			}
		}
	}
	return nil
}
