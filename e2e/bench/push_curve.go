// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

// What a control plane may take besides the rows of push.
const (
	maxProxyMemory = 110e3 // of one more proxy whose like is served
	maxHugeMemory  = 2e9   // of 10,000 services, 1,000 proxies
	maxReturn      = 5.0   // seconds until all proxies are in sync after a restart
	maxGone        = 1.0   // seconds until 99 % of the proxies have lost an endpoint
)

// size is one point of the curve.
type size struct{ services, proxies int }

// parseSizes reads what --sizes says.
func parseSizes(text string) (sizes []size, err error) {
	for one := range strings.SplitSeq(text, ",") {
		var s size
		if _, err := fmt.Sscanf(one, "%dx%d", &s.services, &s.proxies); err != nil || s.services < 2 || s.proxies < 1 {
			return nil, fmt.Errorf("%q is no size: say services x proxies, such as 500x1000", one)
		}
		sizes = append(sizes, s)
	}
	return sizes, nil
}

// curveSizes are the points: more proxies of one mesh, larger meshes for the
// same proxies, and the largest mesh that there is a target for.
func (b *bench) curveSizes() []size {
	switch {
	case len(b.options.sizes) > 0:
		return b.options.sizes
	case b.short:
		return []size{{100, 30}, {100, 100}}
	}
	return []size{
		{500, 100},
		{500, 300},
		{500, 1000},
		{500, 3000},
		{100, 100},
		{1000, 100},
		{3000, 100},
		{10_000, 100},
		{10_000, 1000},
	}
}

// point is what was measured at one size.
type point struct {
	size
	first, endpoint change
	resident        float64
}

// pushCurve measures how cost grows, over delta: the first sync, one endpoint
// changed, and memory, at several sizes.
func (b *bench) pushCurve(ctx context.Context) (figures []figure, err error) {
	var points []point
	for _, s := range b.curveSizes() {
		p, failed := b.curvePoint(ctx, s)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%d services, %d proxies: %w", s.services, s.proxies, failed))
			b.say("pushcurve: %d services, %d proxies: %v", s.services, s.proxies, failed)
			continue
		}
		points = append(points, p)
		figures = append(figures, p.figures()...)
	}
	figures = append(figures, onMore(points)...)
	if b.svg != "" {
		err = errors.Join(err, writeCurves(b.svg, points))
	}
	return figures, err
}

// sized is the bench with a mesh of some size, in a directory of its own.
func (b *bench) sized(s size) (*bench, error) {
	sub := *b
	sub.services, sub.proxies = s.services, s.proxies
	sub.dir = b.path(fmt.Sprintf("mesh-%d-%d", s.services, s.proxies))
	return &sub, writeMesh(sub.path("config"), s.services)
}

func (b *bench) curvePoint(ctx context.Context, s size) (p point, err error) {
	sub, err := b.sized(s)
	if err != nil {
		return p, err
	}
	sub.rounds = 3
	l, _, err := sub.pushOurs(ctx, kind{delta: true})
	return point{size: s, first: l.first, endpoint: l.endpoint, resident: l.resident}, err
}

func (p point) figures() []figure {
	title := fmt.Sprintf("%d services, %d proxies: ", p.services, p.proxies)
	memory := figure{Name: title + "resident memory", Unit: megabytes, Ours: p.resident}
	if p.services == 10_000 && p.proxies == 1000 {
		memory.Target = maxHugeMemory
	}
	return []figure{
		{Name: title + "first sync", Unit: seconds, Ours: p.first.wall},
		{Name: title + "first sync, server CPU", Unit: seconds, Ours: p.first.cpu},
		{Name: title + "one endpoint, all have it", Unit: seconds, Ours: p.endpoint.wall},
		{Name: title + "one endpoint, server CPU", Unit: seconds, Ours: p.endpoint.cpu},
		memory,
	}
}

// onMore returns the memory of one more proxy: the growth between the two largest
// numbers of proxies of the mesh of which there are most points.
func onMore(points []point) []figure {
	byMesh := map[int][]point{}
	for _, p := range points {
		byMesh[p.services] = append(byMesh[p.services], p)
	}
	var most []point
	for _, of := range byMesh {
		if len(of) > len(most) {
			most = of
		}
	}
	if len(most) < 2 {
		return nil
	}
	slices.SortFunc(most, func(a, b point) int { return a.proxies - b.proxies })
	less, more := most[len(most)-2], most[len(most)-1]
	each := (more.resident - less.resident) / float64(more.proxies-less.proxies)
	return []figure{{
		Name: fmt.Sprintf("%d services: memory of one more proxy", more.services), Unit: kilobytes, Ours: each, Target: maxProxyMemory,
	}}
}

// restart ends the control plane, changes an endpoint and starts it again:
// until all proxies have the change, and what they are sent.
func (b *bench) restart(ctx context.Context) (figures []figure, err error) {
	sub, err := b.sized(size{500, b.proxies})
	if err != nil {
		return nil, err
	}
	c, err := sub.startControl(ctx, "load", "")
	if err != nil {
		return nil, err
	}
	defer func() { c.stop() }()
	subs, err := learn(ctx, controlHost+plaintext, kind{delta: true})
	if err != nil {
		return nil, err
	}
	if subs.back, err = subs.encodeReturn(); err != nil {
		return nil, err
	}
	p := startProxies(ctx, controlHost+plaintext, sub.proxies, subs)
	defer p.stop()
	if _, err := next(p, p.synced, time.Minute); err != nil {
		return nil, fmt.Errorf("restart: first sync: %w", err)
	}
	first := float64(p.bytes.Load())
	p.wanted.Store(&wanted{typeURL: typeEndpoint, marker: []byte("10.79.0.1")})
	c.stop()
	if err := writeFile(serviceFile(sub.path("config"), 1), serviceEntry(1, "10.79.0.1")); err != nil {
		return nil, err
	}
	p.bytes.Store(0)
	if c, err = sub.startControl(ctx, "load", ""); err != nil {
		return nil, err
	}
	ready := time.Now()
	last, err := next(p, p.seen, time.Minute)
	if err != nil {
		return nil, fmt.Errorf("restart: %w", err)
	}
	used, err := cpu(c.pid())
	if err != nil {
		return nil, err
	}
	title := fmt.Sprintf("restart, %d proxies: ", sub.proxies)
	again := float64(p.bytes.Load())
	b.say("restart: all in sync %.3f s after the control plane is ready, CPU %.3f s, %.3f MB of %.1f MB sent again",
		last.Sub(ready).Seconds(), used.Seconds(), again/1e6, first/1e6)
	return []figure{
		{Name: title + "all in sync after ready", Unit: seconds, Ours: last.Sub(ready).Seconds(), Target: maxReturn},
		{Name: title + "server CPU since its start", Unit: seconds, Ours: used.Seconds()},
		{Name: title + "bytes sent again", Unit: megabytes, Ours: again, Target: first / 100},
	}, nil
}

// churn changes a thousand endpoints a second, and looks, every second, how
// long 99 % of the proxies have an endpoint that is gone.
func (b *bench) churn(ctx context.Context) (figures []figure, err error) {
	const perSecond, rounds = 1000, 8
	sub, err := b.sized(size{500, b.proxies})
	if err != nil {
		return nil, err
	}
	c, err := sub.startControl(ctx, "load", "")
	if err != nil {
		return nil, err
	}
	defer c.stop()
	subs, err := learn(ctx, controlHost+plaintext, kind{delta: true})
	if err != nil {
		return nil, err
	}
	p := startProxies(ctx, controlHost+plaintext, sub.proxies, subs)
	defer p.stop()
	if _, err := next(p, p.synced, time.Minute); err != nil {
		return nil, fmt.Errorf("churn: first sync: %w", err)
	}
	began, before := time.Now(), p.bytes.Load()
	cpuBefore, err := cpu(c.pid())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var written atomic.Int64
	writing := make(chan error, 1)
	go func() { writing <- sub.write(ctx, perSecond, &written) }()
	var gone []float64
	for round := range rounds {
		// The address that stood there is gone where this one is.
		marker := fmt.Sprintf("10.80.0.%d", 100+round)
		p.wanted.Store(&wanted{typeURL: typeEndpoint, marker: []byte(marker)})
		changed := time.Now()
		if err := writeFile(serviceFile(sub.path("config"), 0), serviceEntry(0, marker)); err != nil {
			return nil, err
		}
		at, err := percentile(p, 99, 30*time.Second)
		if err != nil {
			return nil, fmt.Errorf("churn, round %d: %w", round+1, err)
		}
		gone = append(gone, at.Sub(changed).Seconds())
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	took := time.Since(began).Seconds()
	cancel()
	if err := <-writing; err != nil {
		return nil, err
	}
	cpuAfter, err := cpu(c.pid())
	if err != nil {
		return nil, err
	}
	worst := slices.Max(gone)
	m, err := median(gone)
	if err != nil {
		return nil, err
	}
	b.say("churn: %.0f changes a second, gone from 99 %% after %.3f s (worst %.3f s), %.1f MB/s pushed, %.2f cores",
		float64(written.Load())/took, m, worst, float64(p.bytes.Load()-before)/took/1e6, (cpuAfter-cpuBefore).Seconds()/took)
	if made := float64(written.Load()) / took; made < 0.8*perSecond {
		err = fmt.Errorf("churn: this machine made only %.0f changes a second", made)
	}
	title := fmt.Sprintf("%d endpoint changes a second, %d proxies: ", perSecond, sub.proxies)
	return []figure{
		{Name: title + "gone from 99 %, median", Unit: seconds, Ours: m, Target: maxGone},
		{Name: title + "gone from 99 %, worst round", Unit: seconds, Ours: worst},
	}, err
}

// write changes endpoints until ctx ends: in turn, one of each service but the
// first and at most three of the last. A change is an address that was not there before.
func (b *bench) write(ctx context.Context, perSecond int, written *atomic.Int64) error {
	const writers = 4 // one alone waits for the disk
	pace := rate.NewLimiter(rate.Limit(perSecond), perSecond/20)
	var all errgroup.Group
	for w := range writers {
		all.Go(func() error {
			own := (b.services - 1) / writers // no two write the same file
			for k := 0; pace.Wait(ctx) == nil; k++ {
				i, n := 1+w+writers*(k%own), w+writers*k
				address := fmt.Sprintf("10.%d.%d.%d", 90+n/60_000%100, n/250%240, n%250+1)
				if err := writeFile(serviceFile(b.path("config"), i), serviceEntry(i, address)); err != nil {
					return err
				}
				written.Add(1)
			}
			return nil
		})
	}
	return all.Wait()
}

// percentile waits until all proxies have what is wanted, and gives when the
// given part of them had it.
func percentile(p *proxies, part int, limit time.Duration) (time.Time, error) {
	timeout := time.After(limit)
	all := make([]time.Time, 0, cap(p.synced))
	for len(all) < cap(p.synced) {
		select {
		case at := <-p.seen:
			all = append(all, at)
		case <-p.done:
			return time.Time{}, p.cause()
		case <-timeout:
			return time.Time{}, fmt.Errorf("only %d of %d proxies got it within %s", len(all), cap(p.synced), limit)
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all[(len(all)*part-1)/100], nil
}

// writeCurves draws the points of the mesh with most of them over the number of
// proxies, and the others over that of services.
func writeCurves(file string, points []point) error {
	var byProxies, byServices []point
	for _, p := range points {
		if p.services == 500 {
			byProxies = append(byProxies, p)
		}
		if p.proxies == 100 {
			byServices = append(byServices, p)
		}
	}
	slices.SortFunc(byServices, func(a, b point) int { return a.services - b.services })
	proxies := func(p point) float64 { return float64(p.proxies) }
	services := func(p point) float64 { return float64(p.services) }
	var out strings.Builder
	out.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 560" font-family="sans-serif" font-size="12">` + "\n" +
		`<rect width="760" height="560" fill="white"/>` + "\n")
	// CPU, not time: it is less of the machine's other load.
	sync, memory := func(p point) float64 { return p.first.cpu }, func(p point) float64 { return p.resident / 1e6 }
	for i, g := range []graph{
		{"500 services: CPU of the first sync (s)", "proxies", byProxies, proxies, sync},
		{"500 services: resident memory (MB)", "proxies", byProxies, proxies, memory},
		{"100 proxies: CPU of the first sync (s)", "services", byServices, services, sync},
		{"100 proxies: resident memory (MB)", "services", byServices, services, memory},
	} {
		g.draw(&out, float64(i%2)*380, float64(i/2)*280)
	}
	out.WriteString("</svg>\n")
	return writeFile(file, out.String())
}
