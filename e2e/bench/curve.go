// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

// Targets of a control plane, in addition to those of push.
const (
	maxProxyMemory = 110e3 // bytes for an additional proxy that is like an existing one
	maxHugeMemory  = 2e9   // bytes for 10,000 services and 1,000 proxies
	maxReturn      = 5.0   // seconds until all proxies are in sync after a restart
	maxGone        = 1.0   // seconds until 99 % of the proxies have removed an endpoint
)

// size is one point of the curve.
type size struct{ services, proxies int }

// pushCurve measures, with delta, how costs grow: the first sync, one changed endpoint, and memory.
// It varies the number of proxies for a fixed mesh and the size of the mesh for a fixed number of
// proxies, and measures the largest mesh for which there is a target. If one size fails, the others
// are still measured.
func (b *bench) pushCurve(ctx context.Context) {
	sizes := []size{{500, 100}, {500, 300}, {500, 1000}, {500, 3000}, {100, 100}, {1000, 100}, {3000, 100}, {10_000, 100}, {10_000, 1000}}
	if b.short {
		sizes = []size{{100, 30}, {100, 100}}
	}
	var failed error
	resident := map[size]float64{}
	for i, s := range sizes {
		err := attempt(ctx, func(ctx context.Context) { resident[s] = b.curvePoint(ctx, s) })
		b.start.stop()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%d services, %d proxies: %w", s.services, s.proxies, err))
		}
		if i == 0 || sizes[i-1].services != s.services || resident[s] == 0 || resident[sizes[i-1]] == 0 {
			continue
		}
		less := sizes[i-1]
		each := figure{
			Name: fmt.Sprintf("%d services, %d to %d proxies: memory of one more proxy", s.services, less.proxies, s.proxies),
			Unit: kilobytes, Ours: (resident[s] - resident[less]) / float64(s.proxies-less.proxies),
		}
		if s.services == 500 {
			each.Target = maxProxyMemory
		}
		b.add(each)
	}
	check(failed)
}

// sized returns a bench with a mesh of the given size, in its own directory.
func (b *bench) sized(s size) *bench {
	sub := *b
	sub.services, sub.proxies = s.services, s.proxies
	sub.dir = b.path(fmt.Sprintf("mesh-%d-%d", s.services, s.proxies))
	writeMesh(sub.path("config"), s.services)
	return &sub
}

// curvePoint measures one size and returns the memory of the control plane in bytes.
func (b *bench) curvePoint(ctx context.Context, s size) float64 {
	sub := b.sized(s)
	sub.rounds = 3
	l, _ := sub.pushOurs(ctx, kind{delta: true})
	title := fmt.Sprintf("%d services, %d proxies: ", s.services, s.proxies)
	memory := figure{Name: title + "resident memory", Unit: megabytes, Ours: l.resident}
	if s == (size{10_000, 1000}) {
		memory.Target = maxHugeMemory
	}
	b.add(
		figure{Name: title + "first sync", Unit: seconds, Ours: l.first.wall},
		figure{Name: title + "first sync, server CPU", Unit: seconds, Ours: l.first.cpu},
		figure{Name: title + "one endpoint, all have it", Unit: seconds, Ours: l.endpoint.wall},
		figure{Name: title + "one endpoint, server CPU", Unit: seconds, Ours: l.endpoint.cpu},
		memory)
	return l.resident
}

// connected returns a control plane with 500 services and proxies that are in sync, over delta. The
// caller stops the proxies. If the control plane exits, the proxies reconnect if back is set, and
// otherwise fail.
func (b *bench) connected(ctx context.Context, back bool) (*bench, *control, *proxies) {
	sub := b.sized(size{500, b.proxies})
	c := sub.startControl(ctx, "load")
	subs := learn(ctx, controlHost+plaintext, kind{delta: true})
	if back {
		subs.back = subs.encodeReturn()
	}
	p := newProxies(c.process, controlHost+plaintext, sub.proxies, subs)
	p.start(ctx)
	if err := attempt(ctx, func(context.Context) { p.by(100, p.synced) }); err != nil {
		p.stop()
		check(err)
	}
	return sub, c, p
}

// restart stops the control plane, changes an endpoint and starts it again. It measures the time
// until all proxies have the change, and the bytes sent to them.
func (b *bench) restart(ctx context.Context) {
	sub, c, p := b.connected(ctx, true)
	defer p.stop()
	first := float64(p.bytes.Load())
	p.wanted.Store(&wanted{typeURL: typeEndpoint, marker: []byte("10.79.0.1")})
	c.stop()
	writeFile(serviceFile(sub.path("config"), 1), serviceEntry(1, "10.79.0.1"))
	p.bytes.Store(0)
	c = sub.startControl(ctx, "load")
	ready := time.Now()
	took := p.by(100, p.seen).Sub(ready).Seconds()
	used, again := c.usage().cpu, float64(p.bytes.Load())
	b.say("restart: %.3f MB of %.1f MB sent again", again/1e6, first/1e6)
	title := fmt.Sprintf("restart, %d proxies: ", sub.proxies)
	b.add(
		figure{Name: title + "all in sync after ready", Unit: seconds, Ours: took, Target: maxReturn},
		figure{Name: title + "server CPU since its start", Unit: seconds, Ours: used},
		figure{Name: title + "bytes sent again", Unit: megabytes, Ours: again, Target: first / 100})
}

// churn changes a thousand endpoints per second and measures, once per second, how long it takes
// until 99 % of the proxies have removed an endpoint.
func (b *bench) churn(ctx context.Context) {
	const perSecond, rounds = 1000, 8
	sub, c, p := b.connected(ctx, false)
	defer p.stop()
	began, before, bytes := time.Now(), c.usage().cpu, p.bytes.Load()
	writers, stop := context.WithCancel(ctx)
	defer stop()
	var written atomic.Int64
	writing := make(chan error, 1)
	go func() { writing <- sub.write(writers, perSecond, &written) }()
	var gone []float64
	for round := range rounds {
		// The new address replaces the previous one.
		marker := fmt.Sprintf("10.80.0.%d", 100+round)
		p.wanted.Store(&wanted{typeURL: typeEndpoint, marker: []byte(marker)})
		changed := time.Now()
		writeFile(serviceFile(sub.path("config"), 0), serviceEntry(0, marker))
		gone = append(gone, p.by(99, p.seen).Sub(changed).Seconds())
		sleep(ctx, time.Second)
	}
	took := time.Since(began).Seconds()
	stop()
	check(<-writing)
	made := float64(written.Load()) / took
	b.say("churn: %.0f changes a second, %.1f MB/s pushed, %.2f cores", made, float64(p.bytes.Load()-bytes)/took/1e6, (c.usage().cpu-before)/took)
	title := fmt.Sprintf("%d endpoint changes a second, %d proxies: ", perSecond, sub.proxies)
	b.add(
		figure{Name: title + "gone from 99 %, median", Unit: seconds, Ours: median(gone, itself), Target: maxGone},
		figure{Name: title + "gone from 99 %, worst round", Unit: seconds, Ours: slices.Max(gone)})
	if made < 0.8*perSecond {
		fail("this machine made only %.0f changes a second", made)
	}
}

// write changes endpoints until ctx is done, in turn: one of each service except the first, and at
// most three of the last. Each change uses a new address.
func (b *bench) write(ctx context.Context, perSecond int, written *atomic.Int64) error {
	const writers = 4 // a single one waits for the disk
	pace := rate.NewLimiter(rate.Limit(perSecond), perSecond/20)
	var all errgroup.Group
	for w := range writers {
		all.Go(func() error {
			own := (b.services - 1) / writers // each file has only one writer
			for k := 0; pace.Wait(ctx) == nil; k++ {
				i, n := 1+w+writers*(k%own), w+writers*k
				address := fmt.Sprintf("10.%d.%d.%d", 90+n/60_000%100, n/250%240, n%250+1)
				if err := replaceFile(serviceFile(b.path("config"), i), serviceEntry(i, address)); err != nil {
					return err
				}
				written.Add(1)
			}
			return nil
		})
	}
	return all.Wait()
}
