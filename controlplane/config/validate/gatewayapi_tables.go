// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"reflect"
	"regexp"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// textRule says what a text has to be.
type textRule struct {
	// least and most bound its length in characters; a most of 0 means any.
	least, most int
	pattern     *regexp.Regexp
	// values are all that is allowed; empty means that pattern decides.
	values []string
	// want ends the sentence "write …".
	want string
}

// numberRule says what a number has to be. The zero rule allows any.
type numberRule struct {
	bounded     bool
	least, most int64
	// values are all that is allowed; empty means that the bounds decide.
	values []int64
}

const (
	label     = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	subdomain = label + `(\.` + label + `)*`
	// longest is how long names, hosts and similar values may be.
	longest = 253
)

var (
	pathPattern      = regexp.MustCompile(`^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+$`)
	hostPattern      = regexp.MustCompile(`^(\*\.)?` + subdomain + `$`)
	subdomainPattern = regexp.MustCompile(`^` + subdomain + `$`)
	groupPattern     = regexp.MustCompile(`^$|^` + subdomain + `$`)
	namePattern      = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+\\-.^_`|~]+$")
	keyPattern       = regexp.MustCompile(`^(` + subdomain + `/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$`)

	matchTypes   = oneOf("Exact", "RegularExpression")
	headerValue  = textRule{least: 1, most: 4096, want: "a value"} // the experimental channel takes less than the standard one
	objectName   = textRule{least: 1, most: longest, want: "the name of an object"}
	headerNames  = textRule{least: 1, most: 256, pattern: namePattern, want: "a name of letters, digits and !#$%&'*+-.^_`|~, for example x-user"}
	anyShortText = textRule{most: 1024, want: "a shorter text"}
)

// typeRule returns the rule of a type.
func typeRule[T any]() textRule { return textRules[reflect.TypeFor[T]()] }

func oneOf(values ...string) textRule {
	return textRule{values: values, want: "one of " + strings.Join(values, ", ")}
}

// textRules are the rules of the types that are text. It is never written to.
var textRules = map[reflect.Type]textRule{
	reflect.TypeFor[gatewayv1.AbsoluteURI](): {
		least: 1, most: longest, pattern: regexp.MustCompile(`^(([^:/?#]+):)(//([^/?#]*))([^?#]*)(\?([^#]*))?(#(.*))?`),
		want: "a URI with its scheme, such as spiffe://cluster.local/ns/shop/sa/catalog",
	},
	reflect.TypeFor[gatewayv1.AddressType](): {
		// The definition's pattern binds its ^ to the first word only.
		least: 1, most: longest, pattern: regexp.MustCompile(`^Hostname|IPAddress|NamedAddress|` + subdomain + `\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$`),
		want: "IPAddress, Hostname, NamedAddress or domain/name",
	},
	reflect.TypeFor[gatewayv1.AnnotationValue](): {most: 4096, want: "a text"},
	reflect.TypeFor[gatewayv1.CORSOrigin](): {
		least: 1, most: longest, pattern: regexp.MustCompile(`(^\*$)|(^(http(s)?):\/\/(((\*\.)?([a-zA-Z0-9\-]+\.)*[a-zA-Z0-9-]+|\*)(:([0-9]{1,5}))?)$)`),
		want: "\"*\" or an origin such as https://shop.example.com",
	},
	reflect.TypeFor[gatewayv1.CookieLifetimeType](): oneOf("Permanent", "Session"),
	reflect.TypeFor[gatewayv1.Duration](): {
		pattern: regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`),
		want:    "whole hours, minutes, seconds and milliseconds, for example 10s or 1m30s",
	},
	reflect.TypeFor[gatewayv1.FrontendValidationModeType](): oneOf("AllowValidOnly", "AllowInsecureFallback"),
	reflect.TypeFor[gatewayv1.GRPCHeaderMatchType]():        matchTypes,
	reflect.TypeFor[gatewayv1.GRPCHeaderName]():             headerNames,
	reflect.TypeFor[gatewayv1.GRPCMethodMatchType]():        matchTypes,
	reflect.TypeFor[gatewayv1.GRPCRouteFilterType]():        oneOf("RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror", "ExtensionRef"),
	reflect.TypeFor[gatewayv1.GatewayController](): {
		least: 1, most: longest, pattern: regexp.MustCompile(`^` + subdomain + `\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$`),
		want: "a domain and a path, such as istio.io/gateway-controller",
	},
	reflect.TypeFor[gatewayv1.GatewayDefaultScope](): oneOf("All", "None"),
	reflect.TypeFor[gatewayv1.Group]():               {most: longest, pattern: groupPattern, want: "an API group such as gateway.networking.k8s.io, or \"\" for that of Service"},
	reflect.TypeFor[gatewayv1.HTTPHeaderName]():      headerNames,
	reflect.TypeFor[gatewayv1.HTTPMethod]():          oneOf("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"),
	reflect.TypeFor[gatewayv1.HTTPMethodWithWildcard](): oneOf("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE",
		"PATCH", "*"),
	reflect.TypeFor[gatewayv1.HTTPPathModifierType]():          oneOf("ReplaceFullPath", "ReplacePrefixMatch"),
	reflect.TypeFor[gatewayv1.HTTPRouteExternalAuthProtocol](): oneOf("HTTP", "GRPC"),
	reflect.TypeFor[gatewayv1.HTTPRouteFilterType](): oneOf("RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror", "RequestRedirect",
		"URLRewrite", "ExtensionRef", "CORS", "ExternalAuth"),
	reflect.TypeFor[gatewayv1.HeaderMatchType](): matchTypes,
	reflect.TypeFor[gatewayv1.Hostname]():        {least: 1, most: longest, pattern: hostPattern, want: "a host name in lower case, such as shop.example.com or *.example.com"},
	reflect.TypeFor[gatewayv1.Kind](): {
		least: 1, most: maxLabel, pattern: regexp.MustCompile(`^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`),
		want: "a kind, such as Service",
	},
	reflect.TypeFor[gatewayv1.LabelValue](): {
		most: maxLabel, pattern: regexp.MustCompile(`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`),
		want: "letters, digits, \"-\", \"_\" and \".\", with a letter or digit at both ends",
	},
	reflect.TypeFor[gatewayv1.Namespace]():       {least: 1, most: maxLabel, pattern: regexp.MustCompile(`^` + label + `$`), want: "the name of a namespace"},
	reflect.TypeFor[gatewayv1.ObjectName]():      objectName,
	reflect.TypeFor[gatewayv1.PathMatchType]():   oneOf("Exact", "PathPrefix", "RegularExpression"),
	reflect.TypeFor[gatewayv1.PreciseHostname](): {least: 1, most: longest, pattern: subdomainPattern, want: "a host name in lower case without wildcard, such as shop.example.com"},
	reflect.TypeFor[gatewayv1.ProtocolType](): {
		least: 1, most: 255, pattern: regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$|` + subdomain + `\/[A-Za-z0-9]+$`),
		want: "HTTP, HTTPS, TLS, TCP, UDP or domain/name",
	},
	reflect.TypeFor[gatewayv1.QueryParamMatchType](): matchTypes,
	reflect.TypeFor[gatewayv1.SectionName](): {
		least: 1, most: longest, pattern: subdomainPattern,
		want: "a name of lower-case letters, digits, \"-\" and \".\", with a letter or digit at both ends",
	},
	reflect.TypeFor[gatewayv1.SessionPersistenceType](): oneOf("Cookie", "Header"),
	reflect.TypeFor[gatewayv1.SubjectAltNameType]():     oneOf("Hostname", "URI"),
	reflect.TypeFor[gatewayv1.TLSModeType]():            oneOf("Terminate", "Passthrough"),
	reflect.TypeFor[gatewayv1.WellKnownCACertificatesType](): {
		least: 1, most: longest, pattern: regexp.MustCompile(`^(System|(` + subdomain + `/([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]))$`),
		want: "System",
	},
}

// fieldTexts are the rules of fields whose type does not say it all. It is
// never written to.
var fieldTexts = map[string]textRule{
	"GatewayClassSpec.description":        {most: 64, want: "a shorter text"},
	"ParametersReference.name":            objectName,
	"LocalParametersReference.name":       objectName,
	"GatewaySpecAddress.value":            {most: longest, want: "a shorter text"},
	"GRPCMethodMatch.service":             anyShortText,
	"GRPCMethodMatch.method":              anyShortText,
	"GRPCHeaderMatch.value":               headerValue,
	"HTTPHeader.value":                    headerValue,
	"HTTPHeaderMatch.value":               headerValue,
	"HTTPQueryParamMatch.value":           {least: 1, most: 1024, want: "a value"},
	"HTTPPathMatch.value":                 anyShortText,
	"HTTPPathModifier.replaceFullPath":    anyShortText,
	"HTTPPathModifier.replacePrefixMatch": anyShortText,
	"HTTPRequestRedirectFilter.scheme":    oneOf("http", "https"),
	"HTTPAuthConfig.path":                 {most: 1024, pattern: pathPattern, want: "a path, such as /check"},
	"SessionPersistence.sessionName":      {most: 128, want: "a shorter text"},
	"RouteNamespaces.from":                oneOf("All", "Selector", "Same"),
	"ListenerNamespaces.from":             oneOf("All", "Selector", "Same", "None"),
}

var portNumber = numberRule{bounded: true, least: 1, most: maxPort}

// numberRules are the rules of the fields that are numbers. It is never
// written to.
var numberRules = map[string]numberRule{
	"BackendObjectReference.port":          portNumber,
	"HTTPRequestRedirectFilter.port":       portNumber,
	"Listener.port":                        portNumber,
	"ListenerEntry.port":                   portNumber,
	"ParentReference.port":                 portNumber,
	"TLSPortConfig.port":                   portNumber,
	"BackendRef.weight":                    {bounded: true, most: 1_000_000},
	"Fraction.numerator":                   {bounded: true},
	"Fraction.denominator":                 {bounded: true, least: 1},
	"HTTPCORSFilter.maxAge":                {bounded: true, least: 1},
	"HTTPRequestMirrorFilter.percent":      {bounded: true, most: 100},
	"HTTPRequestRedirectFilter.statusCode": {values: []int64{301, 302, 303, 307, 308}},
	"HTTPRouteRetry.attempts":              {bounded: true, least: 1},
	"HTTPRouteRetry.codes":                 {bounded: true, least: 400, most: 599},
}

// listRules are the rules of the fields that are lists or mappings. It is
// never written to.
var listRules = map[string]limits{
	"AllowedRoutes.kinds":                          {most: 8},
	"BackendTLSPolicySpec.options":                 {most: 16},
	"BackendTLSPolicySpec.targetRefs":              {least: 1, most: 16},
	"BackendTLSPolicyValidation.caCertificateRefs": {most: 8},
	"BackendTLSPolicyValidation.subjectAltNames":   {most: 5},
	"CommonRouteSpec.parentRefs":                   {most: 32},
	"FrontendTLSConfig.perPort":                    {most: 64, unique: "port"},
	"FrontendTLSValidation.caCertificateRefs":      {least: 1, most: 16},
	"GRPCAuthConfig.allowedHeaders":                {most: 64, unique: wholeItem},
	"GRPCBackendRef.filters":                       {most: 16},
	"GRPCRouteMatch.headers":                       {most: 16, unique: "name"},
	"GRPCRouteRule.backendRefs":                    {most: 16},
	"GRPCRouteRule.filters":                        {most: 16},
	"GRPCRouteRule.matches":                        {most: 64},
	"GRPCRouteSpec.hostnames":                      {most: 16},
	"GRPCRouteSpec.rules":                          {most: 16},
	"GatewayInfrastructure.annotations":            {most: 16},
	"GatewayInfrastructure.labels":                 {most: 8},
	"GatewaySpec.addresses":                        {most: 16},
	"GatewaySpec.listeners":                        {least: 1, most: 64, unique: "name"},
	"HTTPAuthConfig.allowedHeaders":                {most: 64, unique: wholeItem},
	"HTTPAuthConfig.allowedResponseHeaders":        {most: 64, unique: wholeItem},
	"HTTPBackendRef.filters":                       {most: 16},
	"HTTPCORSFilter.allowHeaders":                  {most: 64, unique: wholeItem},
	"HTTPCORSFilter.allowMethods":                  {most: 9, unique: wholeItem},
	"HTTPCORSFilter.allowOrigins":                  {most: 64, unique: wholeItem},
	"HTTPCORSFilter.exposeHeaders":                 {most: 64, unique: wholeItem},
	"HTTPHeaderFilter.add":                         {most: 16, unique: "name"},
	"HTTPHeaderFilter.remove":                      {most: 16, unique: wholeItem},
	"HTTPHeaderFilter.set":                         {most: 16, unique: "name"},
	"HTTPRouteMatch.headers":                       {most: 16, unique: "name"},
	"HTTPRouteMatch.queryParams":                   {most: 16, unique: "name"},
	"HTTPRouteRetry.codes":                         {unique: wholeItem},
	"HTTPRouteRule.backendRefs":                    {most: 16},
	"HTTPRouteRule.filters":                        {most: 16},
	"HTTPRouteRule.matches":                        {most: 64},
	"HTTPRouteSpec.hostnames":                      {most: 16},
	"HTTPRouteSpec.rules":                          {least: 1, most: 16},
	"ListenerSetSpec.listeners":                    {least: 1, most: 64, unique: "name"},
	"ListenerTLSConfig.certificateRefs":            {most: 64},
	"ListenerTLSConfig.options":                    {most: 16},
	"ReferenceGrantSpec.from":                      {least: 1, most: 16},
	"ReferenceGrantSpec.to":                        {least: 1, most: 16},
	"TCPRouteRule.backendRefs":                     {least: 1, most: 16},
	"TCPRouteSpec.rules":                           {least: 1, most: 1},
	"TLSRouteRule.backendRefs":                     {least: 1, most: 16},
	"TLSRouteSpec.hostnames":                       {least: 1, most: 1024},
	"TLSRouteSpec.rules":                           {least: 1, most: 1},
	"UDPRouteRule.backendRefs":                     {least: 1, most: 16},
	"UDPRouteSpec.rules":                           {least: 1, most: 1},
}

func preset[T any](v T) func() any { return func() any { return v } }

// defaultValues are the fields that get a value when they are left out. Lists
// come new each time. It is never written to.
var defaultValues = map[string]func() any{
	"AllowedListeners.namespaces":          preset(gatewayv1.ListenerNamespaces{}),
	"AllowedRoutes.namespaces":             preset(gatewayv1.RouteNamespaces{}),
	"BackendObjectReference.group":         preset(gatewayv1.Group("")),
	"BackendObjectReference.kind":          preset(gatewayv1.Kind("Service")),
	"BackendRef.weight":                    preset(int32(1)),
	"CookieConfig.lifetimeType":            preset(gatewayv1.SessionCookieLifetimeType),
	"Fraction.denominator":                 preset(int32(100)),
	"FrontendTLSValidation.mode":           preset(gatewayv1.AllowValidOnly),
	"GRPCHeaderMatch.type":                 preset(gatewayv1.GRPCHeaderMatchExact),
	"GRPCMethodMatch.type":                 preset(gatewayv1.GRPCMethodMatchExact),
	"GatewaySpecAddress.type":              preset(gatewayv1.IPAddressType),
	"HTTPCORSFilter.maxAge":                preset(int32(5)),
	"HTTPHeaderMatch.type":                 preset(gatewayv1.HeaderMatchExact),
	"HTTPPathMatch.type":                   preset(gatewayv1.PathMatchPathPrefix),
	"HTTPPathMatch.value":                  preset("/"),
	"HTTPQueryParamMatch.type":             preset(gatewayv1.QueryParamMatchExact),
	"HTTPRequestRedirectFilter.statusCode": preset(302),
	"HTTPRouteMatch.path":                  preset(gatewayv1.HTTPPathMatch{}),
	"HTTPRouteRule.matches":                func() any { return []gatewayv1.HTTPRouteMatch{{}} },
	"HTTPRouteSpec.rules":                  func() any { return []gatewayv1.HTTPRouteRule{{}} },
	"Listener.allowedRoutes":               preset(gatewayv1.AllowedRoutes{}),
	"ListenerEntry.allowedRoutes":          preset(gatewayv1.AllowedRoutes{}),
	"ListenerNamespaces.from":              preset(gatewayv1.NamespacesFromNone),
	"ListenerTLSConfig.mode":               preset(gatewayv1.TLSModeTerminate),
	"ParentGatewayReference.group":         preset(gatewayv1.Group(gatewayv1.GroupName)),
	"ParentGatewayReference.kind":          preset(gatewayv1.Kind("Gateway")),
	"ParentReference.group":                preset(gatewayv1.Group(gatewayv1.GroupName)),
	"ParentReference.kind":                 preset(gatewayv1.Kind("Gateway")),
	"RouteGroupKind.group":                 preset(gatewayv1.Group(gatewayv1.GroupName)),
	"RouteNamespaces.from":                 preset(gatewayv1.NamespacesFromSame),
	"SecretObjectReference.group":          preset(gatewayv1.Group("")),
	"SecretObjectReference.kind":           preset(gatewayv1.Kind("Secret")),
	"SessionPersistence.type":              preset(gatewayv1.CookieBasedSessionPersistence),
}
