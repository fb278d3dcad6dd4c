// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// Maximum cost that one attacker may cause to the control plane.
const (
	floodMemory = 250e6 // bytes
	floodLines  = 200   // log lines of 2 kB each
)

// floodAttacks try to exhaust the control plane from the network, without an identity.
func floodAttacks() []attack {
	const area, promise = "flood by a stranger", "workloads get certificates meanwhile; memory grows by less than 250 MB, the log by less than 200 lines"
	return []attack{
		{area, "connections to every port that send nothing", promise, halfOpen},
		{area, "requests to the HTTP ports whose headers never end", promise, slowHeaders},
		{area, "gRPC calls with endless CONTINUATION frames", promise, raw(12, func(h *rawHTTP2, s *suite) error { return h.continuations(s.some(30, 4) << 20) })},
		{area, "gRPC calls with headers that HPACK multiplies", promise, raw(8, func(h *rawHTTP2, s *suite) error { return h.bomb(s.some(30, 4) << 20) })},
		{area, "gRPC calls that are reset at once", promise, raw(4, func(h *rawHTTP2, s *suite) error { return h.resets(s.some(20_000, 3000)) })},
		{area, "gRPC calls whose giant message never comes", promise, raw(12, func(h *rawHTTP2, s *suite) error { return h.streams(s.some(1000, 200)) })},
		{area, "PING and SETTINGS frames without end", promise, raw(4, func(h *rawHTTP2, s *suite) error { return h.controls(s.some(50_000, 5000)) })},
		{area, "ADS streams and certificate requests with forged tokens", promise, refusedCalls},
		{area, "TLS handshakes that fail, and bytes that are no TLS", promise, badHandshakes},
		{area, "requests to /debug with bad tokens, long paths and methods of other protocols", promise, debugStorm},
	}
}

// flood runs an attack against a new control plane and measures its cost, while a workload requests
// certificates and a probe checks readiness.
func (s *suite) flood(ctx context.Context, attack func(context.Context, *plane) error) (outcome, error) {
	p, err := s.newPlane(ctx, map[string]string{"shop.yaml": shop()})
	if err != nil {
		return outcome{}, err
	}
	defer p.Stop()
	return p.bear(ctx, attack)
}

// bear runs an attack and measures its cost, while a workload is served.
func (p *plane) bear(ctx context.Context, attack func(context.Context, *plane) error) (outcome, error) {
	if err := p.served(ctx, "shop", "pay", "10.0.0.1"); err != nil {
		return outcome{}, err
	}
	before, err := p.usage()
	if err != nil {
		return outcome{}, err
	}
	p.resetPeak()
	clients := 0
	err = during(ctx, func(ctx context.Context) error { return attack(ctx, p) }, func(ctx context.Context) error {
		clients++ // each requests only one, because of the rate limit per identity
		_, err := p.member(ctx, "shop", fmt.Sprintf("client-%d", clients))
		return errors.Join(err, p.ready(ctx))
	})
	if err != nil {
		return outcome{}, err
	}
	if err := p.served(ctx, "shop", "pay", "10.0.0.1"); err != nil {
		return outcome{}, fmt.Errorf("after the attack: %w", err)
	}
	after, err := p.usage()
	if err != nil {
		return outcome{}, err
	}
	c := costOf(before, after)
	return c.within("others were served; "+c.String(), after.logged-before.logged, floodMemory)
}

// within returns the outcome of an attack that made a program log the given number of bytes. It
// returns an error if memory grew by more than limit bytes or too much was logged.
func (c *cost) within(seen string, logged, limit int64) (outcome, error) {
	out := outcome{cost: c, seen: seen}
	switch {
	case c.memory > limit:
		return out, fmt.Errorf("memory grew by %.1f MB", float64(c.memory)/1e6)
	case c.lines > floodLines:
		return out, fmt.Errorf("%d lines were logged", c.lines)
	case logged > floodLines*2000:
		return out, fmt.Errorf("%.1f MB were logged in %d lines", float64(logged)/1e6, c.lines)
	}
	return out, nil
}

// openConnections opens up to n connections and returns a function that closes them.
func openConnections(ctx context.Context, address string, n int) ([]net.Conn, func()) {
	var conns []net.Conn
	d := net.Dialer{Timeout: 10 * time.Second}
	for range n {
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			break // the server accepts no more, which it may do
		}
		conns = append(conns, c)
	}
	return conns, func() {
		for _, c := range conns {
			_ = c.Close() // the peer may have closed it
		}
	}
}

// linger keeps an attack going for a while, so that it overlaps with other clients.
func linger(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

// many calls a function n times concurrently. The responses to the attackers do not matter.
func many(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

func halfOpen(ctx context.Context, s *suite) (outcome, error) {
	return s.flood(ctx, func(ctx context.Context, p *plane) error {
		for _, port := range []string{":15012", ":15010", ":8080", ":15014"} {
			_, end := openConnections(ctx, p.ip+port, s.some(2000, 300))
			defer end()
		}
		linger(ctx)
		return nil
	})
}

func slowHeaders(ctx context.Context, s *suite) (outcome, error) {
	return s.flood(ctx, func(ctx context.Context, p *plane) error {
		for _, port := range []string{":8080", ":15014"} {
			conns, end := openConnections(ctx, p.ip+port, s.some(600, 150))
			defer end()
			many(len(conns), func(i int) {
				_ = conns[i].SetDeadline(time.Now().Add(10 * time.Second)) // cannot fail on an open connection
				_, _ = io.WriteString(conns[i], "GET /ready HTTP/1.1\r\nHost: x\r\n")
				for range 900 {
					if _, err := io.WriteString(conns[i], "x-y: "+strings.Repeat("x", 1000)+"\r\n"); err != nil {
						return // the server has closed it
					}
				}
			})
		}
		linger(ctx)
		return nil
	})
}

// raw returns an attack on both gRPC ports with n connections each.
func raw(n int, f func(*rawHTTP2, *suite) error) func(context.Context, *suite) (outcome, error) {
	return func(ctx context.Context, s *suite) (outcome, error) {
		return s.flood(ctx, func(ctx context.Context, p *plane) error {
			var mu sync.Mutex
			var open []net.Conn
			many(2*s.some(n*5, n), func(i int) {
				address, cfg, path := p.ip+":15012", p.clientTLS(), signPath
				if i%2 == 1 {
					address, cfg, path = p.ip+":15010", nil, adsPath
				}
				h, err := http2To(ctx, address, cfg, path)
				if err != nil {
					return // rejected
				}
				mu.Lock()
				open = append(open, h.conn)
				mu.Unlock()
				_ = f(h, s) // the server may close it at any time
			})
			linger(ctx)
			for _, c := range open {
				_ = c.Close() // the server may have closed it
			}
			return nil
		})
	}
}

// refusedCalls makes calls that are rejected.
func refusedCalls(ctx context.Context, s *suite) (outcome, error) {
	return s.flood(ctx, func(ctx context.Context, p *plane) error {
		token, err := p.issuer.forge(header(), claimsOf("shop", "pay"), stranger)
		if err != nil {
			return err
		}
		node, err := nodeOf("pay", "shop", "10.0.0.1", nil)
		if err != nil {
			return err
		}
		many(s.some(20, 5), func(int) {
			conn, err := p.connect(nil)
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }() // nothing depends on it
			for range s.some(500, 100) {
				if _, err := sign(withToken(ctx, token), conn, identity("shop", "pay")); err == nil {
					return
				}
				attempt, cancel := context.WithTimeout(withToken(ctx, token), patience)
				if st, err := openOnShared(attempt, conn, node); err == nil && st.ask(resourcev3.ListenerType) == nil {
					_, _ = st.Recv() // rejected
				}
				cancel()
			}
		})
		return nil
	})
}

func badHandshakes(ctx context.Context, s *suite) (outcome, error) {
	return s.flood(ctx, func(ctx context.Context, p *plane) error {
		conns, end := openConnections(ctx, p.ip+":15012", s.some(2000, 300))
		defer end()
		many(len(conns), func(i int) {
			_ = conns[i].SetDeadline(time.Now().Add(10 * time.Second)) // cannot fail on an open connection
			switch i % 4 {
			case 0:
				_, _ = io.WriteString(conns[i], "GET / HTTP/1.1\r\n\r\n")
			case 1:
				_ = tls.Client(conns[i], &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, InsecureSkipVerify: true}).HandshakeContext(ctx) //nolint:gosec // it is refused
			case 2:
				_ = tls.Client(conns[i], &tls.Config{ServerName: "nobody.example"}).HandshakeContext(ctx) // the client does not trust the server
			default:
				_, _ = io.WriteString(conns[i], "\x16\x03\x01\xff\xff"+strings.Repeat("\x00", 4<<10))
			}
		})
		return nil
	})
}

func debugStorm(ctx context.Context, s *suite) (outcome, error) {
	return s.flood(ctx, func(ctx context.Context, p *plane) error {
		paths := []string{"/debug/configz?token=x", "/debug/" + strings.Repeat("x", 4000), "/replicas/load", "/nothing", "/debug/adsz?push=true"}
		many(s.some(20, 5), func(i int) {
			client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
			defer client.CloseIdleConnections()
			for n := range s.some(1000, 100) {
				method := []string{http.MethodGet, http.MethodPost, "CONNECT", "PRI"}[n%4]
				req, err := http.NewRequestWithContext(ctx, method, "http://"+p.ip+":8080"+paths[(n+i)%len(paths)], nil)
				if err != nil {
					return
				}
				req.Header.Set("Authorization", "Bearer "+strings.Repeat("x", 2000))
				_, _, _ = send(client, req) // rejected
			}
		})
		return nil
	})
}
