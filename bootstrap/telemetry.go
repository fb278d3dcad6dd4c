// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// Clusters of the two telemetry services. Access log filters of the control plane refer to the
// second.
const (
	metricsCluster   = "envoy_metrics_service"
	accessLogCluster = "envoy_accesslog_service"
)

// hostIP is a placeholder for the address of the node.
const hostIP = "$(HOST_IP)"

// remote is a server to which Envoy sends telemetry.
type remote struct {
	// cluster is its name in Envoy; field and tlsField are the paths of its address and TLS
	// settings in the ProxyConfig.
	cluster, field, tlsField string
	address                  string
	tls                      *networkingv1alpha3.ClientTLSSettings
	keepalive                *networkingv1alpha3.ConnectionPoolSettings_TCPSettings_TcpKeepalive
	// sni is the default SNI for ISTIO_MUTUAL.
	sni     string
	http2   bool
	refresh string // DNS refresh interval; empty means Envoy's default

	host         string // host of address
	systemRoots  string
	certificates certificates
}

// telemetry is the part of the bootstrap for tracing, metrics and access logs.
type telemetry struct {
	clusters, sinks []any
	tracing         object // nil if none
}

func telemetryOf(in Input, dnsFamily string) (telemetry, error) {
	pc := in.ProxyConfig
	var t telemetry
	var remotes []remote
	tracer, provider, err := tracerOf(in)
	if err != nil {
		return t, err
	}
	if provider != nil {
		remotes = append(remotes, tracer)
		t.tracing = object{"http": provider}
	}
	if address := pc.GetStatsdUdpAddress(); address != "" {
		host, port, err := splitAddress("statsdUdpAddress", address, in.HostIP)
		if err != nil {
			return t, err
		}
		if net.ParseIP(host) == nil {
			return t, fmt.Errorf("ProxyConfig statsdUdpAddress is %q, its host must have been resolved to an IP address", address)
		}
		t.sinks = append(t.sinks, object{"name": "envoy.stat_sinks.statsd", "typed_config": object{
			"@type": "type.googleapis.com/envoy.config.metrics.v3.StatsdSink", "address": socketAddress(host, port),
		}})
	}
	if s := MetricsService(pc); s != nil {
		remotes = append(remotes, service(metricsCluster, "envoyMetricsService", s))
		t.sinks = append(t.sinks, object{"name": "envoy.stat_sinks.metrics_service", "typed_config": object{
			"@type":                 "type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig",
			"transport_api_version": "V3",
			"grpc_service":          object{"envoy_grpc": object{"cluster_name": metricsCluster}},
		}})
	}
	if s := pc.GetEnvoyAccessLogService(); s.GetAddress() != "" {
		remotes = append(remotes, service(accessLogCluster, "envoyAccessLogService", s))
	}
	for _, r := range remotes {
		r.systemRoots, r.certificates = in.SystemRoots, ownCertificates(in.Metadata)
		cluster, err := remoteCluster(r, in.HostIP, dnsFamily)
		if err != nil {
			return t, err
		}
		t.clusters = append(t.clusters, cluster)
	}
	return t, nil
}

// MetricsService returns the metrics service of a ProxyConfig from its current or its deprecated
// field, or nil if there is none.
func MetricsService(pc *meshv1alpha1.ProxyConfig) *meshv1alpha1.RemoteService {
	if s := pc.GetEnvoyMetricsService(); s.GetAddress() != "" {
		return s
	}
	//lint:ignore SA1019 users still set the deprecated field
	if address := pc.GetEnvoyMetricsServiceAddress(); address != "" {
		return &meshv1alpha1.RemoteService{Address: address}
	}
	return nil
}

func service(cluster, field string, s *meshv1alpha1.RemoteService) remote {
	return remote{
		cluster: cluster, field: field, tlsField: field + ".tlsSettings", address: s.GetAddress(), tls: s.GetTlsSettings(), keepalive: s.GetTcpKeepalive(),
		sni: cluster, http2: true,
	}
}

// remoteCluster returns a cluster whose address is resolved by DNS and refreshed according to the
// TTL of the record.
func remoteCluster(r remote, nodeIP, dnsFamily string) (object, error) {
	host, port, err := splitAddress(r.field+".address", r.address, nodeIP)
	if err != nil {
		return nil, err
	}
	r.host = host
	cluster := staticCluster(r.cluster, "1s", socketAddress(host, port), r.http2)
	dns := object{
		"@type":             "type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster",
		"respect_dns_ttl":   true,
		"dns_lookup_family": dnsFamily,
	}
	if r.refresh != "" {
		dns["dns_refresh_rate"] = r.refresh
	}
	delete(cluster, "type")
	// A telemetry server that is unreachable does not delay the start.
	cluster["wait_for_warm_on_init"] = false
	cluster["cluster_type"] = object{"name": "envoy.clusters.dns", "typed_config": dns}
	socket, err := tlsSocket(r.tls, r)
	if err != nil {
		return nil, err
	}
	if socket != nil {
		cluster["transport_socket"] = socket
	}
	if r.keepalive != nil {
		keepalive, err := tcpKeepalive(r)
		if err != nil {
			return nil, err
		}
		cluster["upstream_connection_options"] = object{"tcp_keepalive": keepalive}
	}
	return cluster, nil
}

func tcpKeepalive(r remote) (object, error) {
	keepalive := object{}
	if probes := r.keepalive.GetProbes(); probes > 0 {
		keepalive["keepalive_probes"] = probes
	}
	for name, d := range map[string]*durationpb.Duration{"time": r.keepalive.GetTime(), "interval": r.keepalive.GetInterval()} {
		if d == nil {
			continue
		}
		seconds := d.GetSeconds()
		if d.CheckValid() != nil || seconds < 1 || seconds > 1<<31-1 {
			return nil, fmt.Errorf("ProxyConfig %s.tcpKeepalive.%s is %s; it must be 1s or more", r.field, name, d.AsDuration())
		}
		keepalive["keepalive_"+name] = seconds
	}
	return keepalive, nil
}

// splitAddress parses host:port and replaces the host $(HOST_IP) with the node's address.
func splitAddress(field, address, nodeIP string) (string, int, error) {
	fail := func(err error) (string, int, error) {
		return "", 0, fmt.Errorf("ProxyConfig %s is %q: %w", field, address, err)
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return fail(errors.New("it must be host:port (an IPv6 address in brackets)"))
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return fail(fmt.Errorf("the port %q must be from 1 to 65535", text))
	}
	if host == hostIP {
		if net.ParseIP(nodeIP) == nil {
			return fail(fmt.Errorf("the environment variable HOST_IP is %q; it must be the IP address of the node", nodeIP))
		}
		host = nodeIP
	}
	return host, int(port), nil
}

// SplitAddress parses an address of the ProxyConfig like Render does.
func SplitAddress(field, address, nodeIP string) (host, port string, err error) {
	host, n, err := splitAddress(field, address, nodeIP)
	return host, strconv.Itoa(n), err
}
