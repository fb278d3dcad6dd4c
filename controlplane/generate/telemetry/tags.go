// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"maps"
	"slices"
	"strings"

	statsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/expression"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// The names of Istio's standard metrics.
const (
	requests        = "istio_requests_total"
	requestDuration = "istio_request_duration_milliseconds"
	requestBytes    = "istio_request_bytes"
	responseBytes   = "istio_response_bytes"
	opened          = "istio_tcp_connections_opened_total"
	closed          = "istio_tcp_connections_closed_total"
	sentBytes       = "istio_tcp_sent_bytes_total"
	receivedBytes   = "istio_tcp_received_bytes_total"
)

// shape is how a metric is counted.
type shape struct {
	stream bool // counts connections
	// value is what is added to a counter, 1 if it is empty, or recorded in a histogram.
	value string
	unit  statsv3.Config_Histogram_Unit // of a histogram
}

// shapes returns the standard metrics by name. Envoy counts a connection when it ends.
func shapes() map[string]shape {
	return map[string]shape{
		requests:        {},
		requestDuration: {value: "%DURATION%", unit: statsv3.Config_Histogram_Milliseconds},
		requestBytes:    {value: "%DOWNSTREAM_WIRE_BYTES_RECEIVED%", unit: statsv3.Config_Histogram_Bytes},
		responseBytes:   {value: "%DOWNSTREAM_WIRE_BYTES_SENT%", unit: statsv3.Config_Histogram_Bytes},
		opened:          {stream: true},
		closed:          {stream: true},
		sentBytes:       {stream: true, value: "%DOWNSTREAM_WIRE_BYTES_SENT%"},
		receivedBytes:   {stream: true, value: "%DOWNSTREAM_WIRE_BYTES_RECEIVED%"},
	}
}

// tag is a tag of a metric and the format of its value.
type tag struct{ name, format string }

// Values that filters keep for the loggers.
const (
	protocolState = "outrigger.protocol"
	peerState     = "outrigger.peer."
)

func self(variable string) string { return "%ENVIRONMENT(" + variable + ")%" }
func kept(key string) string      { return "%FILTER_STATE(" + key + ":PLAIN)%" }
func endpoint(key string) string {
	return "%UPSTREAM_METADATA(" + envoyconf.LabelsNamespace + ":" + key + ")%"
}

func service(key string) string {
	return "%CLUSTER_METADATA(" + envoyconf.LabelsNamespace + ":" + key + ")%"
}

// literal returns a format with a fixed value.
func literal(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// workloadTags returns the tags that describe one side of a request.
func workloadTags(side string, value func(key string) string, principal string) []tag {
	return []tag{
		{side + "_principal", principal}, // the agent reads the namespace from it, if that is empty
		{side + "_workload", value("workload")},
		{side + "_canonical_service", value("service")},
		{side + "_canonical_revision", value("revision")},
		{side + "_workload_namespace", value("namespace")},
		{side + "_app", value("app")},
		{side + "_version", value("version")},
		{side + "_cluster", value("cluster")},
	}
}

// ofSelf returns the format of a value of the workload itself.
func ofSelf(key string) string {
	return self(map[string]string{
		"workload": node.SelfWorkload, "service": node.SelfService, "revision": node.SelfRevision, "namespace": node.SelfNamespace,
		"app": node.SelfApp, "version": node.SelfVersion, "cluster": node.SelfCluster,
	}[key])
}

// sideTags returns the tags of both sides, and of the service between them.
func sideTags(to Chain) []tag {
	if to.Server == nil {
		return slices.Concat([]tag{{"reporter", "source"}},
			workloadTags("source", ofSelf, "%UPSTREAM_LOCAL_URI_SAN%"),
			workloadTags("destination", endpoint, "%UPSTREAM_PEER_URI_SAN%"),
			[]tag{
				{"destination_service", service(envoyconf.ServiceHostLabel)},
				{"destination_service_name", service(envoyconf.ServiceNameLabel)},
				{"destination_service_namespace", service(envoyconf.ServiceNamespaceLabel)},
			})
	}
	host, name, namespace := literal(to.Server.Host), literal(to.Server.Name), literal(to.Server.Namespace)
	if host == "" {
		host, name, namespace = ofSelf("service"), ofSelf("service"), ofSelf("namespace")
	}
	return slices.Concat([]tag{{"reporter", "destination"}},
		workloadTags("source", func(key string) string { return kept(peerState + key) }, "%DOWNSTREAM_PEER_URI_SAN%"),
		workloadTags("destination", ofSelf, "%DOWNSTREAM_LOCAL_URI_SAN%"),
		[]tag{{"destination_service", host}, {"destination_service_name", name}, {"destination_service_namespace", namespace}})
}

// tagsOf returns the standard tags of requests, or of connections.
func tagsOf(to Chain, stream bool) []tag {
	security := node.Unknown
	switch {
	case to.Server != nil && to.Server.MutualTLS:
		security = "mutual_tls"
	case to.Server != nil:
		security = "none"
	}
	out := sideTags(to)
	if stream {
		return append(out, tag{"request_protocol", "tcp"}, tag{"response_flags", "%RESPONSE_FLAGS%"}, tag{"connection_security_policy", security})
	}
	return append(out, tag{"request_protocol", kept(protocolState)}, tag{"response_code", "%RESPONSE_CODE%"}, tag{"grpc_response_status", "%GRPC_STATUS_NUMBER%"},
		tag{"response_flags", "%RESPONSE_FLAGS%"}, tag{"connection_security_policy", security})
}

// change applies the changes of tags. Tags without a standard one come last, sorted by name.
func change(tags []tag, changes map[string]string) []tag {
	out := make([]tag, 0, len(tags)+len(changes))
	standard := make(map[string]bool, len(tags))
	for _, t := range tags {
		standard[t.name] = true
		text, changed := changes[t.name]
		if changed && text == "" {
			continue // removed
		}
		if format, err := expression.Format(text); changed && err == nil {
			t.format = format
		}
		out = append(out, t)
	}
	lost := losers(changes)
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if _, ok := lost[name]; ok {
			continue
		}
		if format, err := expression.Format(changes[name]); !standard[name] && changes[name] != "" && err == nil {
			out = append(out, tag{name, format})
		}
	}
	return out
}

// label returns the name of the label that Envoy makes of a tag in metrics for Prometheus.
func label(tag string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, tag)
}

// losers returns why tags without a standard one are left out, by their names: their labels would be
// illegal, or those of another tag. The first name counts.
func losers(changes map[string]string) map[string]string {
	if len(changes) == 0 {
		return nil
	}
	winners := map[string]string{}
	for _, stream := range []bool{false, true} {
		for _, t := range tagsOf(Chain{}, stream) {
			winners[t.name] = t.name
		}
	}
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		l := label(name)
		switch winner, taken := winners[l]; {
		case l == "":
			out[name] = "its name is empty"
		case changes[name] == "" || winner == name:
		case l == "le" || l == "quantile" || strings.HasPrefix(l, "__") || l[:1] >= "0" && l[:1] <= "9":
			out[name] = "Prometheus reserves its label " + l
		case taken:
			out[name] = "its label " + l + " is that of the tag " + winner
		default:
			winners[l] = name
		}
	}
	return out
}
