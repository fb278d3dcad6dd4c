// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
)

// Envoy has removed the OpenCensus, Stackdriver and Lightstep tracers. The replacement is an
// OpenTelemetry provider in the mesh config.
const openTelemetryAdvice = "send spans to an OpenTelemetry collector instead: set tracing.openCensusAgent.address to its OTLP gRPC port " +
	"(usually 4317), or name an opentelemetry provider in extensionProviders of the mesh config"

// tracerOf returns the server that receives spans and the tracer that the HTTP filters use by
// default. A nil provider means no tracing. The control plane can override the tracer and sets the
// sampling rate and the tags.
func tracerOf(in Input) (remote, object, error) {
	tracing := in.ProxyConfig.GetTracing()
	if !in.TracingSet && proto.Equal(tracing, meshconfig.DefaultProxyConfig().GetTracing()) {
		return remote{}, nil, nil
	}
	r := remote{tls: tracing.GetTlsSettings(), tlsField: "tracing.tlsSettings", sni: "tracer"}
	name := serviceCluster(in.ProxyConfig, in.Metadata)
	switch t := tracing.GetTracer().(type) {
	case nil:
		return r, nil, nil
	case *meshv1alpha1.Tracing_Zipkin_:
		r.cluster, r.field, r.address, r.refresh = "zipkin", "tracing.zipkin", t.Zipkin.GetAddress(), "30s"
		return r, provider("zipkin", object{
			"@type":                      "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
			"collector_cluster":          r.cluster,
			"collector_endpoint":         "/api/v2/spans",
			"collector_endpoint_version": "HTTP_JSON",
			"trace_id_128bit":            true,
			"shared_span_context":        false,
		}), nil
	case *meshv1alpha1.Tracing_Datadog_:
		r.cluster, r.field, r.address = "datadog_agent", "tracing.datadog", t.Datadog.GetAddress()
		return r, provider("datadog", object{
			"@type":             "type.googleapis.com/envoy.config.trace.v3.DatadogConfig",
			"collector_cluster": r.cluster,
			"service_name":      name,
		}), nil
	case *meshv1alpha1.Tracing_OpenCensusAgent_:
		address, err := grpcTarget(t.OpenCensusAgent.GetAddress())
		if err != nil {
			return r, nil, err
		}
		r.field, r.address = "tracing.openCensusAgent", address
		return openTelemetry(r, name)
	case *meshv1alpha1.Tracing_Lightstep_:
		if t.Lightstep.GetAccessToken() != "" {
			return r, nil, errors.New("ProxyConfig tracing.lightstep.accessToken is set: Envoy has no Lightstep tracer any more; " + openTelemetryAdvice)
		}
		r.field, r.address = "tracing.lightstep", t.Lightstep.GetAddress()
		return openTelemetry(r, name)
	case *meshv1alpha1.Tracing_Stackdriver_:
		return r, nil, errors.New("ProxyConfig tracing.stackdriver is set: Envoy has no Stackdriver tracer any more; " + openTelemetryAdvice)
	default:
		return r, nil, fmt.Errorf("ProxyConfig tracing has the unknown tracer %T; use zipkin, datadog or openCensusAgent", t)
	}
}

func openTelemetry(r remote, service string) (remote, object, error) {
	r.cluster, r.http2 = "opentelemetry", true
	return r, provider("opentelemetry", object{
		"@type":        "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
		"grpc_service": object{"envoy_grpc": object{"cluster_name": r.cluster}, "timeout": "5s"},
		"service_name": service,
	}), nil
}

func provider(tracer string, config object) object {
	return object{"name": "envoy.tracers." + tracer, "typed_config": config}
}

// grpcTarget converts a gRPC target name to host:port. Envoy resolves the host itself, so the DNS
// server of dns://server/host:port is not asked.
func grpcTarget(target string) (string, error) {
	address := target
	if rest, ok := strings.CutPrefix(address, "dns://"); ok {
		_, address, _ = strings.Cut(rest, "/")
	}
	for _, scheme := range []string{"dns:", "ipv4:", "ipv6:"} {
		address = strings.TrimPrefix(address, scheme)
	}
	if strings.HasPrefix(target, "unix:") || address == "" || strings.ContainsAny(address, "/,") {
		return "", fmt.Errorf("ProxyConfig tracing.openCensusAgent.address is %q; it must be host:port or dns://server/host:port", target)
	}
	return address, nil
}

// Replaced returns a sentence for each field of the ProxyConfig whose effect differs from its name.
func Replaced(pc *meshv1alpha1.ProxyConfig) []string {
	const sentence = "ProxyConfig tracing.%s: Envoy has no such tracer any more; spans go to %s as OTLP over gRPC, and requests carry " +
		"the W3C header traceparent: have an OpenTelemetry collector receive them there"
	switch t := pc.GetTracing().GetTracer().(type) {
	case *meshv1alpha1.Tracing_OpenCensusAgent_:
		return []string{fmt.Sprintf(sentence, "openCensusAgent", t.OpenCensusAgent.GetAddress())}
	case *meshv1alpha1.Tracing_Lightstep_:
		return []string{fmt.Sprintf(sentence, "lightstep", t.Lightstep.GetAddress())}
	}
	return nil
}
