// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/expression"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// metrics are the metrics of one direction, in one form for equal results.
type metrics struct {
	// on is false if no request is counted.
	on bool
	// overrides are the changes of single metrics by the name that Prometheus shows.
	overrides map[string]override
}

// override are the changes of one metric.
type override struct {
	disabled bool
	// tags are expressions by the name of a tag; an empty one removes the tag.
	tags map[string]string
}

// names are the metrics by the values of the API.
func names() map[telemetryv1alpha1.MetricSelector_IstioMetric]string {
	return map[telemetryv1alpha1.MetricSelector_IstioMetric]string{
		telemetryv1alpha1.MetricSelector_REQUEST_COUNT:          requests,
		telemetryv1alpha1.MetricSelector_REQUEST_DURATION:       requestDuration,
		telemetryv1alpha1.MetricSelector_REQUEST_SIZE:           requestBytes,
		telemetryv1alpha1.MetricSelector_RESPONSE_SIZE:          responseBytes,
		telemetryv1alpha1.MetricSelector_TCP_OPENED_CONNECTIONS: opened,
		telemetryv1alpha1.MetricSelector_TCP_CLOSED_CONNECTIONS: closed,
		telemetryv1alpha1.MetricSelector_TCP_SENT_BYTES:         sentBytes,
		telemetryv1alpha1.MetricSelector_TCP_RECEIVED_BYTES:     receivedBytes,
	}
}

// metricsOf merges the objects of a workload, in the order of their levels. A level without
// providers has those of the level before, the first one those of the mesh; those of the last one
// are in force. Later overrides of a metric take precedence, field by field and tag by tag. An Envoy
// that cannot limit the number of series has no tags whose values clients choose.
func metricsOf(mesh *meshv1alpha1.MeshConfig, levels []*snapshot.Telemetry, envoy support) (client, server metrics) {
	var list []*telemetryv1alpha1.Metrics
	for _, level := range levels {
		list = append(list, level.Spec.GetMetrics()...)
	}
	providers, counts := mesh.GetDefaultProviders().GetMetrics(), false
	selects := func() bool {
		return slices.ContainsFunc(providers, func(name string) bool { return countsRequests(mesh, name) })
	}
	counts = selects()
	for _, m := range list {
		if len(m.GetProviders()) > 0 {
			providers = nil
			for _, p := range m.GetProviders() {
				providers = append(providers, p.GetName())
			}
		}
		if counts = selects(); !counts {
			continue
		}
		for _, o := range m.GetOverrides() {
			ofClient, ofServer := modes(o.GetMatch().GetMode())
			if ofClient {
				client.apply(o, envoy)
			}
			if ofServer {
				server.apply(o, envoy)
			}
		}
	}
	client.on, server.on = counts, counts
	return client.normal(), server.normal()
}

// apply applies an override.
func (m *metrics) apply(o *telemetryv1alpha1.MetricsOverrides, envoy support) {
	if m.overrides == nil {
		m.overrides = map[string]override{}
	}
	var matched []string
	switch by := o.GetMatch().GetMetricMatch().(type) {
	case *telemetryv1alpha1.MetricSelector_CustomMetric:
		matched = []string{"istio_" + strings.TrimPrefix(by.CustomMetric, "istio_")} // Istio's own name has no prefix
	default:
		if name, ok := names()[o.GetMatch().GetMetric()]; ok {
			matched = []string{name}
		} else if o.GetMatch().GetMetric() == telemetryv1alpha1.MetricSelector_ALL_METRICS {
			matched = slices.Sorted(maps.Values(names()))
		}
	}
	for _, name := range matched {
		was := m.overrides[name]
		next := override{disabled: was.disabled, tags: maps.Clone(was.tags)}
		if o.GetDisabled() != nil {
			next.disabled = o.GetDisabled().GetValue()
		}
		for tag, change := range o.GetTagOverrides() {
			if envoy != bounded && !limited(change) {
				continue
			}
			if next.tags == nil {
				next.tags = map[string]string{}
			}
			next.tags[tag] = change.GetValue()
			if change.GetOperation() == telemetryv1alpha1.MetricsOverrides_TagOverride_REMOVE {
				next.tags[tag] = ""
			}
		}
		m.overrides[name] = next
	}
}

// limited reports whether the number of values of a tag is limited whatever clients send.
func limited(change *telemetryv1alpha1.MetricsOverrides_TagOverride) bool {
	return change.GetValue() == "" || expression.Bounded(change.GetValue())
}

// unlimited returns a problem for each tag that an Envoy without a limit of series leaves out.
func unlimited(level *snapshot.Telemetry) (out []model.Problem) {
	for i, m := range level.Spec.GetMetrics() {
		for j, o := range m.GetOverrides() {
			for tag, change := range field.Sorted(o.GetTagOverrides()) {
				if limited(change) {
					continue
				}
				out = append(out, model.Problem{
					Object: level.Config.Key, Source: level.Config.Source, Warning: true,
					Reason: fmt.Sprintf("spec.metrics[%d].overrides[%d].tagOverrides[%s].value is %s: proxies with an Envoy before 1.39 leave out the tag, because they cannot limit how many values clients choose: update Envoy",
						i, j, tag, field.Quote(change.GetValue())),
				})
			}
		}
	}
	return out
}

// clashes returns a problem for each tag of an object that is left out because of its label.
func (e *Effective) clashes(level *snapshot.Telemetry) (out []model.Problem) {
	lost := map[string]string{}
	for _, m := range []metrics{e.client, e.server} {
		for _, o := range m.overrides {
			maps.Copy(lost, losers(o.tags))
		}
	}
	for i, m := range level.Spec.GetMetrics() {
		for j, o := range m.GetOverrides() {
			for tag := range field.Sorted(o.GetTagOverrides()) {
				if why, ok := lost[tag]; ok {
					out = append(out, model.Problem{
						Object: level.Config.Key, Source: level.Config.Source, Warning: true,
						Reason: fmt.Sprintf("spec.metrics[%d].overrides[%d].tagOverrides[%s] has no effect, because %s: choose another name", i, j, tag, why),
					})
				}
			}
		}
	}
	return out
}

// normal returns the metrics in the form that equal ones share.
func (m metrics) normal() metrics {
	if !m.on {
		return metrics{}
	}
	maps.DeleteFunc(m.overrides, func(name string, o override) bool {
		_, standard := shapes()[name]
		return !standard || !o.disabled && len(o.tags) == 0
	})
	if !slices.ContainsFunc(slices.Collect(maps.Keys(shapes())), func(name string) bool { return !m.overrides[name].disabled }) {
		return metrics{}
	}
	return m
}

// key returns a text that differs between metrics with different loggers.
func (m metrics) key() string {
	if !m.on {
		return "-"
	}
	var b strings.Builder
	b.WriteString("+")
	for _, name := range slices.Sorted(maps.Keys(m.overrides)) {
		o := m.overrides[name]
		b.WriteString(name + strconv.FormatBool(o.disabled))
		for _, tag := range slices.Sorted(maps.Keys(o.tags)) {
			b.WriteString(strconv.Quote(tag) + "=" + strconv.Quote(o.tags[tag]))
		}
	}
	return b.String()
}
