// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matchingv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	httpextauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkextauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// chain is a filter chain, compiled.
type chain struct {
	tls     *handshake
	stream  []step
	http    []step
	hcm     *hcmv3.HttpConnectionManager // nil for a port whose requests are not read
	skipped []string
}

// step is a filter that may refuse a request.
type step interface{ apply(f *facts, v *Verdict) }

// run applies filters until one of them refuses the request.
func (v *Verdict) run(steps []step, f *facts) {
	for _, s := range steps {
		if s.apply(f, v); !v.Allowed {
			return
		}
	}
}

// chain returns a chain, compiled once.
func (e *Envoy) chain(from *listenerv3.FilterChain) (*chain, error) {
	if c := e.chains[from]; c != nil {
		return c, nil
	}
	c := &chain{}
	var err error
	if c.tls, err = e.compiler.tlsOf(from); err != nil {
		return nil, err
	}
	for _, f := range from.GetFilters() {
		config := f.GetTypedConfig()
		if f.GetConfigDiscovery() != nil {
			config = e.extension(f.GetName())
		}
		if err := e.streamFilter(c, f.GetName(), config); err != nil {
			return nil, err
		}
	}
	e.chains[from] = c
	return c, nil
}

// message returns the configuration of a filter, or nil if it has none or it is of an unknown type.
func message(config *anypb.Any) any {
	m, err := config.UnmarshalNew()
	if err != nil {
		return nil
	}
	return m
}

func (e *Envoy) streamFilter(c *chain, name string, config *anypb.Any) error {
	switch m := message(config).(type) {
	case *hcmv3.HttpConnectionManager:
		c.hcm = m
		for _, f := range m.GetHttpFilters() {
			config := f.GetTypedConfig()
			if f.GetConfigDiscovery() != nil {
				config = e.extension(f.GetName())
			}
			if err := e.httpFilter(c, f.GetName(), config); err != nil {
				return err
			}
		}
	case *networkrbacv3.RBAC:
		s, err := e.rbac(name, m.GetRules(), m.GetShadowRules(), m.GetShadowRulesStatPrefix())
		c.stream = append(c.stream, s)
		return err
	case *networkextauthzv3.ExtAuthz:
		s, err := e.asks(m.GetGrpcService().GetEnvoyGrpc().GetClusterName(), m.GetFilterEnabledMetadata())
		c.stream = append(c.stream, s)
		return err
	default:
		if !harmless(config) {
			c.skipped = append(c.skipped, name)
		}
	}
	return nil
}

func (e *Envoy) httpFilter(c *chain, name string, config *anypb.Any) error {
	switch m := message(config).(type) {
	case *matchingv3.ExtensionWithMatcher:
		inner := &chain{}
		if err := e.httpFilter(inner, name, m.GetExtensionConfig().GetTypedConfig()); err != nil {
			return err
		}
		skips, err := e.compiler.skipping(m.GetXdsMatcher())
		if err != nil {
			return fmt.Errorf("read the matcher of the filter %s: %w", name, err)
		}
		c.http, c.skipped = append(c.http, &skippable{skips, inner.http}), append(c.skipped, inner.skipped...)
	case *httprbacv3.RBAC:
		s, err := e.rbac("envoy.filters.http.rbac", m.GetRules(), m.GetShadowRules(), m.GetShadowRulesStatPrefix())
		if m.GetMatcher() != nil || m.GetShadowMatcher() != nil {
			err = fmt.Errorf("the filter %s has a matcher tree, which is not supported", name)
		}
		c.http = append(c.http, s)
		return err
	case *jwtv3.JwtAuthentication:
		t, err := newTokens(name, m)
		c.http = append(c.http, validates{t})
		return err
	case *mutationv3.HeaderMutation:
		s := removes{}
		for _, one := range m.GetMutations().GetRequestMutations() {
			if one.GetRemove() == "" {
				return fmt.Errorf("the filter %s sets headers, which is not supported", name)
			}
			s = append(s, lower(one.GetRemove()))
		}
		c.http = append(c.http, s)
	case *httpextauthzv3.ExtAuthz:
		cluster := cmp.Or(m.GetGrpcService().GetEnvoyGrpc().GetClusterName(), m.GetHttpService().GetServerUri().GetCluster())
		s, err := e.asks(cluster, m.GetFilterEnabledMetadata())
		c.http = append(c.http, s)
		return err
	default:
		if !harmless(config) {
			c.skipped = append(c.skipped, name)
		}
	}
	return nil
}

// harmless reports whether a filter decides nothing about who may send a request.
func harmless(config *anypb.Any) bool {
	return slices.ContainsFunc([]string{
		".Router", ".Cors", ".HTTPFault", ".grpc_stats.v3.FilterConfig", ".GrpcWeb", ".set_filter_state.v3.Config", ".TcpProxy", ".MongoProxy", ".RedisProxy",
		".sni_dynamic_forward_proxy.v3.FilterConfig", ".header_to_metadata.v3.Config", ".StatefulSession",
	}, func(suffix string) bool { return strings.HasSuffix(config.GetTypeUrl(), suffix) })
}

// enforces is a filter with rules.
type enforces struct {
	filter string // the name under which it stores metadata
	rules  *ruleset
	shadow *ruleset
	prefix string // of the metadata of the shadow rules
}

func (e *Envoy) rbac(filter string, rules, shadow *rbacv3.RBAC, prefix string) (step, error) {
	s := &enforces{filter: filter, prefix: prefix}
	var err error
	if s.rules, err = e.compiler.rules(rules); err != nil {
		return s, err
	}
	s.shadow, err = e.compiler.rules(shadow)
	return s, err
}

func (s *enforces) apply(f *facts, v *Verdict) {
	s.enforce(f, v)
	if s.shadow == nil {
		return
	}
	// The rules of the same filter do not see this metadata.
	r, refused := s.shadow.refuses(f)
	result := "allowed"
	if refused {
		result = "denied"
	}
	f.set(s.filter, s.prefix+shadowResult, result)
	f.set(s.filter, s.prefix+shadowRule, r.name)
	if refused && !strings.HasPrefix(s.prefix, authorizerPrefix) {
		v.Trials = append(v.Trials, Trial{r.name})
	}
}

// enforce applies the rules that are enforced.
func (s *enforces) enforce(f *facts, v *Verdict) {
	if s.rules == nil {
		return
	}
	r, refused := s.rules.refuses(f)
	switch {
	case !refused && r.matcher == nil:
	case !refused && s.rules.action == rbacv3.RBAC_ALLOW:
		v.By, v.Rule, v.Matched = ByRule, r.name, r.attributes(f)
	case !refused: // a rule that only logs
	case r.matcher != nil:
		*v = Verdict{HTTP: v.HTTP, Path: v.Path, Asked: v.Asked, Trials: v.Trials, Skipped: v.Skipped, By: ByRule, Rule: r.name, Matched: r.attributes(f)}
	default:
		*v = Verdict{HTTP: v.HTTP, Path: v.Path, Asked: v.Asked, Trials: v.Trials, Skipped: v.Skipped, By: ByNoRule, Candidates: s.rules.candidates(f)}
	}
	if refused && v.HTTP && f.header != nil {
		v.Status = http.StatusForbidden
	}
}

// refuses reports whether the rules refuse a request, and returns the rule that matches.
func (s *ruleset) refuses(f *facts) (r rule, refused bool) {
	r, matched := s.first(f)
	switch s.action {
	case rbacv3.RBAC_ALLOW:
		return r, !matched
	case rbacv3.RBAC_DENY:
		return r, matched
	case rbacv3.RBAC_LOG:
	}
	return r, false
}

// The keys of the metadata of shadow rules end with these words. authorizerPrefix begins those of the
// rules that enable a filter which asks an authorizer.
const (
	shadowResult     = "shadow_engine_result"
	shadowRule       = "shadow_effective_policy_id"
	authorizerPrefix = "istio_ext_authz_"
)

// asks is a filter that asks an external authorizer.
type asks struct {
	cluster string
	when    func(*facts) bool // nil for always
	// filter and prefix say where the filter whose rules enable this one stores metadata.
	filter, prefix string
}

func (e *Envoy) asks(cluster string, when *matcherv3.MetadataMatcher) (step, error) {
	s := &asks{cluster: cluster, filter: when.GetFilter()}
	if when == nil {
		return s, nil
	}
	s.prefix = strings.TrimSuffix(pathOf(when)[0], shadowResult)
	var err error
	_, s.when, err = e.compiler.inMetadata(when)
	return s, err
}

func (s *asks) apply(f *facts, v *Verdict) {
	if s.when == nil || s.when(f) {
		name, _ := f.metadata[s.filter][s.prefix+shadowRule].(string)
		provider := strings.TrimSuffix(strings.TrimPrefix(s.prefix, authorizerPrefix), "_")
		v.Asked = append(v.Asked, Asked{Provider: provider, Cluster: s.cluster, Rule: name})
	}
}

// validates is a filter that validates tokens.
type validates struct{ *tokens }

func (s validates) apply(f *facts, v *Verdict) {
	if no := s.tokens.apply(f); no != nil {
		*v = Verdict{HTTP: true, Path: v.Path, Asked: v.Asked, Skipped: v.Skipped, By: ByToken, Status: no.status, Reason: no.reason}
	}
}

// removes is a filter that removes headers.
type removes []string

func (s removes) apply(f *facts, _ *Verdict) {
	for _, name := range s {
		delete(f.header, name)
	}
}
