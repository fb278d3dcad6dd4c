// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// Bounds of the metrics of one proxy.
const (
	maxPage    = 64 << 20 // bytes
	maxLine    = 64 << 10 // bytes; longer lines are skipped
	maxChunk   = 200      // lines that are parsed at once
	maxLabel   = 253      // bytes of a label that is kept
	maxSamples = 30_000   // of one proxy
	allSamples = 3_000_000
	maxValue   = 1 << 64 // of a counter of Envoy; sums of all samples are finite
)

// kind is what a sample counts.
type kind uint8

const (
	counted kind = iota // requests
	took                // requests that took no longer than a number of milliseconds
	moved               // bytes of connections
)

// kinds returns the kinds by the names of Istio's metrics.
func kinds() map[string]kind {
	return map[string]kind{
		"istio_requests_total": counted, "istio_request_duration_milliseconds_bucket": took,
		"istio_tcp_sent_bytes_total": moved, "istio_tcp_received_bytes_total": moved,
	}
}

// edge is the way of requests, as a proxy reports it.
type edge struct {
	sent                bool // reported by the client's proxy
	from, fromNamespace string
	principal           string // the proven identity of the client
	to, toNamespace     string
}

// sample is the value of a counter.
type sample struct {
	edge   *edge
	kind   kind
	failed bool
	most   float64 // milliseconds, of a bucket
	value  float64
}

// samples are the values of one proxy at a time.
type samples struct {
	of    proxy
	at    time.Time
	by    map[uint64]sample // by a hash of name and labels
	edges map[edge]*edge
	most  int  // how many are kept
	cut   bool // there are more
}

// scrape reads the metrics of a proxy.
func (p proxy) scrape(ctx context.Context, most int, timeout time.Duration) (*samples, error) {
	resp, err := p.get(ctx, "/stats/prometheus", nil, timeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	s := &samples{of: p, at: time.Now(), by: map[uint64]sample{}, edges: map[edge]*edge{}, most: most}
	if err := s.read(resp.Body); err != nil {
		return nil, fmt.Errorf("read its metrics: %s", clip.Text(plain(err.Error()), maxErrText))
	}
	return s, nil
}

// read reads the samples of kinds. It skips other lines.
func (s *samples) read(page io.Reader) error {
	limited := &io.LimitedReader{R: page, N: maxPage}
	lines := bufio.NewReaderSize(limited, maxLine)
	var chunk bytes.Buffer
	n, all := 0, kinds()
	for skip := false; ; {
		line, err := lines.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !long && !errors.Is(err, io.EOF) {
			return err
		}
		name, _, labels := bytes.Cut(line, []byte("{"))
		if _, wanted := all[string(name)]; wanted && labels && !skip && !long {
			chunk.Write(line)
			n++
		}
		skip = long
		if end := err != nil && !long; end && line != nil && n > 0 && !bytes.HasSuffix(line, []byte("\n")) {
			chunk.WriteByte('\n')
		}
		if n == maxChunk || err != nil && !long {
			if err := s.parse(&chunk); err != nil {
				return err
			}
			chunk.Reset()
			n = 0
		}
		switch {
		case err != nil && !long && limited.N <= 0:
			return fmt.Errorf("they have more than %d bytes", maxPage)
		case err != nil && !long:
			return nil
		}
	}
}

// parse adds the samples of some lines. These have no types, so that each is a sample of its own.
func (s *samples) parse(lines io.Reader) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(lines)
	if err != nil {
		return err
	}
	for name, kind := range kinds() {
		for _, m := range families[name].GetMetric() {
			s.add(name, kind, m)
		}
	}
	return nil
}

func (s *samples) add(name string, kind kind, m *dto.Metric) {
	value := m.GetUntyped().GetValue()
	if !(value >= 0 && value <= maxValue) { // also NaN
		return
	}
	labels := m.GetLabel()
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	hash := xxhash.New()
	_, _ = hash.WriteString(name) // cannot fail
	of := make(map[string]string, len(labels))
	for _, l := range labels {
		_, _ = hash.WriteString("\xff" + l.GetName() + "\xff" + l.GetValue()) // cannot fail
		if v := l.GetValue(); v != "unknown" {
			of[l.GetName()] = strings.Clone(clip.Start(v, maxLabel)) // the rest is not kept
		}
	}
	key := hash.Sum64()
	if _, known := s.by[key]; !known && len(s.by) >= s.most {
		s.cut = true
		return
	}
	one := sample{edge: s.edge(of), kind: kind, failed: failed(of), value: value}
	if kind == took {
		var err error
		if one.most, err = strconv.ParseFloat(of["le"], 64); err != nil || !(one.most >= 0 && (one.most <= maxValue || math.IsInf(one.most, 1))) {
			return
		}
	}
	s.by[key] = one
}

// edge returns the edge of a sample. A client without a name has that of its service account, and a
// server without one that of its service.
func (s *samples) edge(of map[string]string) *edge {
	e := edge{
		sent: of["reporter"] == "source", from: of["source_workload"], fromNamespace: of["source_workload_namespace"], principal: of["source_principal"],
		to: of["destination_workload"], toNamespace: of["destination_workload_namespace"],
	}
	if e.from == "" {
		_, e.from, _ = strings.Cut(e.principal, "/sa/")
	}
	if e.to == "" {
		e.to, e.toNamespace = of["destination_service_name"], of["destination_service_namespace"]
	}
	e.from, e.to = cmp.Or(plain(e.from), "unknown"), cmp.Or(plain(e.to), "unknown")
	e.fromNamespace, e.toNamespace = plain(e.fromNamespace), plain(e.toNamespace)
	if e.sent {
		s.of.bind(&e.from, &e.fromNamespace)
	} else {
		s.of.bind(&e.to, &e.toNamespace)
	}
	known, ok := s.edges[e]
	if !ok {
		known = &e
		s.edges[e] = known
	}
	return known
}

// bind replaces what a proxy says about its own workload by what the control plane has proved: its
// namespace, and its service account unless the workload has the name of the account or is the
// beginning of the proxy's name, which the control plane knows.
func (p proxy) bind(workload, namespace *string) {
	_, path, ok := strings.Cut(p.identity, "/ns/")
	proven, account, has := strings.Cut(path, "/sa/")
	if !ok || !has {
		return
	}
	*namespace = plain(proven)
	own := strings.TrimSuffix(p.name, "."+p.namespace)
	if *workload != account && own != *workload && !strings.HasPrefix(own, *workload+"-") {
		*workload = plain(account)
	}
}

// failed reports whether requests have no response, status 5xx, or a status of gRPC that is the fault
// of the server: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE or DATA_LOSS.
func failed(of map[string]string) bool {
	code := of["response_code"]
	return code == "0" || len(code) == 3 && code[0] == '5' || slices.Contains([]string{"2", "4", "12", "13", "14", "15"}, of["grpc_response_status"])
}

// quantile returns a quantile of the numbers in buckets as histogram_quantile of Prometheus does: by
// linear interpolation in the bucket of the quantile. buckets are how many numbers are at most a
// bound, by the bound; the last bound is infinite. quantile returns false without numbers.
func quantile(q float64, buckets map[float64]float64) (float64, bool) {
	bounds := make([]float64, 0, len(buckets))
	for bound := range buckets {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	last := len(bounds) - 1
	if last < 1 || !math.IsInf(bounds[last], 1) || buckets[bounds[last]] <= 0 {
		return 0, false
	}
	counts := make([]float64, len(bounds))
	for i, bound := range bounds { // proxies may have different buckets
		if counts[i] = buckets[bound]; i > 0 {
			counts[i] = max(counts[i], counts[i-1])
		}
	}
	rank := q * counts[last]
	i := slices.IndexFunc(counts, func(n float64) bool { return n >= rank })
	switch {
	case i == last:
		return bounds[last-1], true
	case i == 0 && bounds[0] <= 0:
		return bounds[0], true
	}
	start, before := 0.0, 0.0
	if i > 0 {
		start, before = bounds[i-1], counts[i-1]
	}
	return start + (bounds[i]-start)*(rank-before)/(counts[i]-before), true
}
