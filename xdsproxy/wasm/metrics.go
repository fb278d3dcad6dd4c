// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import "github.com/prometheus/client_golang/prometheus"

// Results of a download, used as label values.
const (
	fetched          = "success"
	downloadFailure  = "download_failure"
	manifestFailure  = "manifest_failure"
	checksumMismatch = "checksum_mismatched"
	fetchFailure     = "fetch_failure"
)

// Results of a conversion, used as label values.
const (
	converted             = "success"
	noRemoteLoad          = "no_remote_load"
	marshalFailure        = "marshal_failure"
	unmarshalFailure      = "unmarshal_failure"
	conversionFetch       = "fetch_failure"
	missRemoteFetchHint   = "miss_remote_fetch_hint"
	durationBuckets       = 15 // 1, 2, 4 ... 16384 ms
	millisecondsPerSecond = 1000
)

// metrics are the metrics of the cache. They have the same names as in Istio's agent, if it has an
// equivalent.
type metrics struct {
	entries     prometheus.Gauge
	bytes       prometheus.Gauge
	lookups     *prometheus.CounterVec
	fetches     *prometheus.CounterVec
	conversions *prometheus.CounterVec
	duration    prometheus.Histogram
	fallbacks   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		entries: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "istio_agent_wasm_cache_entries", Help: "Wasm modules in the cache.",
		}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_agent_wasm_cache_bytes", Help: "Bytes of the Wasm modules in the cache and of downloads in progress.",
		}),
		lookups:     counter("istio_agent_wasm_cache_lookup_count", "Lookups of Wasm modules in the cache.", "hit"),
		fetches:     counter("istio_agent_wasm_remote_fetch_count", "Wasm modules fetched, by result.", "result"),
		conversions: counter("istio_agent_wasm_config_conversion_count", "Extension configurations processed, by result.", "result"),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "istio_agent_wasm_config_conversion_duration",
			Help:    "Milliseconds that the conversion of one extension configuration took, with the download if there was one.",
			Buckets: prometheus.ExponentialBuckets(1, 2, durationBuckets),
		}),
		fallbacks: counter("outrigger_agent_wasm_fallback_total",
			"Extension configurations that could not be converted, by what Envoy received instead: kept, opened, denied or withheld.", "fallback"),
	}
	if reg != nil {
		reg.MustRegister(m.entries, m.bytes, m.lookups, m.fetches, m.conversions, m.duration, m.fallbacks)
	}
	return m
}
