// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// traffic is the traffic between two samples.
type traffic struct {
	Seconds   float64  `json:"seconds"`
	Proxies   int      `json:"proxies"` // that were sampled twice
	Workloads []flow   `json:"workloads"`
	Edges     []flow   `json:"edges"`
	Errors    []string `json:"errors,omitempty"`

	counting bool   // some proxy has counted requests since it started
	old      string // a proxy whose Envoy cannot count
}

// flow is the traffic to a workload, or of an edge.
type flow struct {
	Source               string   `json:"source,omitempty"` // of an edge
	SourceNamespace      string   `json:"source_namespace,omitempty"`
	Destination          string   `json:"destination"`
	DestinationNamespace string   `json:"destination_namespace,omitempty"`
	Requests             float64  `json:"requests"`
	Rate                 float64  `json:"requests_per_second"`
	Success              *float64 `json:"success_rate,omitempty"` // from 0 to 1
	P50                  *float64 `json:"p50_milliseconds,omitempty"`
	P95                  *float64 `json:"p95_milliseconds,omitempty"`
	P99                  *float64 `json:"p99_milliseconds,omitempty"`
	Bytes                float64  `json:"tcp_bytes_per_second"`

	failed  float64
	buckets map[float64]float64
}

// add adds the growth of a counter.
func (w *flow) add(s sample, grown, seconds float64) {
	switch s.kind {
	case counted:
		w.Requests += grown
		w.Rate += grown / seconds
		if s.failed {
			w.failed += grown
		}
	case took:
		w.buckets[s.most] += grown
	case moved:
		w.Bytes += grown / seconds
	}
}

// finish computes what is not a sum.
func (w *flow) finish() {
	if w.Requests > 0 {
		rate := 1 - w.failed/w.Requests
		w.Success = &rate
	}
	for q, to := range map[float64]**float64{0.5: &w.P50, 0.95: &w.P95, 0.99: &w.P99} {
		if v, ok := quantile(q, w.buckets); ok {
			*to = &v
		}
	}
}

// meter measures traffic by two samples of each proxy. It keeps the last one.
type meter struct {
	timeout time.Duration
	last    map[proxy]*samples
}

// measure samples proxies, and returns the traffic since their last samples. unseen are the other
// proxies of the mesh.
func (m *meter) measure(ctx context.Context, proxies, unseen []proxy) traffic {
	now, errs := make([]*samples, len(proxies)), make([]error, len(proxies))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, p := range proxies {
		g.Go(func() error {
			now[i], errs[i] = p.scrape(ctx, min(maxSamples, allSamples/len(proxies)), m.timeout)
			return nil
		})
	}
	_ = g.Wait() // each proxy has its own error
	var out traffic
	sum := summer{workloads: flows{}, sent: flows{}, received: flows{}, clients: map[string]bool{}}
	before, next := m.last, map[proxy]*samples{}
	for i, p := range proxies {
		name := p.name
		if p.agent != name {
			name += " at " + p.agent
		}
		last := before[p]
		if errs[i] != nil {
			out.Errors = append(out.Errors, fmt.Sprintf("proxy %s: %v", name, plain(errs[i].Error())))
			if last != nil {
				next[p] = last // it may answer again
			}
		} else if next[p] = now[i]; now[i].cut {
			out.Errors = append(out.Errors, fmt.Sprintf("proxy %s has more than %d samples of requests: the rest is left out", name, now[i].most))
		}
		if errs[i] != nil || last == nil {
			unseen = append(unseen[:len(unseen):len(unseen)], p)
			continue
		}
		out.Proxies++
		out.counting = out.counting || len(now[i].by) > 0
		if tooOld(p.envoy) {
			out.old = "proxy " + p.name + " runs Envoy " + p.envoy
		}
		out.Seconds = max(out.Seconds, sum.proxy(p.identity, last, now[i]))
	}
	for _, p := range unseen {
		sum.clients[p.identity] = false
	}
	m.last = next
	out.Workloads, out.Edges = sum.workloads.list(), sum.edges()
	return out
}

// tooOld reports whether an Envoy before 1.37 is known.
func tooOld(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	return major == "1" && err == nil && n < 37
}

// way is a key of flows.
type way struct{ from, fromNamespace, to, toNamespace, principal string }

type flows map[way]*flow

func (f flows) of(w way) *flow {
	one, ok := f[w]
	if !ok {
		one = &flow{Source: w.from, SourceNamespace: w.fromNamespace, Destination: w.to, DestinationNamespace: w.toNamespace, buckets: map[float64]float64{}}
		f[w] = one
	}
	return one
}

// list returns the flows in no order. Envoy shows latencies a while later than requests, so there may
// be some without requests: these are left out.
func (f flows) list() []flow {
	out := make([]flow, 0, len(f))
	for _, one := range f {
		if one.finish(); one.Requests > 0 || one.Bytes > 0 {
			out = append(out, *one)
		}
	}
	return out
}

// summer adds up the traffic of proxies.
type summer struct {
	workloads      flows           // as servers report it
	sent, received flows           // as clients report it, and servers
	clients        map[string]bool // identities, and whether all their proxies report what they send
}

// proxy adds the traffic of a proxy between two samples, and returns the seconds between them. An
// identity that is not empty is the proven one of the proxy, which does not report for others.
func (s *summer) proxy(identity string, last, now *samples) float64 {
	seconds := max(now.at.Sub(last.at).Seconds(), 1e-3)
	for e := range now.edges {
		if e.sent && e.principal != "" && (identity == "" || e.principal == clip.Start(identity, maxLabel)) {
			s.clients[e.principal] = true
		}
	}
	for key, one := range now.by {
		before, known := last.by[key]
		grown := one.value
		switch {
		case known && before.value <= one.value:
			grown -= before.value
		case known: // the counter began again, as the proxy did
		case last.cut: // it may be old
			continue
		}
		if grown == 0 {
			continue
		}
		e := one.edge
		w := way{e.from, e.fromNamespace, e.to, e.toNamespace, e.principal}
		if e.sent {
			w.principal = ""
			s.sent.of(w).add(one, grown, seconds)
			continue
		}
		s.received.of(w).add(one, grown, seconds)
		s.workloads.of(way{to: e.to, toNamespace: e.toNamespace}).add(one, grown, seconds)
	}
	return seconds
}

// edges returns what clients report, and what servers report of other clients.
func (s *summer) edges() []flow {
	for w, one := range s.received {
		if s.clients[w.principal] {
			continue // the client reports it
		}
		w.principal = ""
		to := s.sent.of(w)
		to.Requests, to.Rate, to.failed, to.Bytes = to.Requests+one.Requests, to.Rate+one.Rate, to.failed+one.failed, to.Bytes+one.Bytes
		for bound, n := range one.buckets {
			to.buckets[bound] += n
		}
	}
	return s.sent.list()
}

// sorters are the orders of flows by name. Flows that are equal are in the order of their names.
func sorters() map[string]func(a, b flow) int {
	value := func(p *float64, otherwise float64) float64 {
		if p == nil {
			return otherwise
		}
		return *p
	}
	return map[string]func(a, b flow) int{
		"rate":    func(a, b flow) int { return cmp.Compare(b.Rate, a.Rate) },
		"success": func(a, b flow) int { return cmp.Compare(value(a.Success, 2), value(b.Success, 2)) },
		"p99":     func(a, b flow) int { return cmp.Compare(value(b.P99, -1), value(a.P99, -1)) },
		"tcp":     func(a, b flow) int { return cmp.Compare(b.Bytes, a.Bytes) },
		"name":    func(flow, flow) int { return 0 },
	}
}

// sort sorts the flows by the name of an order.
func (t *traffic) sort(by string) {
	order := sorters()[by]
	for _, list := range [][]flow{t.Workloads, t.Edges} {
		slices.SortFunc(list, func(a, b flow) int {
			return cmp.Or(order(a, b), strings.Compare(a.Source+"\x00"+a.SourceNamespace, b.Source+"\x00"+b.SourceNamespace),
				strings.Compare(a.Destination, b.Destination), strings.Compare(a.DestinationNamespace, b.DestinationNamespace))
		})
	}
}
