// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// metrics are the metrics of the server. Names with pilot_ are those of Istio's
// control plane, which dashboards use.
type metrics struct {
	connected   prometheus.Gauge
	pushes      *prometheus.CounterVec
	bytes       sentBytes
	rejects     *prometheus.CounterVec
	staleNonces *prometheus.CounterVec
	unserved    prometheus.Counter
	panics      *prometheus.CounterVec
	internal    prometheus.Counter
	sending     *prometheus.HistogramVec
	convergence prometheus.Histogram
	waited      prometheus.Histogram
	queued      prometheus.GaugeFunc
}

func newMetrics(reg prometheus.Registerer, queued func() float64) *metrics {
	byType := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
	}
	m := &metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pilot_xds", Help: "Number of connected proxies."}),
		pushes:    byType("pilot_xds_pushes", "Responses sent, by type."),
		bytes: sentBytes{
			total: byType("outrigger_control_xds_sent_bytes_total", "Bytes of the responses sent, by type."),
			sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
				Name: "pilot_xds_config_size_bytes", Help: "Bytes of one response, by type.", Buckets: []float64{1, 1e4, 1e6, 4e6, 1e7, 4e7},
			}, []string{"type"}),
		},
		rejects:     byType("pilot_total_xds_rejects", "Responses that a proxy rejected, by type."),
		staleNonces: byType("pilot_xds_expired_nonce", "Requests that answered an older response than the last one, by type."),
		unserved: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outrigger_control_xds_unserved_requests_total", Help: "Requests for types that are not served. They are not answered.",
		}),
		panics: byType("outrigger_control_xds_panics_total", "Panics while generating the configuration of a proxy, by type; the type other means while serving its stream."),
		internal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pilot_total_xds_internal_errors", Help: "Errors of the control plane itself while serving proxies.",
		}),
		sending: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pilot_xds_push_time", Help: "Seconds to write and send a response, by type.", Buckets: []float64{.01, .1, 1, 3, 5, 10, 20, 30},
		}, []string{"type"}),
		convergence: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pilot_proxy_convergence_time",
			Help:    "Seconds from the start of a push until a proxy was sent all of its changes.",
			Buckets: []float64{.01, .05, .1, .2, .5, 1, 3, 5, 10, 20, 30},
		}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pilot_proxy_queue_time",
			Help:    "Seconds from the start of a push until a worker handles the proxy.",
			Buckets: []float64{.001, .01, .1, .5, 1, 3, 5, 10},
		}),
		queued: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "outrigger_control_push_queue_length", Help: "Number of proxies waiting for a push.",
		}, queued),
	}
	if reg != nil {
		reg.MustRegister(m.connected, m.pushes, m.bytes.total, m.bytes.sizes, m.rejects, m.staleNonces, m.unserved, m.panics, m.internal, m.sending, m.convergence, m.waited, m.queued)
	}
	return m
}

// sentBytes counts the bytes of responses: their sum, and the size of each.
type sentBytes struct {
	total *prometheus.CounterVec
	sizes *prometheus.HistogramVec
}

// WithLabelValues returns the metrics of a type.
func (b sentBytes) WithLabelValues(label string) sentBytesOf {
	return sentBytesOf{b.total.WithLabelValues(label), b.sizes.WithLabelValues(label)}
}

type sentBytesOf struct {
	total prometheus.Counter
	sizes prometheus.Observer
}

// Add records the size of a response in bytes.
func (b sentBytesOf) Add(size float64) {
	b.total.Add(size)
	b.sizes.Observe(size)
}

// watchMesh registers metrics about the newest snapshot and its rejections. Their
// values are computed when they are collected.
func (s *Server) watchMesh(reg prometheus.Registerer) {
	if reg == nil {
		return
	}
	gauge := func(name, help string, value func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	mesh := func(count func(*snapshot.Mesh) int) func() float64 {
		return func() float64 {
			if m := s.mesh.Load(); m != nil && m.Services != nil {
				return float64(count(m.Mesh))
			}
			return 0
		}
	}
	rejects := func(typeURL string) func() float64 {
		return func() float64 { return float64(s.rejecting(typeURL)) }
	}
	problemsOf := func(code model.ProblemCode) func() float64 {
		return mesh(func(m *snapshot.Mesh) int { return s.problemsOf(m, code) })
	}
	reg.MustRegister(
		gauge("pilot_services", "Services of the newest snapshot.", mesh(func(m *snapshot.Mesh) int { return len(m.Services.Sorted) })),
		gauge("pilot_virt_services", "VirtualServices of the newest snapshot that apply to sidecars.", mesh(func(m *snapshot.Mesh) int { return len(m.VirtualServices.All) })),
		gauge("pilot_eds_no_instances", "Services without an endpoint that accepts requests.", mesh(withoutEndpoints)),
		gauge("outrigger_control_snapshot_problems", "Conflicts between objects of the newest snapshot.", mesh(func(m *snapshot.Mesh) int { return model.CountProblems(m.Problems) })),
		gauge("pilot_conflict_outbound_listener_tcp_over_current_tcp", "Pairs of services whose connections proxies cannot distinguish. The older service receives them.", problemsOf(model.ConflictOutbound)),
		gauge("pilot_conflict_inbound_listener", "Ports of workloads with contradictory settings of services.", problemsOf(model.ConflictInbound)),
		gauge("pilot_vservice_dup_domain", "Hosts with more than one VirtualService.", problemsOf(model.DuplicateHost)),
		gauge("outrigger_control_deny_list_proxies_missing", "Connected proxies that have not acknowledged the newest deny list.", func() float64 {
			missing, _ := s.unacknowledged()
			return float64(len(missing))
		}),
		gauge("outrigger_control_deny_list_proxies_ignoring_serials", "Connected proxies that do not check denied serial numbers, while there are any: Envoy 1.36 and proxyless gRPC.", func() float64 { return float64(len(s.ignoring())) }),
		gauge("pilot_xds_cds_reject", "Proxies without the newest clusters because they, or others like them, rejected them.", rejects(xds.TypeCluster)),
		gauge("pilot_xds_eds_reject", "Proxies without the newest endpoints because they, or others like them, rejected them.", rejects(xds.TypeEndpoint)),
		gauge("pilot_xds_lds_reject", "Proxies without the newest listeners because they, or others like them, rejected them.", rejects(xds.TypeListener)),
		gauge("pilot_xds_rds_reject", "Proxies without the newest routes because they, or others like them, rejected them.", rejects(xds.TypeRoute)),
	)
}

// problemsOf returns the number of problems with a code: those of the snapshot, and
// those found while generating.
func (s *Server) problemsOf(m *snapshot.Mesh, code model.ProblemCode) (n int) {
	for _, p := range m.Problems {
		if p.Code == code {
			n++
		}
	}
	s.problems.each(s.oldest(), func(p model.Problem, _ time.Time) {
		if p.Code == code {
			n++
		}
	})
	return n
}

// rejecting returns the number of proxies that lack generated resources of a type,
// because they or others of their group rejected them.
func (s *Server) rejecting(typeURL string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if a := st.acks.of(typeURL); a.failing() || slices.ContainsFunc(st.withheld(), func(r Rejection) bool { return r.Type == shortType(typeURL) }) {
			n++
		}
	}
	return n
}

// withoutEndpoints returns the number of services without endpoints.
func withoutEndpoints(m *snapshot.Mesh) (n int) {
	for _, svc := range m.Services.Sorted {
		if m.Endpoints.Of(svc.ServiceKey) == nil && m.NamedEndpoints.Of(svc.ServiceKey) == nil {
			n++
		}
	}
	return n
}

// shortType returns the metric label of a type URL, one of a fixed set.
func shortType(typeURL string) string {
	if short, ok := shortTypes[typeURL]; ok {
		return short
	}
	return "other"
}
