// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

// Check is a row of the table of findings: a code, or a code of Istio that this project does not
// have.
type Check struct {
	Code     string
	Severity Severity
	// Name is a short name; that of Istio for codes of Istio.
	Name string
	// About says when it is reported.
	About string
	// Absent says why a code of Istio is never reported; empty if it can be.
	Absent string
}

// severityOf returns the severity of a code.
func severityOf(code string) Severity {
	for _, c := range Checks() {
		if c.Code == code {
			return c.Severity
		}
	}
	return Error
}

// Known reports whether a code can be reported.
func Known(code string) bool {
	for _, c := range Checks() {
		if c.Code == code {
			return c.Absent == ""
		}
	}
	return false
}

// Checks returns the table of all codes: those of istioctl analyze, then those of this project. A code
// keeps its meaning.
func Checks() []Check { return checks[:] }

// checks is never written to.
var checks = [...]Check{
	{"IST0001", Error, "InternalError", "", "a fault of the analysis is an error of the command"},
	{"IST0002", Warning, "Deprecated", "an object uses a deprecated field", ""},
	{"IST0101", Error, "ReferencedResourceNotFound", "a host, subset, Gateway, VirtualService, Secret or provider that an object names does not exist", ""},
	{"IST0102", Info, "NamespaceNotInjected", "a namespace with pods has no label that decides about proxies", ""},
	{"IST0103", Warning, "PodMissingProxy", "a pod of a namespace with injection has no proxy", ""},
	{"IST0106", Error, "SchemaValidationError", "an object cannot be read, or a rule of its kind refuses it", ""},
	{"IST0107", Warning, "MisplacedAnnotation", "an annotation of Istio is on a kind that does not read it", ""},
	{"IST0108", Warning, "UnknownAnnotation", "an annotation has a name of Istio, but Istio has none of that name", ""},
	{"IST0109", Error, "ConflictingMeshGatewayVirtualServiceHosts", "an older VirtualService has the same host for sidecars", ""},
	{"IST0110", Error, "ConflictingSidecarWorkloadSelectors", "two Sidecars select one workload", ""},
	{"IST0111", Error, "MultipleSidecarsWithoutWorkloadSelectors", "a namespace has several Sidecars without a selector", ""},
	{"IST0112", Error, "VirtualServiceDestinationPortSelectorRequired", "a route of a gateway leads to a service with several ports and names none", ""},
	{"IST0113", Error, "MTLSPolicyConflict", "a DestinationRule sends what the PeerAuthentication of the workload refuses", ""},
	{"IST0116", Warning, "DeploymentAssociatedToMultipleServices", "services disagree about the protocol of a port of a workload", ""},
	{"IST0118", Info, "PortNameIsNotUnderNamingConvention", "the name of a Service port says no protocol, so that it is detected", ""},
	{"IST0119", Warning, "JwtFailureDueToInvalidServicePortPrefix", "a RequestAuthentication selects workloads of a port that is not HTTP", ""},
	{"IST0122", Error, "InvalidRegexp", "a regular expression is not one that Envoy accepts", ""},
	{"IST0123", Warning, "NamespaceMultipleInjectionLabels", "a namespace has both istio-injection and istio.io/rev", ""},
	{"IST0125", Warning, "InvalidAnnotation", "the value of an annotation is one that the injector refuses", ""},
	{"IST0126", Error, "UnknownMeshNetworksServiceRegistry", "", "the analysis reads no MeshNetworks"},
	{"IST0127", Warning, "NoMatchingWorkloadsFound", "the selector of an object matches no workload", ""},
	{"IST0128", Warning, "NoServerCertificateVerificationDestinationLevel", "a DestinationRule originates TLS with insecureSkipVerify; without caCertificates, the roots of the system verify", ""},
	{"IST0129", Warning, "NoServerCertificateVerificationPortLevel", "the same for one port", ""},
	{"IST0130", Warning, "VirtualServiceUnreachableRule", "earlier routes take all requests of a route", ""},
	{"IST0131", Info, "VirtualServiceIneffectiveMatch", "an earlier match takes all requests of a match", ""},
	{"IST0132", Warning, "VirtualServiceHostNotFoundInGateway", "a Gateway has no server for a host of a VirtualService", ""},
	{"IST0133", Warning, "SchemaWarning", "a rule of the kind warns about an object", ""},
	{"IST0134", Warning, "ServiceEntryAddressesRequired", "a TCP port of a ServiceEntry has no address to tell it from others", ""},
	{"IST0135", Info, "DeprecatedAnnotation", "an annotation is deprecated", ""},
	{"IST0136", Info, "AlphaAnnotation", "", "nine of ten annotations are alpha in Istio's table; that is no mistake"},
	{"IST0137", Warning, "DeploymentConflictingPorts", "two services of a workload have different ports for one target port", ""},
	{"IST0138", Warning, "GatewayDuplicateCertificate", "two Gateways of one workload serve the same certificate", ""},
	{"IST0139", Error, "InvalidWebhook", "a webhook calls a Service, or a port of it, that does not exist", ""},
	{"IST0140", Warning, "IngressRouteRulesNotAffected", "", "subsets have their effect at gateways, too"},
	{"IST0141", Error, "InsufficientPermissions", "", "it is about installing; outrigger install reports what the API server refuses"},
	{"IST0142", Error, "UnsupportedKubernetesVersion", "", "it is about installing, not about objects"},
	{"IST0143", Error, "LocalhostListener", "", "it needs a command inside of each pod; istioctl analyze does not report it either"},
	{"IST0144", Warning, "InvalidApplicationUID", "an application runs as user 1337, the user of the proxy", ""},
	{"IST0145", Error, "ConflictingGateways", "two Gateways of one workload have the same port and host", ""},
	{"IST0146", Warning, "ImageAutoWithoutInjectionWarning", "a template has the image auto, but receives no proxy", ""},
	{"IST0147", Error, "ImageAutoWithoutInjectionError", "a pod has the image auto", ""},
	{"IST0148", Info, "NamespaceInjectionEnabledByDefault", "", "the values of the injector are no part of the input"},
	{"IST0149", Error, "JwtClaimBasedRoutingWithoutRequestAuthN", "a route matches claims of tokens, but the gateway has no RequestAuthentication", ""},
	{"IST0150", Warning, "ExternalNameServiceTypeInvalidPortName", "a port of a Service of type ExternalName is TCP or has no protocol", ""},
	{"IST0151", Warning, "EnvoyFilterUsesRelativeOperation", "an EnvoyFilter without priority places a patch relative to others", ""},
	{"IST0152", Error, "EnvoyFilterUsesReplaceOperationIncorrectly", "an EnvoyFilter replaces what cannot be replaced", ""},
	{"IST0153", Error, "EnvoyFilterUsesAddOperationIncorrectly", "an EnvoyFilter adds where nothing can be added", ""},
	{"IST0154", Error, "EnvoyFilterUsesRemoveOperationIncorrectly", "an EnvoyFilter removes what cannot be removed", ""},
	{"IST0155", Warning, "EnvoyFilterUsesRelativeOperationWithProxyVersion", "the same as IST0151, for some versions of proxies", ""},
	{"IST0156", Error, "UnsupportedGatewayAPIVersion", "", "it is about definitions of a cluster, not about objects"},
	{"IST0157", Warning, "InvalidTelemetryProvider", "a Telemetry names no provider and the mesh has no default", ""},
	{"IST0158", Warning, "PodsIstioProxyImageMismatchInNamespace", "", "the image of the injector is no part of the input; outrigger status shows the versions of proxies"},
	{"IST0159", Error, "ConflictingTelemetryWorkloadSelectors", "two Telemetry objects select one workload", ""},
	{"IST0160", Error, "MultipleTelemetriesWithoutWorkloadSelectors", "a namespace has several Telemetry objects without a selector", ""},
	{"IST0161", Error, "InvalidGatewayCredential", "the Secret of a Gateway has no certificate and key that belong together", ""},
	{"IST0162", Warning, "GatewayPortNotDefinedOnService", "no Service reaches a port of a Gateway", ""},
	{"IST0163", Warning, "InvalidExternalControlPlaneConfig", "", "webhooks of external control planes are not installed"},
	{"IST0164", Info, "ExternalControlPlaneAddressIsNotAHostname", "", "webhooks of external control planes are not installed"},
	{"IST0165", Warning, "ReferencedInternalGateway", "a VirtualService names a Gateway that is made from one of the Gateway API", ""},
	{"IST0166", Warning, "IneffectiveSelector", "", "selectors have their effect at Gateways of the Gateway API, too"},
	{"IST0167", Warning, "IneffectivePolicy", "", "it is about waypoints of Istio's ambient mode"},
	{"IST0168", Warning, "UnknownUpgradeCompatibility", "", "there are no compatibility versions"},
	{"IST0169", Warning, "UpdateIncompatibility", "", "there are no compatibility versions"},
	{"IST0170", Warning, "MultiClusterInconsistentService", "", "the control plane reports it as a problem of the Service"},
	{"IST0171", Warning, "NegativeConditionStatus", "a condition in the status of an object is False", ""},
	{"IST0172", Warning, "FutureUnsupportedGatewayAPIVersion", "", "it is about definitions of a cluster, not about objects"},
	{"IST0173", Error, "DestinationRuleSubsetNotSelectPods", "no endpoint of the service has the labels of a subset", ""},
	{"IST0174", Warning, "UnknownDestinationRuleHost", "no service has the host of a DestinationRule", ""},
	{"IST0175", Warning, "JwksUriFetchUnrestricted", "", "key sets are fetched from public addresses only"},
	{"IST0176", Warning, "GatewayAPICRDVersionBelowMinimum", "", "it is about definitions of a cluster, not about objects"},
	{"IST0177", Warning, "ConflictingServiceEntryProtocol", "ServiceEntries disagree about the protocol of a port of a host", ""},

	{"OUT0001", Warning, "NotAsWritten", "an object, or a part of it, has no effect or another one at the control plane", ""},
	{"OUT0002", Warning, "DeniesEverything", "a DENY policy has a rule that every request matches", ""},
	{"OUT0003", Warning, "AllowsNothing", "an ALLOW policy without rules is the only one of a workload", ""},
	{"OUT0004", Warning, "DeniesProbes", "a policy, or STRICT mutual TLS, refuses the probes of the kubelet that are not rewritten", ""},
	{"OUT0005", Info, "GatewayHostInSeveralObjects", "several VirtualServices have the same host at one Gateway", ""},
	{"OUT0006", Info, "HostBehindWildcard", "the routes of a wildcard host do not apply to a host with a VirtualService of its own", ""},
	{"OUT0007", Error, "PortNotFound", "a service has no port of the number that a route or a rule names", ""},
	{"OUT0008", Warning, "NobodyServes", "a route leads to a service without endpoints", ""},
	{"OUT0009", Warning, "SidecarImportsNothing", "a host that a Sidecar imports is that of no service", ""},
	{"OUT0010", Warning, "PeerAuthenticationIgnored", "an older PeerAuthentication has the same selector", ""},
	{"OUT0011", Info, "GatewayWithoutRoutes", "no VirtualService names a Gateway", ""},
	{"OUT0012", Error, "NotAccepted", "an object of the Gateway API is attached to nothing, or is refused", ""},
	{"OUT0013", Info, "GatewayIgnoresRoutes", "a route of a gateway leads to a service whose own routes are for sidecars only", ""},
	{"OUT0014", Warning, "OtherProtocol", "routes, or rules of a policy, are about a protocol that the ports or servers do not have", ""},
	{"OUT0015", Warning, "TLSTwice", "a DestinationRule adds TLS at a port whose clients already send it", ""},
	{"OUT0016", Warning, "PlaintextToTLSPort", "a ServiceEntry sends requests to port 443 without TLS", ""},
	{"OUT0017", Warning, "FaultBeforeRetries", "a route has faults, and retries or a timeout that do not apply to them", ""},
	{"OUT0018", Warning, "NeverMatches", "no request of the selected workloads can meet a condition", ""},
	{"OUT0019", Info, "TokensNotRequired", "a RequestAuthentication admits requests without a token, and no policy requires one", ""},
	{"OUT0020", Warning, "DeniesEverythingTogether", "the policies of a workload leave no request: in parts, by a port that it does not have, or by an authorizer that cannot be asked", ""},
}
