// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"cmp"
	"math"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	detectorsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/resource_detectors/v3"
	samplersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/samplers/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// The time that a receiver of spans has to answer, unless the provider says otherwise.
const (
	grpcTimeout = 5 * time.Second
	httpTimeout = 3 * time.Second
)

// configure sets the tracer of the provider, and reports whether a sampler of the tracer decides which
// requests are traced.
func (t tracing) configure(out *hcmv3.HttpConnectionManager_Tracing) (samples bool) {
	longest := uint32(0)
	otlp := func(config *tracev3.OpenTelemetryConfig) {
		config.ServiceName = t.service
		if config.Sampler == nil && t.follows {
			config.Sampler = t.parentBased()
		}
		samples = config.GetSampler() != nil
		out.Provider = tracer("opentelemetry", config)
	}
	switch p := t.Provider.GetProvider().(type) {
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Opentelemetry:
		longest = p.Opentelemetry.GetMaxTagLength()
		otlp(t.openTelemetry(p.Opentelemetry))
		if p.Opentelemetry.GetSampling() != nil {
			out.RandomSampling = &typev3.Percent{Value: 100} // the sampler decides
		}
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin:
		longest = p.Zipkin.GetMaxTagLength()
		out.Provider = tracer("zipkin", t.zipkin(p.Zipkin))
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Datadog:
		longest = p.Datadog.GetMaxTagLength()
		out.Provider = tracer("datadog", &tracev3.DatadogConfig{CollectorCluster: clusterOf(t.Reached), CollectorHostname: t.Service.Hostname, ServiceName: t.service})
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Skywalking:
		config := &tracev3.SkyWalkingConfig{GrpcService: t.grpc(nil)}
		if token := p.Skywalking.GetAccessToken(); token != "" {
			config.ClientConfig = &tracev3.ClientConfig{BackendTokenSpecifier: &tracev3.ClientConfig_BackendToken{BackendToken: token}}
		}
		out.Provider = tracer("skywalking", config)
		out.SpawnUpstreamSpan = wrapperspb.Bool(true) // SkyWalking shows only spans with both sides
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Lightstep:
		//lint:ignore SA1019 users still write it
		lightstep := p.Lightstep
		longest = lightstep.GetMaxTagLength()
		var headers []*meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader
		if token := lightstep.GetAccessToken(); token != "" {
			headers = append(headers, &meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader{
				Name: "lightstep-access-token", HeaderValue: &meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader_Value{Value: token},
			})
		}
		otlp(&tracev3.OpenTelemetryConfig{GrpcService: t.grpc(&meshv1alpha1.MeshConfig_ExtensionProvider_GrpcService{InitialMetadata: headers})})
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Opencensus:
		longest = p.Opencensus.GetMaxTagLength() //lint:ignore SA1019 served over OTLP
		otlp(&tracev3.OpenTelemetryConfig{GrpcService: t.grpc(nil)})
	}
	if longest > 0 {
		out.MaxPathTagLength = wrapperspb.UInt32(longest)
	}
	return samples
}

// parentBased returns a sampler that follows the parent of a span. It samples the percentage of spans
// without a parent.
func (t tracing) parentBased() *corev3.TypedExtensionConfig {
	ratio := &samplersv3.TraceIdRatioBasedSamplerConfig{SamplingPercentage: &typev3.FractionalPercent{
		Numerator: uint32(math.Round(t.sampling * 10_000)), Denominator: typev3.FractionalPercent_MILLION,
	}}
	return otlpExtension("samplers.parent_based", &samplersv3.ParentBasedSamplerConfig{WrappedSampler: otlpExtension("samplers.trace_id_ratio_based", ratio)})
}

func otlpExtension(name string, config proto.Message) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: "envoy.tracers.opentelemetry." + name, TypedConfig: envoyconf.Pack(config)}
}

func tracer(name string, config proto.Message) *tracev3.Tracing_Http {
	return &tracev3.Tracing_Http{Name: "envoy.tracers." + name, ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: envoyconf.Pack(config)}}
}

func (t tracing) grpc(of *meshv1alpha1.MeshConfig_ExtensionProvider_GrpcService) *corev3.GrpcService {
	out := &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: grpcTo(t.Reached)},
		Timeout:         cmp.Or(of.GetTimeout(), durationpb.New(grpcTimeout)),
	}
	for _, h := range added(of.GetInitialMetadata()) {
		out.InitialMetadata = append(out.InitialMetadata, h.GetHeader())
	}
	return out
}

// added returns the headers of requests to a receiver. Envoy reads values from its environment.
func added(headers []*meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader) (out []*corev3.HeaderValueOption) {
	for _, h := range headers {
		value := literal(h.GetValue())
		if name := h.GetEnvName(); name != "" {
			value = "%ENVIRONMENT(" + name + ")%"
		}
		out = append(out, &corev3.HeaderValueOption{
			Header: &corev3.HeaderValue{Key: strings.ToLower(h.GetName()), Value: value}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return out
}

// httpTo returns a service that is called over HTTP.
func httpTo(to snapshot.Reached, path string, timeout *durationpb.Duration, headers []*meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader) *corev3.HttpService {
	return &corev3.HttpService{
		HttpUri: &corev3.HttpUri{
			Uri:     "http://" + envoyconf.HostPort(to.Service.Hostname, to.Port.Number) + path,
			Timeout: cmp.Or(timeout, durationpb.New(httpTimeout)), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: clusterOf(to)},
		},
		RequestHeadersToAdd: added(headers),
	}
}

func (t tracing) openTelemetry(p *meshv1alpha1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) *tracev3.OpenTelemetryConfig {
	out := &tracev3.OpenTelemetryConfig{}
	if h := p.GetHttp(); h != nil {
		out.HttpService = httpTo(t.Reached, h.GetPath(), h.GetTimeout(), h.GetHeaders())
	} else {
		out.GrpcService = t.grpc(p.GetGrpc())
	}
	conventions := p.GetServiceAttributeEnrichment() == meshv1alpha1.MeshConfig_ExtensionProvider_OTEL_SEMANTIC_CONVENTIONS
	if conventions || p.GetResourceDetectors().GetEnvironment() != nil { // injected pods have the attributes there
		out.ResourceDetectors = append(out.ResourceDetectors, otlpExtension("resource_detectors.environment", &detectorsv3.EnvironmentResourceDetectorConfig{}))
	}
	if p.GetResourceDetectors().GetDynatrace() != nil {
		out.ResourceDetectors = append(out.ResourceDetectors, otlpExtension("resource_detectors.dynatrace", &detectorsv3.DynatraceResourceDetectorConfig{}))
	}
	if d := p.GetDynatraceSampler(); d != nil {
		config := &samplersv3.DynatraceSamplerConfig{Tenant: d.GetTenant(), ClusterId: d.GetClusterId(), RootSpansPerMinute: d.GetRootSpansPerMinute()}
		// Without a service of its own the sampler asks the receiver of spans.
		api, to := d.GetHttpService().GetHttp(), t.Sampler
		if to.Service == nil {
			to = t.Reached
		}
		headers := api.GetHeaders()
		if api == nil {
			headers = p.GetHttp().GetHeaders()
		}
		config.HttpService = httpTo(to, cmp.Or(api.GetPath(), "/api/v2/samplingConfiguration"), api.GetTimeout(), headers)
		out.Sampler = otlpExtension("samplers.dynatrace", config)
	}
	return out
}

func (t tracing) zipkin(p *meshv1alpha1.MeshConfig_ExtensionProvider_ZipkinTracingProvider) *tracev3.ZipkinConfig {
	path := cmp.Or(p.GetPath(), "/api/v2/spans")
	out := &tracev3.ZipkinConfig{
		CollectorCluster: clusterOf(t.Reached), CollectorHostname: t.Service.Hostname, CollectorEndpoint: path,
		CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON, TraceId_128Bit: !p.GetEnable_64BitTraceId(), SharedSpanContext: wrapperspb.Bool(false),
	}
	if p.GetTimeout() != nil || len(p.GetHeaders()) > 0 {
		out.CollectorService = httpTo(t.Reached, path, p.GetTimeout(), p.GetHeaders())
	}
	if p.GetTraceContextOption() == meshv1alpha1.MeshConfig_ExtensionProvider_ZipkinTracingProvider_USE_B3_WITH_W3C_PROPAGATION {
		out.TraceContextOption = tracev3.ZipkinConfig_USE_B3_WITH_W3C_PROPAGATION
	}
	return out
}
