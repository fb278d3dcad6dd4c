// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// targetProxies is the number of proxies for which the targets of a change apply. With fewer, the
// targets are omitted.
const targetProxies = 1000

// push measures the cost of many proxies for a control plane: the first sync, one changed route and
// one changed endpoint; first with state of the world, then with delta.
func (b *bench) push(ctx context.Context) {
	for _, delta := range []bool{false, true} {
		ours, subs := b.pushOurs(ctx, kind{delta: delta})
		b.pushFigures(delta, ours, b.pushFloor(ctx, subs))
	}
}

// intercept measures the same for sidecars with intercepted traffic, which have a listener for each
// address and port of non-HTTP services and are endpoints of services. It has no floor and no
// targets.
func (b *bench) intercept(ctx context.Context) {
	sub := *b
	sub.dir, sub.redirect = b.path("intercept"), true
	writeMesh(sub.path("config"), sub.services)
	writeStreams(sub.path("config"), sub.services/5)
	for _, delta := range []bool{false, true} {
		ours, _ := sub.pushOurs(ctx, kind{delta: delta, redirect: true})
		sub.pushFigures(delta, ours, load{})
	}
}

// load is the measurement of one control plane.
type load struct {
	first, route, endpoint, service change
	usage
}

// change is the cost until all proxies have a change.
type change struct{ wall, cpu, bytes float64 }

func (b *bench) pushFigures(delta bool, ours, straight load) {
	name, route := "SotW", change{0.6, 0.4, 0}
	if delta {
		name, route = "delta", change{0.15, 0.1, 2e6}
	}
	if b.redirect {
		name = "redirected, " + name
	}
	targets := b.proxies == targetProxies && b.services == 500 && !b.redirect
	for _, r := range []struct {
		what                   string
		ours, straight, target change
	}{
		{"first sync", ours.first, straight.first, change{6, 2.5, 0}},
		{"one route", ours.route, straight.route, route},
		{"one endpoint", ours.endpoint, straight.endpoint, change{0.1, 0.1, 0.57e6}},
		{"one service replaced", ours.service, change{}, change{}},
	} {
		if !targets {
			r.target = change{}
		}
		title := name + ", " + r.what + ": "
		b.add(
			figure{Name: title + "all have it", Unit: seconds, Ours: r.ours.wall, Straight: r.straight.wall, Target: r.target.wall},
			figure{Name: title + "server CPU", Unit: seconds, Ours: r.ours.cpu, Straight: r.straight.cpu, Target: r.target.cpu},
			figure{Name: title + "bytes pushed", Unit: megabytes, Ours: r.ours.bytes, Straight: r.straight.bytes, Target: r.target.bytes})
	}
	memory := figure{Name: name + ": resident memory of the control plane", Unit: megabytes, Ours: ours.resident, Straight: straight.resident}
	if targets {
		memory.Target = 150e6
	}
	b.add(memory, figure{Name: name + ": anonymous memory of the control plane", Unit: megabytes, Ours: ours.anonymous, Straight: straight.anonymous})
}

// newService is the file of the new service, which replaces the previous new service.
const newService = "svc-new.yaml"

// learnt returns the subscriptions of proxies of the mesh. It learns them from a separate control
// plane, so that the measured one starts cold.
func (b *bench) learnt(ctx context.Context, k kind) subscriptions {
	c := b.startControl(ctx, "load")
	defer c.stop()
	return learn(ctx, controlHost+plaintext, k)
}

// pushOurs measures Outrigger's control plane.
func (b *bench) pushOurs(ctx context.Context, k kind) (load, subscriptions) {
	subs := b.learnt(ctx, k)
	c := b.startControl(ctx, "load")
	defer c.stop()
	config := b.path("config")
	l := b.measure(ctx, c.process, controlHost, subs, func(typeURL, marker string) {
		switch typeURL {
		case typeCluster:
			writeFile(b.path("config", newService), serviceNamed(marker, b.services, "10.76.0.1"))
		case typeEndpoint:
			writeFile(serviceFile(config, 1), serviceEntry(1, marker))
		default:
			writeFile(routeFile(config, 0), route(0, marker))
		}
	})
	check(os.RemoveAll(b.path("config", newService)))
	return l, subs
}

// pushFloor measures the floor: the same bytes from a server that only sends them.
func (b *bench) pushFloor(ctx context.Context, subs subscriptions) load {
	dir := b.path("floor")
	for _, t := range types(subs.delta) {
		data := subs.learnt[t]
		writeFile(floorFile(dir, t, "all"), string(data))
		if t == typeEndpoint || t == typeVirtualHost {
			data = shorten(data)
		}
		writeFile(floorFile(dir, t, "change"), string(data))
	}
	p := b.helper(floorHelper, floorHost+plaintext, dir)
	defer p.stop()
	p.listens(ctx, "tcp", floorHost+plaintext)
	return b.measure(ctx, p, floorHost, subs, func(typeURL, marker string) {
		p.order(proxyCluster, floorFile(dir, typeURL, "change"), marker)
	})
}

// measure connects the proxies and makes the changes.
func (b *bench) measure(ctx context.Context, server *process, host string, subs subscriptions, apply func(typeURL, marker string)) (l load) {
	p := newProxies(server, host+plaintext, b.proxies, subs)
	defer p.stop()
	l.first = p.took(ctx, p.synced, func() { p.start(ctx) })
	b.say("push: %s, delta %t: first sync %.3f s, server CPU %.3f s, %.1f MB", host, subs.delta, l.first.wall, l.first.cpu, l.first.bytes/1e6)
	for _, c := range l.changes(subs, host == controlHost) {
		var rounds []change
		for round := range b.rounds {
			marker := fmt.Sprintf(c.marker, 100+round)
			rounds = append(rounds, p.took(ctx, p.seen, func() {
				p.wanted.Store(c.wanted(subs, marker))
				apply(c.typeURL, marker)
			}))
		}
		*c.to = change{
			wall:  median(rounds, func(c change) float64 { return c.wall }),
			cpu:   median(rounds, func(c change) float64 { return c.cpu }),
			bytes: median(rounds, func(c change) float64 { return c.bytes }),
		}
		b.say("push: %s, delta %t: %s, all have it %.3f s, server CPU %.3f s, %.2f MB", host, subs.delta, c.what, c.to.wall, c.to.cpu, c.to.bytes/1e6)
	}
	l.usage = server.usage()
	return l
}

// took calls do and returns the cost until all proxies have the change. The CPU time includes one
// more second, for acknowledgements.
func (p *proxies) took(ctx context.Context, from <-chan time.Time, do func()) change {
	before, bytes, began := p.server.usage().cpu, p.bytes.Load(), time.Now()
	do()
	last := p.by(100, from)
	sleep(ctx, time.Second)
	return change{last.Sub(began).Seconds(), p.server.usage().cpu - before, float64(p.bytes.Load() - bytes)}
}

// aChange is a type of change, which is made several times.
type aChange struct {
	what string
	// typeURL is the type of the changed resource.
	typeURL string
	// marker returns a text that no resource has contained before.
	marker string
	to     *change
}

// changes returns the changes to make. It includes a new service only for a control plane that
// supports services.
func (l *load) changes(subs subscriptions, services bool) []aChange {
	turn := 77
	if subs.delta {
		turn = 78
	}
	all := []aChange{
		{"one route", lastType(subs.delta), fmt.Sprintf("10.%d.0.%%d", turn), &l.route},
		{"one endpoint", typeEndpoint, fmt.Sprintf("10.%d.1.%%d", turn), &l.endpoint},
	}
	if services {
		all = append(all, aChange{"one service replaced", typeCluster, fmt.Sprintf("svc-new-%d-%%d.mesh.local", turn), &l.service})
	}
	return all
}

// wanted returns what a proxy must receive to have the change. For a new service, the routes come
// last, and its cluster needs endpoints.
func (c aChange) wanted(subs subscriptions, marker string) *wanted {
	w := &wanted{typeURL: c.typeURL, marker: []byte(marker)}
	if c.typeURL == typeCluster {
		w.typeURL = lastType(subs.delta)
		w.added = encodeNames([]string{"outbound|80||" + marker})
		w.all = slices.Concat(subs.names[typeEndpoint], w.added)
	}
	return w
}
