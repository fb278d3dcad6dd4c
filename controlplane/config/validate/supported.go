// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// withoutEffect warns of fields that are set and change nothing in this
// version, so that nothing a person writes is silently without effect.
func (c *checker) withoutEffect(spec any, sch schema.Schema) {
	if convertedKinds[sch.Kind] {
		return
	}
	message, ok := spec.(proto.Message)
	if ok {
		_, ok = supportedTable[message.ProtoReflect().Descriptor().FullName()]
	}
	if !ok {
		article := "a"
		if strings.ContainsAny(sch.Name[:1], "AEIO") || strings.HasPrefix(sch.Name, "HTTP") {
			article = "an"
		}
		c.warnf("", "%s %s has no effect in this version", article, sch.Name)
		return
	}
	c.unserved(message.ProtoReflect(), "spec")
}

// convertedKinds are converted to Istio's, of which the fields are known here; it
// is never written to. What of them has no effect the conversion says.
var convertedKinds = map[model.Kind]bool{
	model.BackendTLSPolicy: true, model.GatewayClass: true, model.GRPCRoute: true, model.HTTPRoute: true, model.KubernetesGateway: true,
	model.ListenerSet: true, model.ReferenceGrant: true, model.TCPRoute: true, model.TLSRoute: true, model.Ingress: true, model.IngressClass: true,
}

// supportedFields names, for each message that a spec can contain, the
// fields that have an effect, by their names in YAML.
func supportedFields(message protoreflect.FullName) (fields []string, known bool) {
	text, known := supportedTable[message]
	return strings.Fields(text), known
}

// supportedTable is never written to.
var supportedTable = map[protoreflect.FullName]string{
	"istio.networking.v1alpha3.VirtualService":           "hosts gateways http tls tcp exportTo",
	"istio.networking.v1alpha3.TLSRoute":                 "match route",
	"istio.networking.v1alpha3.TLSMatchAttributes":       "sniHosts destinationSubnets port sourceLabels gateways sourceNamespace",
	"istio.networking.v1alpha3.TCPRoute":                 "match route",
	"istio.networking.v1alpha3.L4MatchAttributes":        "destinationSubnets port sourceSubnet sourceLabels gateways sourceNamespace",
	"istio.networking.v1alpha3.RouteDestination":         "destination weight",
	"istio.networking.v1alpha3.HTTPRoute":                "name match route redirect directResponse delegate rewrite timeout retries fault mirror mirrors mirrorPercentage mirrorPercent corsPolicy headers",
	"istio.networking.v1alpha3.HTTPMatchRequest":         "name uri scheme method authority headers port sourceLabels gateways queryParams ignoreUriCase withoutHeaders sourceNamespace statPrefix",
	"istio.networking.v1alpha3.StringMatch":              "exact prefix regex",
	"istio.networking.v1alpha3.HTTPRouteDestination":     "destination weight headers",
	"istio.networking.v1alpha3.Destination":              "host subset port",
	"istio.networking.v1alpha3.PortSelector":             "number",
	"istio.networking.v1alpha3.Headers":                  "request response",
	"istio.networking.v1alpha3.Headers.HeaderOperations": "set add remove",
	"istio.networking.v1alpha3.HTTPRedirect":             "uri authority port derivePort scheme redirectCode prefixRewrite",
	"istio.networking.v1alpha3.HTTPDirectResponse":       "status body",
	"istio.networking.v1alpha3.HTTPBody":                 "string bytes",
	"istio.networking.v1alpha3.HTTPRewrite":              "uri authority uriRegexRewrite",
	"istio.networking.v1alpha3.RegexRewrite":             "match rewrite",
	"istio.networking.v1alpha3.HTTPRetry":                "attempts perTryTimeout retryOn retryRemoteLocalities retryIgnorePreviousHosts backoff",
	"istio.networking.v1alpha3.HTTPMirrorPolicy":         "destination percentage",
	"istio.networking.v1alpha3.Percent":                  "value",
	"istio.networking.v1alpha3.Delegate":                 "name namespace",
	"istio.networking.v1alpha3.CorsPolicy":               "allowOrigin allowOrigins allowMethods allowHeaders exposeHeaders maxAge allowCredentials unmatchedPreflights",
	"istio.networking.v1alpha3.HTTPFaultInjection":       "delay abort",
	"istio.networking.v1alpha3.HTTPFaultInjection.Delay": "percent fixedDelay percentage",
	"istio.networking.v1alpha3.HTTPFaultInjection.Abort": "httpStatus grpcStatus percentage",

	"istio.networking.v1alpha3.DestinationRule":                                            "host trafficPolicy subsets exportTo workloadSelector",
	"istio.networking.v1alpha3.Subset":                                                     "name labels trafficPolicy",
	"istio.networking.v1alpha3.TrafficPolicy":                                              "loadBalancer connectionPool outlierDetection tls portLevelSettings tunnel proxyProtocol retryBudget",
	"istio.networking.v1alpha3.TrafficPolicy.PortTrafficPolicy":                            "port loadBalancer connectionPool outlierDetection tls",
	"istio.networking.v1alpha3.TrafficPolicy.TunnelSettings":                               "protocol targetHost targetPort",
	"istio.networking.v1alpha3.TrafficPolicy.ProxyProtocol":                                "version",
	"istio.networking.v1alpha3.TrafficPolicy.RetryBudget":                                  "percent minRetryConcurrency budgetInterval",
	"istio.networking.v1alpha3.LoadBalancerSettings":                                       "simple consistentHash localityLbSetting zoneAwareLbSetting warmupDurationSecs warmup",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB":                      "httpHeaderName httpCookie useSourceIp httpQueryParameterName ringHash maglev minimumRingSize",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.HTTPCookie":           "name path ttl attributes",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.HTTPCookie.Attribute": "name value",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.RingHash":             "minimumRingSize",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.MagLev":               "tableSize",
	"istio.networking.v1alpha3.WarmupConfiguration":                                        "duration minimumPercent aggression",
	"istio.networking.v1alpha3.LocalityLoadBalancerSetting":                                "distribute failover failoverPriority enabled",
	"istio.networking.v1alpha3.LocalityLoadBalancerSetting.Distribute":                     "from to",
	"istio.networking.v1alpha3.LocalityLoadBalancerSetting.Failover":                       "from to",
	"istio.networking.v1alpha3.ZoneAwareLoadBalancerSetting":                               "enabled failover failoverPriority minClusterSize",
	"istio.networking.v1alpha3.ZoneAwareLoadBalancerSetting.Failover":                      "from to",
	"istio.networking.v1alpha3.ConnectionPoolSettings":                                     "tcp http",
	"istio.networking.v1alpha3.ConnectionPoolSettings.TCPSettings":                         "maxConnections connectTimeout tcpKeepalive maxConnectionDuration idleTimeout",
	"istio.networking.v1alpha3.ConnectionPoolSettings.HTTPSettings":                        "http1MaxPendingRequests http2MaxRequests maxRequestsPerConnection maxRetries idleTimeout h2UpgradePolicy useClientProtocol maxConcurrentStreams http2KeepAlive",
	"istio.networking.v1alpha3.ConnectionPoolSettings.HTTPSettings.ConnectionKeepalive":    "interval timeout",
	"istio.networking.v1alpha3.ConnectionPoolSettings.TCPSettings.TcpKeepalive":            "probes time interval",
	"istio.networking.v1alpha3.OutlierDetection":                                           "consecutive5xxErrors consecutiveGatewayErrors splitExternalLocalOriginErrors consecutiveLocalOriginFailures interval baseEjectionTime maxEjectionPercent minHealthPercent outlierDetectionHttpErrorCodes",
	"istio.networking.v1alpha3.ClientTLSSettings":                                          "mode clientCertificate privateKey caCertificates credentialName sni subjectAltNames insecureSkipVerify caCrl",

	"istio.networking.v1alpha3.ServiceEntry":     "hosts addresses ports location resolution endpoints workloadSelector exportTo subjectAltNames",
	"istio.networking.v1alpha3.ServicePort":      "number protocol name targetPort",
	"istio.networking.v1alpha3.WorkloadEntry":    "address ports labels locality network weight serviceAccount",
	"istio.networking.v1alpha3.WorkloadSelector": "labels",

	// The probe is a part of the mesh config that tools write for the machines of a group.
	"istio.networking.v1alpha3.WorkloadGroup":            "metadata template probe",
	"istio.networking.v1alpha3.WorkloadGroup.ObjectMeta": "labels annotations",
	"istio.networking.v1alpha3.ReadinessProbe":           "initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold httpGet tcpSocket exec grpc",
	"istio.networking.v1alpha3.HTTPHealthCheckConfig":    "path port host scheme httpHeaders",
	"istio.networking.v1alpha3.HTTPHeader":               "name value",
	"istio.networking.v1alpha3.TCPHealthCheckConfig":     "host port",
	"istio.networking.v1alpha3.ExecHealthCheckConfig":    "command",
	"istio.networking.v1alpha3.GrpcHealthCheckConfig":    "port service",

	"istio.networking.v1alpha3.EnvoyFilter":                                          "workloadSelector targetRefs configPatches priority",
	"istio.networking.v1alpha3.EnvoyFilter.EnvoyConfigObjectPatch":                   "applyTo match patch",
	"istio.networking.v1alpha3.EnvoyFilter.EnvoyConfigObjectMatch":                   "context proxy listener routeConfiguration cluster",
	"istio.networking.v1alpha3.EnvoyFilter.ProxyMatch":                               "proxyVersion metadata",
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch":                            "portNumber filterChain listenerFilter name",
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.FilterChainMatch":           "name sni transportProtocol applicationProtocols filter destinationPort",
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.FilterMatch":                "name subFilter",
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.SubFilterMatch":             "name",
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch":                  "portNumber portName gateway vhost name",
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch.VirtualHostMatch": "name route domainName",
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch.RouteMatch":       "name action",
	"istio.networking.v1alpha3.EnvoyFilter.ClusterMatch":                             "portNumber service subset name",
	"istio.networking.v1alpha3.EnvoyFilter.Patch":                                    "operation value filterClass",
	"istio.telemetry.v1alpha1.Telemetry":                                             "selector targetRef targetRefs metrics accessLogging tracing",
	"istio.telemetry.v1alpha1.ProviderRef":                                           "name",
	"istio.telemetry.v1alpha1.Metrics":                                               "providers overrides",
	"istio.telemetry.v1alpha1.MetricsOverrides":                                      "match disabled tagOverrides",
	"istio.telemetry.v1alpha1.MetricSelector":                                        "metric customMetric mode",
	"istio.telemetry.v1alpha1.MetricsOverrides.TagOverride":                          "operation value",
	"istio.telemetry.v1alpha1.AccessLogging":                                         "match providers disabled filter",
	"istio.telemetry.v1alpha1.AccessLogging.LogSelector":                             "mode",
	"istio.telemetry.v1alpha1.AccessLogging.Filter":                                  "expression",
	"istio.telemetry.v1alpha1.Tracing":                                               "match providers randomSamplingPercentage disableSpanReporting customTags useRequestIdForTraceSampling enableIstioTags disableContextPropagation",
	"istio.telemetry.v1alpha1.Tracing.TracingSelector":                               "mode",
	"istio.telemetry.v1alpha1.Tracing.CustomTag":                                     "literal environment header formatter",
	"istio.telemetry.v1alpha1.Tracing.Literal":                                       "value",
	"istio.telemetry.v1alpha1.Tracing.Environment":                                   "name defaultValue",
	"istio.telemetry.v1alpha1.Tracing.RequestHeader":                                 "name defaultValue",
	"istio.telemetry.v1alpha1.Tracing.Formatter":                                     "value",

	"istio.networking.v1alpha3.Sidecar":               "workloadSelector ingress egress outboundTrafficPolicy inboundConnectionPool",
	"istio.networking.v1alpha3.IstioIngressListener":  "port bind captureMode defaultEndpoint tls connectionPool",
	"istio.networking.v1alpha3.IstioEgressListener":   "port bind captureMode hosts",
	"istio.networking.v1alpha3.SidecarPort":           "number protocol name",
	"istio.networking.v1alpha3.OutboundTrafficPolicy": "mode egressProxy",

	"istio.networking.v1alpha3.Gateway":                          "servers selector",
	"istio.networking.v1alpha3.Server":                           "port bind hosts tls name",
	"istio.networking.v1alpha3.Port":                             "number protocol name",
	"istio.networking.v1alpha3.ServerTLSSettings":                "httpsRedirect mode serverCertificate privateKey caCertificates caCrl credentialName credentialNames caCertCredentialName tlsCertificates insecureSkipVerify subjectAltNames verifyCertificateSpki verifyCertificateHash minProtocolVersion maxProtocolVersion cipherSuites",
	"istio.networking.v1alpha3.ServerTLSSettings.TLSCertificate": "serverCertificate privateKey",

	// The injector applies it to pods.
	"istio.networking.v1beta1.ProxyConfig": "selector concurrency environmentVariables image",
	"istio.networking.v1beta1.ProxyImage":  "imageType",

	"istio.security.v1beta1.PeerAuthentication":           "selector mtls portLevelMtls",
	"istio.security.v1beta1.PeerAuthentication.MutualTLS": "mode",
	"istio.security.v1beta1.AuthorizationPolicy":          "selector targetRef targetRefs rules action provider",
	"istio.security.v1beta1.RequestAuthentication":        "selector targetRef targetRefs jwtRules",
	"istio.security.v1beta1.JWTRule":                      "issuer audiences jwks jwksUri timeout fromHeaders fromParams fromCookies forwardOriginalToken outputPayloadToHeader outputClaimToHeaders spaceDelimitedClaims",
	"istio.security.v1beta1.JWTHeader":                    "name prefix",
	"istio.security.v1beta1.ClaimToHeader":                "header claim",
	"istio.security.v1beta1.Rule":                         "from to when",
	"istio.security.v1beta1.Rule.From":                    "source",
	"istio.security.v1beta1.Rule.To":                      "operation",
	"istio.security.v1beta1.Source":                       "principals notPrincipals requestPrincipals notRequestPrincipals namespaces notNamespaces serviceAccounts notServiceAccounts trustDomains notTrustDomains ipBlocks notIpBlocks remoteIpBlocks notRemoteIpBlocks",
	"istio.security.v1beta1.Operation":                    "hosts notHosts ports notPorts methods notMethods paths notPaths",
	"istio.security.v1beta1.Condition":                    "key values notValues",
	"istio.type.v1beta1.WorkloadSelector":                 "matchLabels",
	"istio.type.v1beta1.PortSelector":                     "number",
	"istio.type.v1beta1.PolicyTargetReference":            "group kind name",

	"istio.security.v1beta1.AuthorizationPolicy.ExtensionProvider": "name",

	"istio.extensions.v1alpha1.WasmPlugin":                 "selector targetRef targetRefs url sha256 imagePullPolicy imagePullSecret pluginConfig pluginName phase priority failStrategy vmConfig match type",
	"istio.extensions.v1alpha1.WasmPlugin.TrafficSelector": "mode ports",
	"istio.extensions.v1alpha1.TrafficExtension":           "selector targetRefs phase priority match wasm lua",
	"istio.extensions.v1alpha1.TrafficSelector":            "mode ports",
	"istio.extensions.v1alpha1.WasmConfig":                 "url sha256 imagePullPolicy imagePullSecret pluginConfig pluginName failStrategy vmConfig type",
	"istio.extensions.v1alpha1.LuaConfig":                  "inlineCode",
	"istio.extensions.v1alpha1.VmConfig":                   "env",
	"istio.extensions.v1alpha1.EnvVar":                     "name valueFrom value",
}

// unserved warns of the fields of m that are set and have no effect. Where a
// rule of the kind has warned of the field, in better words, it stays silent.
func (c *checker) unserved(m protoreflect.Message, path string) {
	warned := map[string]bool{}
	for _, w := range c.warnings {
		warned[w.Path] = true
	}
	c.unservedFields(m, path, warned)
}

func (c *checker) unservedFields(m protoreflect.Message, path string, warned map[string]bool) {
	name := m.Descriptor().FullName()
	if strings.HasPrefix(string(name), "google.protobuf.") {
		return
	}
	served, _ := supportedFields(name)
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		at := path + "." + fd.JSONName()
		if !slices.Contains(served, fd.JSONName()) {
			if !warned[at] {
				c.warnf(at, "has no effect in this version")
			}
			continue
		}
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				values := make(map[string]protoreflect.Message, m.Get(fd).Map().Len())
				m.Get(fd).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					values[k.String()] = v.Message()
					return true
				})
				for k, v := range field.Sorted(values) {
					c.unservedFields(v, field.Key(at, k), warned)
				}
			}
		case fd.Message() == nil:
		case fd.IsList():
			for j := range m.Get(fd).List().Len() {
				c.unservedFields(m.Get(fd).List().Get(j).Message(), fmt.Sprintf("%s[%d]", at, j), warned)
			}
		default:
			c.unservedFields(m.Get(fd).Message(), at, warned)
		}
	}
}
