// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// Default returns the MeshConfig of a mesh without configuration.
func Default() *meshv1alpha1.MeshConfig {
	return &meshv1alpha1.MeshConfig{
		EnableTracing:            true,
		AccessLogEncoding:        meshv1alpha1.MeshConfig_TEXT,
		IngressControllerMode:    meshv1alpha1.MeshConfig_STRICT,
		IngressService:           "istio-ingressgateway",
		IngressClass:             "istio",
		TrustDomain:              "cluster.local",
		RootNamespace:            "istio-system",
		ProxyListenPort:          15001,
		ProxyInboundListenPort:   15006,
		ConnectTimeout:           durationpb.New(10 * time.Second),
		DnsRefreshRate:           durationpb.New(60 * time.Second),
		ProtocolDetectionTimeout: durationpb.New(0),
		EnableAutoMtls:           wrapperspb.Bool(true),
		EnablePrometheusMerge:    wrapperspb.Bool(true),
		OutboundTrafficPolicy: &meshv1alpha1.MeshConfig_OutboundTrafficPolicy{
			Mode: meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY,
		},
		LocalityLbSetting: &networkingv1alpha3.LocalityLoadBalancerSetting{
			Enabled: wrapperspb.Bool(true),
		},
		DefaultServiceExportTo:         []string{"*"},
		DefaultVirtualServiceExportTo:  []string{"*"},
		DefaultDestinationRuleExportTo: []string{"*"},
		DefaultProviders:               &meshv1alpha1.MeshConfig_DefaultProviders{},
		ExtensionProviders: []*meshv1alpha1.MeshConfig_ExtensionProvider{
			{
				Name: "prometheus",
				Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_Prometheus{
					Prometheus: &meshv1alpha1.MeshConfig_ExtensionProvider_PrometheusMetricsProvider{},
				},
			},
			{
				Name: "stackdriver",
				Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_Stackdriver{
					Stackdriver: &meshv1alpha1.MeshConfig_ExtensionProvider_StackdriverProvider{},
				},
			},
			{
				Name: "envoy",
				Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog{
					EnvoyFileAccessLog: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider{
						Path: "/dev/stdout",
					},
				},
			},
		},
		DefaultConfig: DefaultProxyConfig(),
	}
}

// DefaultProxyConfig returns the ProxyConfig of a proxy without configuration.
func DefaultProxyConfig() *meshv1alpha1.ProxyConfig {
	return &meshv1alpha1.ProxyConfig{
		ConfigPath:               "./etc/istio/proxy",
		BinaryPath:               "/usr/local/bin/envoy",
		ClusterName:              &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: "istio-proxy"},
		DrainDuration:            durationpb.New(45 * time.Second),
		TerminationDrainDuration: durationpb.New(5 * time.Second),
		DiscoveryAddress:         "istiod.istio-system.svc:15012",
		ProxyAdminPort:           15000,
		StatusPort:               15020,
		ControlPlaneAuthPolicy:   meshv1alpha1.AuthenticationPolicy_MUTUAL_TLS,
		StatNameLength:           189,
		Tracing: &meshv1alpha1.Tracing{
			Tracer: &meshv1alpha1.Tracing_Zipkin_{
				Zipkin: &meshv1alpha1.Tracing_Zipkin{Address: "zipkin.istio-system:9411"},
			},
		},
		ProxyMetadata: map[string]string{},
	}
}
