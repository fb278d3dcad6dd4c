// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"
)

// What a change may take with a thousand proxies; with fewer, the targets
// mean nothing and are left out.
const targetProxies = 1000

// push measures what many proxies cost a control plane: their first sync,
// one route changed, one endpoint changed; state of the world, then delta.
func (b *bench) push(ctx context.Context) (figures []figure, err error) {
	for _, delta := range []bool{false, true} {
		name := "SotW"
		if delta {
			name = "delta"
		}
		ours, subs, err := b.pushOurs(ctx, kind{delta: delta})
		if err != nil {
			return figures, fmt.Errorf("%s: %w", name, err)
		}
		straight, err := b.pushFloor(ctx, subs)
		if err != nil {
			return figures, fmt.Errorf("%s, floor: %w", name, err)
		}
		figures = append(figures, b.pushFigures(name, ours, straight)...)
	}
	return figures, nil
}

// intercept measures the same for sidecars that traffic is redirected to, which
// have a listener for each address and port of what is no HTTP, and are endpoints
// of services. There is no floor and no target.
func (b *bench) intercept(ctx context.Context) (figures []figure, err error) {
	sub := *b
	sub.dir, sub.redirect = b.path("intercept"), true
	err = errors.Join(writeMesh(sub.path("config"), sub.services), writeStreams(sub.path("config"), sub.services/5))
	if err != nil {
		return nil, err
	}
	for _, delta := range []bool{false, true} {
		name := "redirected, SotW"
		if delta {
			name = "redirected, delta"
		}
		ours, _, err := sub.pushOurs(ctx, kind{delta: delta, redirect: true})
		if err != nil {
			return figures, fmt.Errorf("%s: %w", name, err)
		}
		figures = append(figures, sub.pushFigures(name, ours, load{})...)
	}
	return figures, nil
}

// load is what one control plane did.
type load struct {
	first, route, endpoint, service change
	resident, anonymous             float64
}

// change is what it took until all proxies had something.
type change struct{ wall, cpu, bytes float64 }

func (b *bench) pushFigures(name string, ours, straight load) []figure {
	route := change{0.6, 0.4, 0}
	if name == "delta" {
		route = change{0.15, 0.1, 2e6}
	}
	rows := []struct {
		what           string
		ours, straight change
		target         change
	}{
		{"first sync", ours.first, straight.first, change{6, 2.5, 0}},
		{"one route", ours.route, straight.route, route},
		{"one endpoint", ours.endpoint, straight.endpoint, change{0.1, 0.1, 0.57e6}},
		{"one service replaced", ours.service, change{}, change{}},
	}
	targets := b.proxies == targetProxies && b.services == 500 && !b.redirect
	var out []figure
	for _, r := range rows {
		if !targets {
			r.target = change{}
		}
		title := name + ", " + r.what + ": "
		out = append(out,
			figure{Name: title + "all have it", Unit: seconds, Ours: r.ours.wall, Straight: r.straight.wall, Target: r.target.wall},
			figure{Name: title + "server CPU", Unit: seconds, Ours: r.ours.cpu, Straight: r.straight.cpu, Target: r.target.cpu},
			figure{Name: title + "bytes pushed", Unit: megabytes, Ours: r.ours.bytes, Straight: r.straight.bytes, Target: r.target.bytes})
	}
	memory := figure{Name: name + ": resident memory of the control plane", Unit: megabytes, Ours: ours.resident, Straight: straight.resident}
	if targets {
		memory.Target = 150e6
	}
	return append(out, memory, figure{Name: name + ": anonymous memory of the control plane", Unit: megabytes, Ours: ours.anonymous, Straight: straight.anonymous})
}

// newService is the file of the service that is new: it takes the place of the one
// that was new before.
const newService = "svc-new.yaml"

// pushOurs measures our control plane. A first one, which is ended, tells
// what proxies subscribe, so that the measured one starts cold.
func (b *bench) pushOurs(ctx context.Context, k kind) (l load, subs subscriptions, err error) {
	c, err := b.startControl(ctx, "load", "")
	if err != nil {
		return l, subs, err
	}
	subs, err = learn(ctx, controlHost+plaintext, k)
	c.stop()
	if err != nil {
		return l, subs, err
	}
	if c, err = b.startControl(ctx, "load", ""); err != nil {
		return l, subs, err
	}
	defer c.stop()
	l, err = b.measure(ctx, c.process, controlHost, subs, func(typeURL, marker string) error {
		switch typeURL {
		case typeCluster:
			return writeFile(b.path("config", newService), serviceNamed(marker, b.services, "10.76.0.1"))
		case typeEndpoint:
			return writeFile(serviceFile(b.path("config"), 1), serviceEntry(1, marker))
		}
		return writeFile(routeFile(b.path("config"), 0), route(0, marker))
	})
	return l, subs, errors.Join(err, os.RemoveAll(b.path("config", newService)))
}

// pushFloor measures the floor: the same bytes from a server that does
// nothing but send them.
func (b *bench) pushFloor(ctx context.Context, subs subscriptions) (l load, err error) {
	dir := b.path("floor")
	for _, t := range types(subs.delta) {
		data := subs.learnt[t]
		if err := writeFile(floorFile(dir, t, "all"), string(data)); err != nil {
			return l, err
		}
		if t == typeEndpoint || t == typeVirtualHost {
			if data, err = shorten(data, subs.delta); err != nil {
				return l, err
			}
		}
		if err := writeFile(floorFile(dir, t, "change"), string(data)); err != nil {
			return l, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return l, fmt.Errorf("find this program: %w", err)
	}
	p, err := b.start.run(spec{
		path: self, dir: dir, log: b.path("floor.log"), stdin: true,
		args: []string{floorCommand, "--listen", floorHost + plaintext, "--dir", dir},
	})
	if err != nil {
		return l, err
	}
	defer p.stop()
	if err := waitForPort(ctx, p, floorHost+plaintext); err != nil {
		return l, err
	}
	return b.measure(ctx, p, floorHost, subs, func(typeURL, marker string) error {
		_, err := fmt.Fprintln(p.stdin, typeURL, marker)
		return err
	})
}

// measure connects the proxies and makes the changes.
func (b *bench) measure(ctx context.Context, server *process, host string, subs subscriptions, change func(typeURL, marker string) error) (l load, err error) {
	before, err := cpu(server.pid())
	if err != nil {
		return l, err
	}
	var prof profiles
	if host == controlHost && b.profiles != "" {
		prof = profiles{b.profiles, fmt.Sprintf("%d-%d-delta-%t", b.services, b.proxies, subs.delta)}
	}
	profiled := prof.cpu(ctx)
	began := time.Now()
	p := startProxies(ctx, host+plaintext, b.proxies, subs)
	defer p.stop()
	if _, err := next(p, p.synced, 2*time.Minute); err != nil {
		return l, fmt.Errorf("first sync: %w: %s", err, server.lastWords())
	}
	l.first.wall = time.Since(began).Seconds()
	if err := settle(ctx, server, before, &l.first.cpu); err != nil {
		return l, err
	}
	if err := profiled(); err != nil {
		return l, err
	}
	l.first.bytes = float64(p.bytes.Load())
	b.say("push: %s, delta %t: first sync %.3f s, server CPU %.3f s, %.1f MB", host, subs.delta, l.first.wall, l.first.cpu, l.first.bytes/1e6)
	for _, c := range l.changes(subs, host == controlHost) {
		var samples changeSamples
		for round := range b.rounds {
			marker := fmt.Sprintf(c.marker, 100+round)
			if err := p.round(ctx, server, c.wanted(subs, marker), func() error { return change(c.typeURL, marker) }, &samples); err != nil {
				return l, fmt.Errorf("%s, round %d: %w", c.what, round+1, err)
			}
		}
		if *c.to, err = samples.median(); err != nil {
			return l, err
		}
		b.say("push: %s, delta %t: %s, all have it %.3f s (slowest round %.3f s), server CPU %.3f s, %.2f MB",
			host, subs.delta, c.what, c.to.wall, slices.Max(samples.wall), c.to.cpu, c.to.bytes/1e6)
	}
	if l.resident, l.anonymous, err = memory(server.pid()); err != nil {
		return l, err
	}
	return l, prof.memory(ctx, server.pid())
}

// aChange is a kind of change, made several times.
type aChange struct {
	what string
	// typeURL is the type of what is changed.
	typeURL string
	// marker makes a text that no resource had before.
	marker string
	to     *change
}

// changes are those that are made; a new service only with a control plane that
// knows what a service is.
func (l *load) changes(subs subscriptions, services bool) []aChange {
	ofRoute, turn := typeRoute, 77
	if subs.delta {
		ofRoute, turn = typeVirtualHost, 78
	}
	all := []aChange{
		{"one route", ofRoute, fmt.Sprintf("10.%d.0.%%d", turn), &l.route},
		{"one endpoint", typeEndpoint, fmt.Sprintf("10.%d.1.%%d", turn), &l.endpoint},
	}
	if services {
		all = append(all, aChange{"one service replaced", typeCluster, fmt.Sprintf("svc-new-%d-%%d.mesh.local", turn), &l.service})
	}
	return all
}

// wanted is by what a proxy knows that it has the change: of a new service the
// routes come last, and its cluster needs endpoints.
func (c aChange) wanted(subs subscriptions, marker string) wanted {
	w := wanted{typeURL: c.typeURL, marker: []byte(marker)}
	if c.typeURL != typeCluster {
		return w
	}
	w.typeURL = typeRoute
	if subs.delta {
		w.typeURL = typeVirtualHost
	}
	w.added = encodeNames([]string{"outbound|80||" + marker})
	w.all = slices.Concat(subs.names[typeEndpoint], w.added)
	return w
}

// changeSamples are the rounds of one kind of change.
type changeSamples struct{ wall, cpu, bytes []float64 }

func (s *changeSamples) median() (c change, err error) {
	for _, v := range []struct {
		from []float64
		to   *float64
	}{{s.wall, &c.wall}, {s.cpu, &c.cpu}, {s.bytes, &c.bytes}} {
		if *v.to, err = median(v.from); err != nil {
			return c, err
		}
	}
	return c, nil
}

// round makes one change and waits until all proxies have it.
func (p *proxies) round(ctx context.Context, server *process, w wanted, change func() error, to *changeSamples) error {
	before, err := cpu(server.pid())
	if err != nil {
		return err
	}
	bytes := p.bytes.Load()
	p.wanted.Store(&w)
	began := time.Now()
	if err := change(); err != nil {
		return err
	}
	last, err := next(p, p.seen, 30*time.Second)
	if err != nil {
		return fmt.Errorf("%s with %s: %w", w.typeURL, w.marker, err)
	}
	var used float64
	if err := settle(ctx, server, before, &used); err != nil {
		return err
	}
	to.wall = append(to.wall, last.Sub(began).Seconds())
	to.cpu = append(to.cpu, used)
	to.bytes = append(to.bytes, float64(p.bytes.Load()-bytes))
	return nil
}

// settle waits until the server is done, acknowledgements included, and stores the
// CPU time in seconds that it used.
func settle(ctx context.Context, server *process, before time.Duration, used *float64) error {
	if err := sleep(ctx, time.Second); err != nil {
		return err
	}
	now, err := cpu(server.pid())
	*used = (now - before).Seconds()
	return err
}

func waitForPort(ctx context.Context, p *process, address string) error {
	for range 500 {
		if conn, err := net.Dial("tcp", address); err == nil {
			return conn.Close()
		}
		select {
		case <-p.ended:
			return fmt.Errorf("the floor ended: %s", p.lastWords())
		default:
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("nobody listens on %s: %s", address, p.lastWords())
}
