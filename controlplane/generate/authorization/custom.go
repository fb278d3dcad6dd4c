// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httpextauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkextauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// An external authorizer is asked about the requests that the rules of its policies match. A filter
// evaluates the rules without enforcing them and stores the result in the metadata of the request,
// which enables the filter that asks. The metadata has a key for each authorizer, so that each
// decides about what its own rules match.

// authorizer is an external authorizer and the policies that name it.
type authorizer struct {
	snapshot.Authorizer
	name     string
	err      error // why it cannot be asked
	policies []*snapshot.AuthorizationPolicy
}

// authorizersOf returns the authorizers that policies name, in the order of the policies.
func authorizersOf(mesh *snapshot.Mesh, list []*snapshot.AuthorizationPolicy, proxy *model.Proxy, sidecar *snapshot.Sidecar) []*authorizer {
	var out []*authorizer
	for _, policy := range list {
		if policy.Spec.GetAction() != securityv1beta1.AuthorizationPolicy_CUSTOM {
			continue
		}
		name := policy.Spec.GetProvider().GetName()
		i := slices.IndexFunc(out, func(a *authorizer) bool { return a.name == name })
		if i < 0 {
			i = len(out)
			a := &authorizer{name: name}
			a.Authorizer, a.err = mesh.Authorizer(name, proxy.Namespace, sidecar)
			if a.err == nil && a.Service.ResolutionFor(proxy) == model.ResolutionPassthrough {
				a.err = fmt.Errorf("the proxy cannot choose an endpoint of the service %q: use one that is not headless and whose resolution is not NONE", a.Service.Hostname)
			}
			out = append(out, a)
		}
		out[i].policies = append(out[i].policies, policy)
	}
	return out
}

// key is equal for authorizers that are asked in the same way, apart from the mesh config.
func (a *authorizer) key() string {
	if a.err != nil {
		return strconv.Quote(a.name) + "=!" + strconv.Quote(a.err.Error())
	}
	return strconv.Quote(a.name) + "=" + a.cluster() + "@" + a.Service.Source.String()
}

func (a *authorizer) cluster() string {
	return envoyconf.OutboundName(a.Port.Number, "", a.Service.Hostname)
}

// custom returns the step of the policies with external authorizers.
func custom() step {
	return step{action: securityv1beta1.AuthorizationPolicy_CUSTOM, rbac: rbacv3.RBAC_DENY}
}

// addCustom adds the filters that ask external authorizers. What the rules match is denied if the
// authorizer cannot be asked.
func (out *Filters) addCustom(asked []*authorizer, base converter) {
	if len(asked) == 0 {
		return
	}
	var all, deniedRequests, deniedConnections []*snapshot.AuthorizationPolicy
	var matches, asks []*hcmv3.HttpFilter
	var streamMatches, streamAsks []*listenerv3.Filter
	for _, a := range asked {
		all = append(all, a.policies...)
		if a.err != nil {
			deniedRequests = append(deniedRequests, a.policies...)
			deniedConnections = append(deniedConnections, a.policies...)
			continue
		}
		prefix := "istio_ext_authz_" + a.name + "_"
		matches = append(matches, envoyconf.RequestFilter(httpRBAC, &httprbacv3.RBAC{ShadowRules: custom().rules(a.policies, base, ofRequests), ShadowRulesStatPrefix: prefix}))
		asks = append(asks, envoyconf.RequestFilter("envoy.filters.http.ext_authz", a.http(matched(httpRBAC, prefix))))
		if a.Provider.GetEnvoyExtAuthzGrpc() == nil {
			deniedConnections = append(deniedConnections, a.policies...) // it reads HTTP only
			continue
		}
		streamMatches = append(streamMatches, streamFilter(&networkrbacv3.RBAC{
			StatPrefix: "tcp.", ShadowRules: custom().rules(a.policies, base, ofConnections), ShadowRulesStatPrefix: prefix,
		}))
		streamAsks = append(streamAsks, &listenerv3.Filter{Name: "envoy.filters.network.ext_authz", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: envoyconf.Pack(a.stream(matched(streamRBAC, prefix)))}})
	}
	if rules := custom().rules(deniedRequests, base, ofRequests); rules != nil {
		out.External = append(out.External, envoyconf.RequestFilter(httpRBAC, &httprbacv3.RBAC{Rules: rules}))
	}
	// All rules are evaluated before an authorizer changes the request.
	out.External = slices.Concat(out.External, matches, asks)
	if rules := custom().rules(deniedConnections, base, ofConnections); rules != nil {
		out.Stream = append(out.Stream, streamFilter(&networkrbacv3.RBAC{StatPrefix: "tcp.", Rules: rules}))
	}
	out.Stream = slices.Concat(out.Stream, streamMatches, streamAsks)
	// gRPC libraries ask no authorizer.
	out.addLibrary(custom(), all, base)
}

// matched returns the matcher of the metadata that a filter sets if shadow rules with a prefix
// match.
func matched(filter, prefix string) *matcherv3.MetadataMatcher {
	return &matcherv3.MetadataMatcher{
		Filter: filter,
		Path:   []*matcherv3.MetadataMatcher_PathSegment{{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: prefix + "shadow_engine_result"}}},
		Value:  &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: envoyconf.Exactly("denied")}},
	}
}

// settings returns the fields that both kinds of authorizers have.
func (a *authorizer) settings() meshconfig.Authorizer { return meshconfig.AuthorizerOf(a.Provider) }

// defaultTimeout bounds the answer of an authorizer without a timeout.
const defaultTimeout = 10 * time.Minute

func (a *authorizer) timeout() *durationpb.Duration {
	return cmp.Or(a.settings().GetTimeout(), durationpb.New(defaultTimeout))
}

// address returns the host and port of the authorizer.
func (a *authorizer) address() string { return envoyconf.HostPort(a.Service.Hostname, a.Port.Number) }

func (a *authorizer) grpc() *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: a.cluster(), Authority: a.Service.Hostname}},
		Timeout:         a.timeout(),
	}
}

// stream returns the filter that asks about connections.
func (a *authorizer) stream(when *matcherv3.MetadataMatcher) *networkextauthzv3.ExtAuthz {
	return &networkextauthzv3.ExtAuthz{
		StatPrefix: "tcp.", GrpcService: a.grpc(), FailureModeAllow: a.settings().GetFailOpen(),
		TransportApiVersion: corev3.ApiVersion_V3, FilterEnabledMetadata: when,
	}
}

// http returns the filter that asks about requests.
func (a *authorizer) http(when *matcherv3.MetadataMatcher) *httpextauthzv3.ExtAuthz {
	s := a.settings()
	out := &httpextauthzv3.ExtAuthz{
		FailureModeAllow: s.GetFailOpen(), ClearRouteCache: s.GetClearRouteCache(),
		TransportApiVersion: corev3.ApiVersion_V3, FilterEnabledMetadata: when,
	}
	if n, err := strconv.ParseInt(s.GetStatusOnError(), 10, 32); err == nil {
		out.StatusOnError = &typev3.HttpStatus{Code: typev3.StatusCode(n)}
	}
	if b := s.GetIncludeRequestBodyInCheck(); b != nil {
		out.WithRequestBody = &httpextauthzv3.BufferSettings{MaxRequestBytes: b.GetMaxRequestBytes(), AllowPartialMessage: b.GetAllowPartialMessage(), PackAsBytes: b.GetPackAsBytes()}
	}
	h := a.Provider.GetEnvoyExtAuthzHttp()
	if h == nil {
		out.Services = &httpextauthzv3.ExtAuthz_GrpcService{GrpcService: a.grpc()}
		return out
	}
	if b := out.GetWithRequestBody(); b != nil {
		b.PackAsBytes = false // has no effect over HTTP
	}
	included := h.GetIncludeRequestHeadersInCheck()
	if len(included) == 0 {
		included = h.GetIncludeHeadersInCheck() //lint:ignore SA1019 mesh configs may still contain it
	}
	out.AllowedHeaders = headers(included)
	out.Services = &httpextauthzv3.ExtAuthz_HttpService{HttpService: a.service(h)}
	return out
}

func (a *authorizer) service(h *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider) *httpextauthzv3.HttpService {
	out := &httpextauthzv3.HttpService{
		ServerUri: &corev3.HttpUri{
			Uri: "http://" + a.address(), Timeout: a.timeout(),
			HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: a.cluster()},
		},
		PathPrefix: h.GetPathPrefix(),
		AuthorizationResponse: &httpextauthzv3.AuthorizationResponse{
			AllowedUpstreamHeaders:        headers(h.GetHeadersToUpstreamOnAllow()),
			AllowedClientHeaders:          headers(h.GetHeadersToDownstreamOnDeny()),
			AllowedClientHeadersOnSuccess: headers(h.GetHeadersToDownstreamOnAllow()),
		},
	}
	added := h.GetIncludeAdditionalHeadersInCheck()
	for _, name := range slices.Sorted(maps.Keys(added)) {
		if out.AuthorizationRequest == nil {
			out.AuthorizationRequest = &httpextauthzv3.AuthorizationRequest{}
		}
		out.AuthorizationRequest.HeadersToAdd = append(out.AuthorizationRequest.HeadersToAdd, &corev3.HeaderValue{Key: name, Value: added[name]})
	}
	return out
}

// headers returns the matcher of the names of headers, or nil if there are none.
func headers(names []string) *matcherv3.ListStringMatcher {
	if len(names) == 0 {
		return nil
	}
	out := &matcherv3.ListStringMatcher{}
	for _, name := range names {
		out.Patterns = append(out.Patterns, text(strings.ToLower(name), true))
	}
	return out
}
