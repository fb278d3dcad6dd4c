// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authentication

import (
	"slices"
	"strconv"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	mutationrulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Tokens are the RequestAuthentications of a workload. The zero value has none.
type Tokens struct {
	list []*snapshot.RequestAuthentication
	// Key is equal for workloads with the same objects. It is empty without objects.
	Key string
	// Issuers are the issuers whose tokens may be valid, sorted and without duplicates.
	Issuers []string
}

// Of returns the RequestAuthentications of a proxy and those that name one of the services.
func Of(mesh *snapshot.Mesh, proxy *model.Proxy, services []model.Key) Tokens {
	t := Tokens{list: mesh.RequestAuthentications.For(proxy.Namespace, proxy.OwnLabels(), services)}
	if len(t.list) == 0 {
		return t
	}
	var key strings.Builder
	key.WriteString(strconv.Itoa(len(t.list)) + ":")
	for _, object := range t.list {
		key.WriteString(object.Key)
		for _, rule := range object.Rules {
			t.Issuers = append(t.Issuers, rule.GetIssuer())
		}
	}
	slices.Sort(t.Issuers)
	t.Issuers = slices.Compact(t.Issuers)
	t.Key = key.String()
	return t
}

// Filters are the filters that validate tokens.
type Filters struct {
	// HTTP are the filters for requests, in their order.
	HTTP []*hcmv3.HttpFilter
	// UnknownKeys has the requests whose token no known key verifies, if keys are fetched.
	UnknownKeys []*accesslogv3.AccessLog
	// Library are the filters for requests to gRPC servers without a proxy, and Unsupported are the
	// problems of objects that apply to one.
	Library     []*hcmv3.HttpFilter
	Unsupported []model.Problem
	// Sources are the objects of the rules.
	Sources xds.Sources
}

// The names of the filters.
const (
	jwtFilter      = envoyconf.TokenFilter
	mutationFilter = "envoy.filters.http.header_mutation"
)

// Filters returns the filters of the objects.
func (t Tokens) Filters() *Filters {
	out := &Filters{}
	var issuers []issuer
	for _, object := range t.list {
		out.Sources.AddConfigs(object.Config)
		for _, rule := range object.Rules {
			if i := newIssuer(rule); len(i.places) > 0 {
				issuers = append(issuers, i)
			}
		}
		if len(object.Rules) > 0 {
			out.Unsupported = append(out.Unsupported, unsupported(object))
		}
	}
	if len(issuers) == 0 {
		return out
	}
	out.Library = noTokens(issuers)
	slices.SortStableFunc(issuers, func(a, b issuer) int { return strings.Compare(a.rule.GetIssuer(), b.rule.GetIssuer()) })
	if headers := outputHeaders(issuers); len(headers) > 0 {
		out.HTTP = append(out.HTTP, envoyconf.RequestFilter(mutationFilter, removal(headers)))
	}
	if !samePlaces(issuers) {
		out.HTTP = append(out.HTTP, envoyconf.RequestFilter(jwtFilter+".every", everyToken(issuers)))
	}
	out.HTTP = append(out.HTTP, envoyconf.RequestFilter(jwtFilter, oneToken(issuers)))
	if slices.ContainsFunc(issuers, func(i issuer) bool { return i.rule.GetJwks() == "" }) {
		out.UnknownKeys = []*accesslogv3.AccessLog{envoyconf.UnknownKeyLog()}
	}
	return out
}

// samePlaces reports whether the tokens of all issuers are expected at the same places.
func samePlaces(issuers []issuer) bool {
	for _, i := range issuers[1:] {
		if !slices.Equal(i.places, issuers[0].places) {
			return false
		}
	}
	return true
}

// oneToken returns the filter that accepts requests with a valid token of one of the issuers and
// requests without a token. All tokens of a request must be of the same issuer, unless they are at
// places where the tokens of the first one are not expected; see [everyToken].
func oneToken(issuers []issuer) *jwtv3.JwtAuthentication {
	out := newFilter()
	var alternatives []*jwtv3.JwtRequirement
	for n, i := range issuers {
		alternatives = append(alternatives, out.add("origins-"+strconv.Itoa(n), i.provider()))
	}
	return out.require(optional(alternatives))
}

// everyToken returns the filter that refuses requests with an invalid token at any place. It
// changes nothing. It is needed if the places of issuers differ, because Envoy stops at the first
// issuer that accepts a request, and does not look at the places of the others.
func everyToken(issuers []issuer) *jwtv3.JwtAuthentication {
	out := newFilter()
	at := map[place][]*jwtv3.JwtRequirement{}
	var places []place
	for n, i := range issuers {
		for m, p := range i.places {
			if at[p] == nil {
				places = append(places, p)
			}
			at[p] = append(at[p], out.add("origins-"+strconv.Itoa(n)+"-"+strconv.Itoa(m), i.check(p)))
		}
	}
	var all []*jwtv3.JwtRequirement
	for _, p := range places {
		all = append(all, optional(at[p]))
	}
	return out.require(&jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAll{
		RequiresAll: &jwtv3.JwtRequirementAndList{Requirements: all}, // at least two: the places differ
	}})
}

// optional requires that one of the providers accepts the request, or that it has no token.
func optional(alternatives []*jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	missing := &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_AllowMissing{AllowMissing: &emptypb.Empty{}}}
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{
		RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: append(slices.Clone(alternatives), missing)},
	}}
}

// filter is a filter that is being built.
type filter struct{ *jwtv3.JwtAuthentication }

func newFilter() filter {
	return filter{&jwtv3.JwtAuthentication{
		Providers: map[string]*jwtv3.JwtProvider{},
		// Browsers send preflight requests without tokens.
		BypassCorsPreflight: true,
	}}
}

// add adds a provider and returns the requirement of its tokens.
func (f filter) add(name string, provider *jwtv3.JwtProvider) *jwtv3.JwtRequirement {
	f.Providers[name] = provider
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: name}}
}

// require makes a requirement apply to all requests, also to those whose path does not start with
// a slash.
func (f filter) require(r *jwtv3.JwtRequirement) *jwtv3.JwtAuthentication {
	f.Rules = []*jwtv3.RequirementRule{{
		Match:           &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
		RequirementType: &jwtv3.RequirementRule_Requires{Requires: r},
	}}
	return f.JwtAuthentication
}

// outputHeaders returns the headers that validated claims are written to.
func outputHeaders(issuers []issuer) []string {
	var out []string
	for _, i := range issuers {
		if h := i.payloadHeader(); h != "" {
			out = append(out, strings.ToLower(h))
		}
		for _, c := range i.claimHeaders() {
			out = append(out, strings.ToLower(c.GetHeaderName()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// removal returns the filter that removes headers from requests, so that no client can forge
// claims. Envoy itself does not remove those of issuers that it did not look for, nor those of
// preflight requests.
func removal(headers []string) *mutationv3.HeaderMutation {
	out := &mutationv3.HeaderMutation{Mutations: &mutationv3.Mutations{}}
	for _, h := range headers {
		out.Mutations.RequestMutations = append(out.Mutations.RequestMutations, &mutationrulesv3.HeaderMutation{
			Action: &mutationrulesv3.HeaderMutation_Remove{Remove: h},
		})
	}
	return out
}
