// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authentication

import (
	"regexp"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// A gRPC server without a proxy validates no tokens, but its application may rely on their
// validation. Therefore, requests with a token are refused, as if every token was invalid.

func unsupported(object *snapshot.RequestAuthentication) model.Problem {
	return model.Problem{
		Object: object.Config.Key, Source: object.Config.Source, Warning: true,
		Reason: "spec.jwtRules: a gRPC server without a proxy validates no tokens: there, requests with a token are refused; inject a proxy into the workload, or exclude it by spec.selector",
	}
}

// noTokens returns the filter that refuses requests with something at a place of tokens, or none if
// there is no such place. Requests to methods of gRPC have no parameters.
func noTokens(issuers []issuer) []*hcmv3.HttpFilter {
	var present []*rbacv3.Principal
	seen := map[string]bool{}
	add := func(key string, p *rbacv3.Principal) {
		if !seen[key] {
			seen[key] = true
			present = append(present, p)
		}
	}
	for _, i := range issuers {
		for _, h := range i.headers {
			name, prefix := strings.ToLower(h.GetName()), strings.TrimSpace(h.GetValuePrefix())
			add(name+"="+prefix, inHeaderOf(name, prefix))
		}
		for _, p := range i.places {
			if p.kind == inCookie {
				add("cookie="+p.name, inHeaderOf("cookie", p.name+"="))
			}
		}
	}
	if len(present) == 0 {
		return nil
	}
	return []*hcmv3.HttpFilter{envoyconf.RequestFilter("envoy.filters.http.rbac.tokens", &httprbacv3.RBAC{Rules: &rbacv3.RBAC{
		Action: rbacv3.RBAC_DENY,
		Policies: map[string]*rbacv3.Policy{"tokens": {
			Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}},
			Principals:  present,
		}},
	}})}
}

// inHeaderOf matches requests with a header that contains a text. gRPC libraries reject rules with
// some headers; such a rule matches everything.
func inHeaderOf(name, text string) *rbacv3.Principal {
	if strings.HasPrefix(name, "grpc-") || strings.HasPrefix(name, ":") {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: &routev3.HeaderMatcher{
		Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: containing(text)},
	}}}
}

func containing(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
		SafeRegex: &matcherv3.RegexMatcher{Regex: "(?is).*" + regexp.QuoteMeta(text) + ".*"},
	}}
}
