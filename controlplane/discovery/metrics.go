// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import "github.com/prometheus/client_golang/prometheus"

// metrics are the server's. Names with pilot_ are those of Istio's control
// plane, which dashboards know.
type metrics struct {
	connected   prometheus.Gauge
	pushes      *prometheus.CounterVec
	bytes       *prometheus.CounterVec
	rejects     *prometheus.CounterVec
	staleNonces *prometheus.CounterVec
	canaries    *prometheus.CounterVec
	// refusedSecrets are by the labels of a refusal.
	refusedSecrets *prometheus.CounterVec
	convergence    prometheus.Histogram
	queued         prometheus.GaugeFunc
}

func newMetrics(reg prometheus.Registerer, queued func() float64) *metrics {
	byType := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
	}
	m := &metrics{
		connected:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "pilot_xds", Help: "Proxies that are connected."}),
		pushes:      byType("pilot_xds_pushes", "Responses sent, by type."),
		bytes:       byType("outrigger_control_xds_sent_bytes_total", "Bytes of the responses sent, by type."),
		rejects:     byType("pilot_total_xds_rejects", "Responses that a proxy rejected, by type."),
		staleNonces: byType("pilot_xds_expired_nonce", "Requests that answered an older response than the last one, by type."),
		canaries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_canary_pushes", Help: "Changes that one proxy tried for others, by result.",
		}, []string{"result"}),
		refusedSecrets: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_sds_refused_total", Help: "Secrets that a proxy asked for and did not get, by reason.",
		}, []string{"reason"}),
		convergence: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pilot_proxy_convergence_time",
			Help:    "Seconds from the start of a push until a proxy was sent all that changed for it.",
			Buckets: []float64{.01, .05, .1, .2, .5, 1, 3, 5, 10, 20, 30},
		}),
		queued: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "outrigger_control_push_queue_length", Help: "Proxies that wait for a push.",
		}, queued),
	}
	if reg != nil {
		reg.MustRegister(m.connected, m.pushes, m.bytes, m.rejects, m.staleNonces, m.canaries, m.refusedSecrets, m.convergence, m.queued)
	}
	return m
}

// watchRejected shows how many resources a keeper holds back.
func (m *metrics) watchRejected(reg prometheus.Registerer, k *keeper) {
	if reg == nil {
		return
	}
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "outrigger_control_rejected_resources", Help: "Resources that a proxy rejected and that are held back from others.",
	}, func() float64 { return float64(len(k.rejected())) }))
}

// shortType gives the bounded metric label of a type URL.
func shortType(typeURL string) string {
	if short, ok := shortTypes[typeURL]; ok {
		return short
	}
	return "other"
}
