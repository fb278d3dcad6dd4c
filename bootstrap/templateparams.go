// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"regexp"
	"strconv"

	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// templateMetadata is the node metadata as templates see it: the fields of node.Metadata, plus
// aliases for fields that have another name in Istio.
type templateMetadata struct {
	*node.Metadata
	ProxyConfig                                *meshv1alpha1.ProxyConfig
	InstanceName, IstioRevision, IstioProxySHA string
	PilotSubjectAltName                        []string
	StsPort, XDSRootCert                       string
}

// newerLimit matches the parameter of the limit on connections, which templates of Istio 1.30 use
// instead of a key of the runtime.
var newerLimit = regexp.MustCompile(`\{\{-?\s*\.global_downstream_max_connections\b`)

// templateParams returns the parameters of a template under their Istio names. Unset parameters are
// omitted, so that {{ if }} detects them.
func templateParams(in Input, text []byte) (map[string]any, error) {
	pc, m := in.ProxyConfig, in.Metadata
	if pc == nil || m == nil {
		return nil, errors.New("render bootstrap: the input has no ProxyConfig or no metadata")
	}
	addrs, err := addressesOf(in)
	if err != nil {
		return nil, err
	}
	metadata, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("render bootstrap: %w", err)
	}
	api := "DELTA_GRPC"
	if in.StateOfTheWorld && in.Node.Role != node.Waypoint {
		api = "GRPC"
	}
	discoveryHost, _, err := net.SplitHostPort(pc.GetDiscoveryAddress())
	if err != nil {
		discoveryHost = pc.GetDiscoveryAddress()
	}
	maxConnections, err := connectionLimit(in)
	if err != nil {
		return nil, err
	}
	layer := templateRuntime(in, maxConnections)
	if newerLimit.Match(text) {
		delete(layer, maxConnectionsKey) // Envoy would warn about it
	}
	manager, err := clusterManager(m)
	if err != nil {
		return nil, err
	}
	pilotSAN := []any{}
	for _, name := range m.PilotSAN {
		pilotSAN = append(pilotSAN, object{"exact": name})
	}
	p := params{
		values: map[string]any{
			"nodeID": in.Node.String(), "nodeType": in.Node.Role, "cluster": serviceCluster(pc, m),
			"meta_json_str": string(metadata), "metadata": metadataOf(in), "config": pc,
			"runtime_flags": asJSON(layer), "xds_type": api, "metadata_discovery": false,
			"pilot_SAN": asJSON(pilotSAN), "discovery_host": discoveryHost, "discovery_address": pc.GetDiscoveryAddress(), "xds_root_cert": in.XDSRootCert,
			"localhost": addrs.local, "wildcard": addrs.wildcard, "dns_lookup_family": addrs.dnsFamily,
			"envoy_status_port":             portOr(m.EnvoyStatusPort, DefaultStatusPort),
			"envoy_prometheus_port":         portOr(m.EnvoyPrometheusPort, DefaultPrometheusPort),
			"workload_identity_socket_file": in.sdsSocketName(), "global_downstream_max_connections": maxConnections,
		},
		in: in,
	}
	for name, value := range localityOf(in) {
		p.values[name] = value
	}
	p.text("outlier_log_path", m.OutlierLogPath)
	p.port("envoy_secure_metrics_port", in.Metrics.SecurePort)
	p.port("envoy_secure_merged_metrics_port", in.Metrics.SecureMergedPort)
	if in.Metrics.LocalOnly {
		p.values["metrics_localhost_access_only"] = true
	}
	p.text("gcp_project_number", m.PlatformMetadata["gcp_project_number"])
	if port, err := strconv.Atoi(m.STSPort); err == nil && port > 0 {
		p.values["sts"], p.values["sts_port"] = true, port
		p.text("gcp_project_id", m.PlatformMetadata["gcp_project"])
	}
	stats := statsOf(pc, m)
	p.list("extraStatTags", stats.tags)
	p.list("inclusionPrefix", stats.prefixes)
	p.list("inclusionSuffix", stats.suffixes)
	p.list("inclusionRegexps", stats.regexps)
	reporting, _ := reportingOf(m)
	if len(reporting.buckets) > 0 {
		p.values["histogram_buckets"] = reporting.buckets
	}
	if reporting.flush != 0 {
		p.values["stats_flush_interval"] = seconds(reporting.flush)
	}
	if reporting.eviction != 0 {
		p.values["stats_eviction_interval"] = seconds(reporting.eviction)
	}
	if config, ok := manager["load_stats_config"]; ok {
		p.values["load_stats_config_json_str"] = asJSON(config)
	}
	p.address("pilot_grpc_address", "discoveryAddress", pc.GetDiscoveryAddress())
	p.address("statsd", "statsdUdpAddress", pc.GetStatsdUdpAddress())
	p.tracing(pc.GetTracing())
	p.service("envoy_metrics_service", service(metricsCluster, "envoyMetricsService", MetricsService(pc)))
	p.service("envoy_accesslog_service", service(accessLogCluster, "envoyAccessLogService", pc.GetEnvoyAccessLogService()))
	return p.values, p.err
}

func metadataOf(in Input) *templateMetadata {
	m := in.Metadata
	return &templateMetadata{
		Metadata: m, ProxyConfig: in.ProxyConfig, InstanceName: m.Name, IstioRevision: m.Revision, IstioProxySHA: m.ProxySHA,
		PilotSubjectAltName: m.PilotSAN, StsPort: m.STSPort, XDSRootCert: in.XDSRootCert,
	}
}

// templateRuntime returns the runtime layer including the limit on connections, for which templates of
// Istio 1.18 have no other parameter.
func templateRuntime(in Input, maxConnections int64) object {
	layer := runtimeLayer(in)
	if value, ok := in.ProxyConfig.GetRuntimeValues()[maxConnectionsKey]; !ok || value != "" {
		layer[maxConnectionsKey] = strconv.FormatInt(maxConnections, 10)
	}
	return layer
}

// params collects parameters and keeps the first error.
type params struct {
	values map[string]any
	in     Input
	err    error
}

func (p *params) text(name, value string) {
	if value != "" {
		p.values[name] = value
	}
}

func (p *params) port(name string, port int) {
	if port != 0 {
		p.values[name] = port
	}
}

func (p *params) list(name string, values []string) {
	if len(values) > 0 {
		p.values[name] = values
	}
}

// address adds host:port as an Envoy address.
func (p *params) address(name, field, address string) {
	if address == "" || p.err != nil {
		return
	}
	host, port, err := splitAddress(field, address, p.in.HostIP)
	if p.err = err; err == nil {
		p.values[name] = `{"address": ` + asJSON(host) + `, "port_value": ` + strconv.Itoa(port) + `}`
	}
}

// socket adds the TLS settings of a server as its transport socket.
func (p *params) socket(name string, r remote) {
	if r.tls == nil || p.err != nil {
		return
	}
	r.systemRoots, r.certificates = p.in.SystemRoots, ownCertificates(p.in.Metadata)
	r.host, _, _ = net.SplitHostPort(r.address) // address reports the error
	socket, err := tlsSocket(r.tls, r)
	if p.err = err; err == nil && socket != nil {
		p.values[name] = asJSON(socket)
	}
}

func (p *params) service(name string, r remote) {
	if r.address == "" {
		return
	}
	p.address(name+"_address", r.field+".address", r.address)
	p.socket(name+"_tls", r)
	if r.keepalive == nil || p.err != nil {
		return
	}
	keepalive, err := tcpKeepalive(r)
	if p.err = err; err == nil {
		p.values[name+"_tcp_keepalive"] = asJSON(object{"tcp_keepalive": keepalive})
	}
}

// tracing adds the parameters of the tracer, including tracers that Envoy has removed: a template
// may use them for another purpose.
func (p *params) tracing(tracing *meshv1alpha1.Tracing) {
	r := remote{tls: tracing.GetTlsSettings(), tlsField: "tracing.tlsSettings", sni: "tracer"}
	switch t := tracing.GetTracer().(type) {
	case *meshv1alpha1.Tracing_Zipkin_:
		r.address = t.Zipkin.GetAddress()
		p.address("zipkin", "tracing.zipkin.address", r.address)
	case *meshv1alpha1.Tracing_Datadog_:
		r.address = t.Datadog.GetAddress()
		p.address("datadog", "tracing.datadog.address", r.address)
	case *meshv1alpha1.Tracing_Lightstep_:
		r.address, r.http2 = t.Lightstep.GetAddress(), true
		p.address("lightstep", "tracing.lightstep.address", r.address)
		p.values["lightstepToken"] = path.Join(p.in.ProxyConfig.GetConfigPath(), "lightstep_access_token.txt")
	case *meshv1alpha1.Tracing_OpenCensusAgent_:
		r.address = t.OpenCensusAgent.GetAddress()
		p.text("openCensusAgent", r.address)
		p.values["openCensusAgentContexts"] = asJSON(openCensusContexts(t.OpenCensusAgent.GetContext()))
	case *meshv1alpha1.Tracing_Stackdriver_:
		project := p.in.Metadata.PlatformMetadata["gcp_project"]
		if project == "" && p.err == nil {
			p.err = errors.New("ProxyConfig tracing.stackdriver is set, but the project of Google Cloud is unknown: the platform metadata has no gcp_project")
		}
		p.values["stackdriver"], p.values["stackdriverProjectID"], p.values["stackdriverDebug"] = true, project, t.Stackdriver.GetDebug()
		for name, most := range map[string]*wrapperspb.Int64Value{
			"stackdriverMaxAnnotations": t.Stackdriver.GetMaxNumberOfAnnotations(),
			"stackdriverMaxAttributes":  t.Stackdriver.GetMaxNumberOfAttributes(),
			"stackdriverMaxEvents":      t.Stackdriver.GetMaxNumberOfMessageEvents(),
		} {
			if p.values[name] = int64(200); most != nil {
				p.values[name] = most.GetValue()
			}
		}
	}
	p.socket("tracing_tls", r)
}

func openCensusContexts(contexts []meshv1alpha1.Tracing_OpenCensusAgent_TraceContext) []string {
	if len(contexts) == 0 {
		return []string{"TRACE_CONTEXT", "GRPC_TRACE_BIN", "CLOUD_TRACE_CONTEXT", "B3"}
	}
	names := []string{}
	for _, context := range contexts {
		switch context {
		case meshv1alpha1.Tracing_OpenCensusAgent_W3C_TRACE_CONTEXT:
			names = append(names, "TRACE_CONTEXT")
		case meshv1alpha1.Tracing_OpenCensusAgent_GRPC_BIN:
			names = append(names, "GRPC_TRACE_BIN")
		case meshv1alpha1.Tracing_OpenCensusAgent_UNSPECIFIED:
		default:
			names = append(names, context.String())
		}
	}
	return names
}

// asJSON renders a value that can always be marshalled.
func asJSON(v any) string {
	doc, err := json.Marshal(v)
	if err != nil {
		return "null"
	}
	return string(doc)
}
