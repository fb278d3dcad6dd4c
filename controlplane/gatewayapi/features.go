// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import "slices"

// Features returns the names of the features that the status of the GatewayClass lists, sorted.
// deploys means that the proxies of Gateways are deployed.
func Features(deploys bool) []string {
	out := []string{
		"Gateway", "GatewayAddressEmpty", "GatewayHTTPListenerIsolation", "GatewayPort8080", "GatewayStaticAddresses", "TCPRoute", "TLSRouteModeMixed", "TLSRouteModeTerminate", "HTTPRoute", "GRPCRoute", "TLSRoute", "ReferenceGrant",
		"ListenerSet", "BackendTLSPolicy", "BackendTLSPolicySANValidation",
		"GatewayFrontendClientCertificateValidation", "GatewayFrontendClientCertificateValidationInsecureFallback",
		"HTTPRouteBackendProtocolH2C", "HTTPRouteBackendProtocolWebSocket", "HTTPRouteBackendRequestHeaderModification",
		"HTTPRouteBackendTimeout", "HTTPRouteCORS", "HTTPRouteDestinationPortMatching", "HTTPRouteHostRewrite",
		"HTTPRouteMethodMatching", "HTTPRouteNamedRouteRule", "HTTPRouteParentRefPort", "HTTPRoutePathRedirect",
		"HTTPRoutePathRewrite", "HTTPRoutePortRedirect", "HTTPRouteQueryParamMatching", "HTTPRouteRequestMirror",
		"HTTPRouteRequestMultipleMirrors", "HTTPRouteRequestPercentageMirror", "HTTPRouteRequestTimeout",
		"HTTPRouteResponseHeaderModification", "HTTPRouteSchemeRedirect", "HTTPRoute303RedirectStatusCode",
		"HTTPRoute307RedirectStatusCode", "HTTPRouteRetry", "HTTPRouteRetryBackendTimeout", "HTTPRouteRetryConnectionError", "HTTPRoute308RedirectStatusCode", "GRPCRouteNamedRouteRule",
	}
	if deploys {
		out = append(out, "GatewayInfrastructure")
	}
	slices.Sort(out)
	return out
}
