// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package prober

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outrigger-mesh/outrigger/status"
)

// accepts are the Accept headers of scrapers: each format, and the defaults of Prometheus, without
// and with native histograms.
var accepts = map[string]string{
	"text":        "text/plain;version=0.0.4",
	"openmetrics": "application/openmetrics-text;version=1.0.0",
	"old":         "application/openmetrics-text;version=0.0.1",
	"protobuf":    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	"prometheus":  "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
	"native": "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7," +
		"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
	"anything": "*/*",
}

const odd = "a \"quoted\" \\ back\nnew line, {brace} # hash é"

// everything has a metric of each kind, with values that are hard to encode.
func everything() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	help := "Help with \\ and \"quotes\"\nand a line."
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "all_requests_total", Help: help}, []string{"path"})
	bare := prometheus.NewCounter(prometheus.CounterOpts{Name: "all_bare", Help: "A counter whose name does not say so."})
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "all_gauge", Help: help}, []string{"value"})
	summary := prometheus.NewSummary(prometheus.SummaryOpts{Name: "all_summary", Objectives: map[float64]float64{0.5: 0.1, 0.99: 0.01}})
	classic := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "all_classic_seconds", Buckets: []float64{0.5, 1, 10}}, []string{"code"})
	native := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "all_native_seconds", NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 20})
	both := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "all_both_seconds", NativeHistogramBucketFactor: 1.1, Buckets: []float64{1, 2}})
	strange := prometheus.NewGauge(prometheus.GaugeOpts{Name: "all.dotted name", Help: "A name that is not only letters."})
	reg.MustRegister(counter, bare, gauge, summary, classic, native, both, strange, timed{})
	counter.WithLabelValues(odd).Add(5)
	counter.WithLabelValues("").(prometheus.ExemplarAdder).AddWithExemplar(1e18, prometheus.Labels{"trace_id": "1"})
	bare.Add(2)
	for name, value := range map[string]float64{"nan": math.NaN(), "inf": math.Inf(1), "-inf": math.Inf(-1), "small": 5e-324, "large": math.MaxFloat64, "zero": 0, "-1": -1} {
		gauge.WithLabelValues(name).Set(value)
	}
	for i := range 100 {
		value := float64(i) / 7
		summary.Observe(value)
		classic.WithLabelValues("200").(prometheus.ExemplarObserver).ObserveWithExemplar(value, prometheus.Labels{"trace_id": odd[:1]})
		native.Observe(value - 3)
		both.Observe(value)
	}
	return reg
}

// timed has a timestamp.
type timed struct{}

func (timed) Describe(ch chan<- *prometheus.Desc) {
	ch <- prometheus.NewDesc("all_timed", "Has a time.", nil, nil)
}

func (timed) Collect(ch chan<- prometheus.Metric) {
	desc := prometheus.NewDesc("all_timed", "Has a time.", nil, nil)
	ch <- prometheus.NewMetricWithTimestamp(time.UnixMilli(1_700_000_000_123), prometheus.MustNewConstMetric(desc, prometheus.UntypedValue, 7))
}

const plainMetrics = `# HELP plain_requests_total With "quotes" and \\ back.
# TYPE plain_requests_total counter
plain_requests_total{path="/a b",code="200",}  5 1700000000123
plain_requests_total{path="}{ # \" x"} 1

# a remark
# TYPE plain_counter counter
plain_counter{} 3
# TYPE plain_took histogram
plain_took_bucket{le="1"} 1
plain_took_bucket{le="+Inf"} 2
plain_took_sum 3.5
plain_took_count 2
# TYPE plain_summary summary
plain_summary{quantile="0.5"} 1
plain_summary_sum 3
plain_summary_count 2
plain_untyped NaN
plain_negative -Inf
# TYPE plain_empty gauge
`

const openMetrics = `# TYPE om_requests counter
# UNIT om_requests requests
# HELP om_requests All \"requests\".
om_requests_total{path="/"} 5 1700000000.123 # {trace_id="1"} 1 1700000000.5
om_requests_created{path="/"} 1700000000
# TYPE om_build info
om_build_info{version="1"} 1
# TYPE om_state stateset
om_state{om_state="on"} 1
om_state{om_state="off"} 0
# TYPE om_took histogram
om_took_bucket{le="1.0"} 1 # {trace_id="2"} 0.5
om_took_bucket{le="+Inf"} 2
om_took_sum 3.5
om_took_count 2
# TYPE om_what unknown
om_what 2
# EOF
`

// TestMetricsThroughTheMerge checks that Prometheus finds the same metrics through the merge as at
// the sources: each source alone, then all together.
func TestMetricsThroughTheMerge(t *testing.T) {
	t.Parallel()
	sources := map[string]http.Handler{
		"client":      promhttp.HandlerFor(everything(), promhttp.HandlerOpts{EnableOpenMetrics: true, EnableOpenMetricsTextCreatedSamples: true}),
		"text":        static("text/plain; version=0.0.4", plainMetrics),
		"openmetrics": static("application/openmetrics-text; version=1.0.0; charset=utf-8", openMetrics),
		"envoy":       still(startEnvoy(t, "127.77.62.22")),
	}
	at := map[string]status.AppScrape{}
	var all []status.AppScrape
	for _, name := range sortedKeys(sources) {
		at[name] = sourceOf(t, sources[name])
		if name != "envoy" {
			all = append(all, at[name])
		}
	}
	together := merging(t, at["envoy"].URL(), all...)
	for _, asks := range sortedKeys(accepts) {
		var union found
		for _, name := range sortedKeys(at) {
			straight := straightOf(t, at[name].URL(), accepts[asks])
			union.samples = append(union.samples, straight.samples...)
			body, contentType := scrapeOf(t, merging(t, "", at[name]), accepts[asks])
			through := parse(t, body, contentType)
			if len(straight.samples) < 5 {
				t.Errorf("%s asked for %s: only %d samples direct", name, asks, len(straight.samples))
			}
			if diff := cmp.Diff(straight.samples, through.samples); diff != "" {
				t.Errorf("%s asked for %s: samples (-direct +through):\n%s", name, asks, diff)
			}
			if straight.format != through.format {
				continue // the other format has fewer features
			}
			if diff := cmp.Diff(straight.types, through.types); diff != "" {
				t.Errorf("%s asked for %s: types (-direct +through):\n%s", name, asks, diff)
			}
			if diff := cmp.Diff(straight.exemplars, through.exemplars); diff != "" {
				t.Errorf("%s asked for %s: exemplars (-direct +through):\n%s", name, asks, diff)
			}
		}
		body, contentType := scrapeOf(t, together, accepts[asks])
		got := parse(t, body, contentType)
		slices.Sort(union.samples)
		if diff := cmp.Diff(union.samples, got.samples); diff != "" {
			t.Errorf("all, asked for %s (-direct +through):\n%s", asks, diff)
		}
		t.Logf("asked for %s: %d samples, %d exemplars, %s", asks, len(got.samples), len(got.exemplars), contentType)
	}
}

// straightOf returns what Prometheus finds at a source itself.
func straightOf(t *testing.T, url, accept string) found {
	t.Helper()
	body, contentType := scrapeOf(t, url, accept)
	return parse(t, body, contentType)
}

// TestNativeHistogramsThroughTheMerge checks that native histograms of a library and of Envoy are
// both forwarded, in protobuf.
func TestNativeHistogramsThroughTheMerge(t *testing.T) {
	t.Parallel()
	client := sourceOf(t, promhttp.HandlerFor(everything(), promhttp.HandlerOpts{}))
	envoy := sourceOf(t, still(startEnvoy(t, "127.77.62.23")))
	url := merging(t, envoy.URL(), client) + "?histogram_buckets=prometheusnative"
	body, contentType := scrapeOf(t, url, accepts["native"])
	through := parse(t, body, contentType)
	straight := slices.Concat(straightOf(t, client.URL(), accepts["native"]).samples, straightOf(t, envoy.URL()+"?histogram_buckets=prometheusnative", accepts["native"]).samples)
	slices.Sort(straight)
	if diff := cmp.Diff(straight, through.samples); diff != "" {
		t.Errorf("(-direct +through):\n%s", diff)
	}
	for _, series := range []string{`{__name__="all_native_seconds"}`, `{__name__="all_both_seconds"}`, `{__name__="envoy_http_downstream_rq_time", envoy_http_conn_manager_prefix="only"}`} {
		if !slices.ContainsFunc(through.samples, func(s string) bool { return strings.HasPrefix(s, series) && strings.Contains(s, " schema ") }) {
			t.Errorf("there is no native histogram %s", series)
		}
	}
}
