// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	t.Parallel()
	inf := math.Inf(1)
	for _, c := range []struct {
		q       float64
		buckets map[float64]float64
		want    float64
		none    bool
	}{
		{q: 0.5, none: true},
		{q: 0.5, buckets: map[float64]float64{inf: 4}, none: true},                     // no bound
		{q: 0.5, buckets: map[float64]float64{1: 4, 5: 4}, none: true},                 // no last bucket
		{q: 0.5, buckets: map[float64]float64{1: 0, inf: 0}, none: true},               // no numbers
		{q: 0.5, buckets: map[float64]float64{1: 4, inf: 4}, want: 0.5},                // from 0 in the first bucket
		{q: 0.5, buckets: map[float64]float64{1: 2, 5: 10, inf: 10}, want: 2.5},        // 3 of 8 in the second
		{q: 0.99, buckets: map[float64]float64{1: 2, 5: 10, inf: 20}, want: 5},         // beyond the last bound
		{q: 0.95, buckets: map[float64]float64{10: 0, 25: 100, inf: 100}, want: 24.25}, // an empty bucket before
		{q: 0.5, buckets: map[float64]float64{1: 4, 2: 3, 5: 8, inf: 8}, want: 1},      // other proxies do not have this bucket
		{q: 0.5, buckets: map[float64]float64{0: 4, 1: 4, inf: 4}, want: 0},
	} {
		if got, ok := quantile(c.q, c.buckets); ok == c.none || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("quantile(%v, %v) = %v, %t; want %v", c.q, c.buckets, got, ok, c.want)
		}
	}
}

// newSamples parses a page.
func newSamples(page io.Reader, most int) (*samples, error) {
	s := &samples{at: time.Now(), by: map[uint64]sample{}, edges: map[edge]*edge{}, most: most}
	return s, s.read(page)
}

// TestSamplesAreBounded parses pages of a hostile proxy.
func TestSamplesAreBounded(t *testing.T) {
	t.Parallel()
	series := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "istio_requests_total{reporter=\"destination\",source_workload=\"w%d\"} %d\n", i, i)
		}
		return b.String()
	}
	long := "istio_requests_total{a=\"" + strings.Repeat("x", 2*maxLine) + "\"} 1\n"
	for name, c := range map[string]struct {
		page io.Reader
		kept int
		cut  bool
		err  string
	}{
		"more series than are kept": {page: strings.NewReader(series(10_000)), kept: 1000, cut: true},
		"a page without an end":     {page: io.MultiReader(strings.NewReader(series(3)), endless("envoy_x 1\n")), kept: 3, err: "more than 67108864 bytes"},
		"an endless line":           {page: io.MultiReader(strings.NewReader(series(3)+"istio_requests_total{"), endless("x")), kept: 3, err: "more than"},
		"a long line":               {page: strings.NewReader(long + series(2) + long + series(3)), kept: 3},
		"a line without an end":     {page: strings.NewReader(strings.TrimSuffix(series(2), "\n")), kept: 2},
		"no number":                 {page: strings.NewReader("istio_requests_total{a=\"b\"} x\n"), err: "x"},
		"no labels":                 {page: strings.NewReader("istio_requests_total 5\nistio_requests_total{} 5\n"), kept: 1},
		"no value": {page: strings.NewReader("istio_requests_total{a=\"1\"} NaN\nistio_requests_total{a=\"2\"} -1\nistio_requests_total{a=\"3\"} +Inf\n" +
			"istio_request_duration_milliseconds_bucket{a=\"b\"} 1\nistio_request_duration_milliseconds_bucket{le=\"NaN\"} 1\n" +
			"istio_requests_total{a=\"4\"} 1e300\nistio_request_duration_milliseconds_bucket{le=\"-Inf\"} 1\nistio_request_duration_milliseconds_bucket{le=\"1e308\"} 1\n")},
		"nothing":        {page: strings.NewReader("")},
		"other metrics":  {page: strings.NewReader("# TYPE istio_requests_total counter\nistio_requests_totals{a=\"b\"} 1\nup 1\n")},
		"escaped labels": {page: strings.NewReader("istio_requests_total{source_workload=\"a\\\"}\\n\x1b[31mb\"} 1\n"), kept: 1},
	} {
		s, err := newSamples(c.page, 1000)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: got error %v, want %q", name, err, c.err)
		}
		if len(s.by) != c.kept || s.cut != c.cut {
			t.Errorf("%s: got %d samples, cut %t; want %d, %t", name, len(s.by), s.cut, c.kept, c.cut)
		}
		for e := range s.edges {
			if strings.ContainsAny(e.from, "\x1b\n") {
				t.Errorf("%s: the name %q has control characters", name, e.from)
			}
		}
	}
	s, err := newSamples(strings.NewReader("istio_requests_total{source_workload=\""+strings.Repeat("x", 1000)+"\"} 1\n"), 10)
	for e := range s.edges {
		if err != nil || len(e.from) > maxLabel {
			t.Errorf("a label of %d bytes was kept (error %v)", len(e.from), err)
		}
	}
}

// endless is a reader that repeats a text indefinitely.
type endless string

func (e endless) Read(p []byte) (n int, err error) {
	for n+len(e) <= len(p) {
		n += copy(p[n:], e)
	}
	return max(n, copy(p[n:], e)), nil
}

func FuzzSamples(f *testing.F) {
	f.Add("istio_requests_total{reporter=\"source\",response_code=\"200\"} 3\nistio_request_duration_milliseconds_bucket{le=\"+Inf\"} 3\n")
	f.Fuzz(func(t *testing.T, page string) {
		s, err := newSamples(strings.NewReader(page), 10)
		if err == nil && len(s.by) > 10 {
			t.Errorf("%d samples, want at most 10", len(s.by))
		}
	})
}
