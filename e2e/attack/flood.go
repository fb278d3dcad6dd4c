// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// floodAttacks try to exhaust the control plane from the network, without an
// identity.
func floodAttacks() []attack {
	const area = "flood by a stranger"
	return []attack{
		{area, "connections to every port that send nothing", "workloads get certificates meanwhile; memory grows by less than 100 MB", halfOpen},
	}
}

// flood runs an attack against a new control plane while a workload asks for
// certificates and a probe for readiness, and measures what it costs.
func (s *suite) flood(ctx context.Context, who string, most int64, lines int, attack func(context.Context, *plane) error) (outcome, error) {
	p, err := s.newPlane(ctx, map[string]string{"shop.yaml": shop})
	if err != nil {
		return outcome{}, err
	}
	defer p.stop()
	return p.bear(ctx, who, most, lines, attack)
}

// bear runs an attack while a workload is served, and measures what it costs.
func (p *plane) bear(ctx context.Context, who string, most int64, lines int, attack func(context.Context, *plane) error) (outcome, error) {
	if _, err := p.member(ctx, "shop", "pay"); err != nil {
		return outcome{}, err
	}
	before, err := p.usage()
	if err != nil {
		return outcome{}, err
	}
	p.resetPeak()
	served := 0
	err = during(ctx, func(ctx context.Context) error { return attack(ctx, p) }, func(ctx context.Context) error {
		_, err := p.member(ctx, "shop", "pay")
		if err = errors.Join(err, p.ready(ctx)); err == nil {
			served++
		}
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	after, err := p.usage()
	if err != nil {
		return outcome{}, err
	}
	c := &cost{who: who, memory: max(0, after.peak-before.rss), cpu: after.cpu - before.cpu, lines: after.lines - before.lines}
	out := outcome{cost: c, seen: "a workload was served"}
	switch {
	case c.memory > most:
		return out, fmt.Errorf("memory grew by %.1f MB, more than %d MB", float64(c.memory)/1e6, most/1e6)
	case c.lines > lines:
		return out, fmt.Errorf("%d lines were logged, more than %d", c.lines, lines)
	case after.logged-before.logged > int64(lines)*2000:
		return out, fmt.Errorf("%.1f MB were logged in %d lines", float64(after.logged-before.logged)/1e6, c.lines)
	}
	return out, nil
}

// crowd opens connections and returns a function that closes them.
func crowd(ctx context.Context, address string, n int) ([]net.Conn, func()) {
	var conns []net.Conn
	d := net.Dialer{Timeout: 10 * time.Second}
	for range n {
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			break // the server takes no more: that is its right
		}
		conns = append(conns, c)
	}
	return conns, func() {
		for _, c := range conns {
			_ = c.Close() // the other side may have done so
		}
	}
}

// linger keeps an attack up for a while, so that others meet it.
func linger(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

func halfOpen(ctx context.Context, s *suite) (outcome, error) {
	return s.flood(ctx, "stranger", 100e6, 200, func(ctx context.Context, p *plane) error {
		for _, port := range []string{":15012", ":15010", ":8080", ":15014"} {
			_, end := crowd(ctx, p.ip+port, s.some(2000, 300))
			defer end()
		}
		linger(ctx)
		return nil
	})
}
