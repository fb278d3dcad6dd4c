// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/internal/connlimit"
)

// callerEnvironment is the part of the environment about who may call.
type callerEnvironment struct {
	jwtRule       string
	issuer        string
	audience      string
	hosts         []string // that may be asked for keys, beside those that follow from the rules
	kubeAudiences []string
	needsAudience bool
}

// callerVariables are the rows of the table about who may call.
func callerVariables() []variable {
	return []variable{
		{"JWT_RULE", "", "who may call with a token: Istio's JWTRule as JSON (issuer, audiences, jwks or jwksUri with file:// or https://; without keys, the issuer is asked where they are)", text(func(e *environment) *string { return &e.callers.jwtRule })},
		{"TOKEN_ISSUER", "", "issuer of tokens that may call, beside JWT_RULE, whose keys are found by OpenID Connect Discovery; AUDIENCE is needed too", text(func(e *environment) *string { return &e.callers.issuer })},
		{"AUDIENCE", "", "what tokens of TOKEN_ISSUER must be for", text(func(e *environment) *string { return &e.callers.audience })},
		{"OUTRIGGER_JWT_HOSTS", "", "hosts, as host or host:port with commas between, that may be asked for keys of tokens beside that of the issuer and of jwksUri; naming localhost or an address of this machine also allows addresses of this machine", func(e *environment, s string) error {
			e.callers.hosts = names(s)
			return nil
		}},
		{"TOKEN_AUDIENCES", "istio-ca", "with Kubernetes: what a token of a service account must be for, one of these with commas between", func(e *environment, s string) error {
			if e.callers.kubeAudiences = names(s); len(e.callers.kubeAudiences) == 0 {
				return fmt.Errorf("%q names no audience: write for example istio-ca", s)
			}
			return nil
		}},
		{"REQUIRE_3P_TOKEN", "false", "with Kubernetes: true refuses tokens without any audience, which old versions of Kubernetes put into each pod", boolean(func(e *environment) *bool { return &e.callers.needsAudience })},
	}
}

// names splits a list with commas.
func names(list string) (out []string) {
	for _, name := range strings.Split(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// newAuthenticator takes client certificates of the mesh, tokens where a rule
// says whose, and tokens that the cluster's API server knows.
func (s *server) newAuthenticator(f flags, env environment, reg prometheus.Registerer) (authn.Authenticator, error) {
	log := s.log.With("component", "authn")
	metrics, err := authn.NewMetrics(reg)
	if err != nil {
		return nil, err
	}
	if err := s.clients.trust(s.mesh); err != nil {
		return nil, err
	}
	methods := []authn.Authenticator{&s.clients}
	rules, err := tokenRules(env.callers)
	if err != nil {
		return nil, err
	}
	for _, rule := range rules {
		rule.allow(env.callers.hosts)
		rule.cfg.TrustDomain, rule.cfg.Logger, rule.cfg.Metrics = s.mesh.GetTrustDomain(), log, metrics
		token, err := authn.NewJWT(rule.cfg)
		if err != nil {
			return nil, fmt.Errorf("environment variable %s: %w", rule.name, err)
		}
		s.tokens = append(s.tokens, token)
		methods = append(methods, token)
	}
	if s.kube == nil {
		return authn.Any(s.exceptDenied(methods)...), nil
	}
	review, err := authn.NewKubernetes(authn.KubernetesConfig{
		TrustDomain: s.mesh.GetTrustDomain(), Audiences: env.callers.kubeAudiences, AllowUnbound: !env.callers.needsAudience,
		Reviewer: func(cluster string) authn.Reviewer {
			if !isCluster(cluster, f, env) {
				return nil
			}
			return s.kube
		},
		Logger: log, Metrics: metrics,
	})
	if err != nil {
		return nil, err
	}
	return authn.Any(s.exceptDenied(append(methods, review))...), nil
}

// exceptDenied has each method refuse callers on the deny list. One whose
// certificate is denied can still prove its identity in another way.
func (s *server) exceptDenied(methods []authn.Authenticator) []authn.Authenticator {
	out := make([]authn.Authenticator, 0, len(methods))
	for _, m := range methods {
		out = append(out, authn.Except(m, s.denied))
	}
	return out
}

// tokenRule is one issuer, and the variable that names it.
type tokenRule struct {
	name string
	cfg  authn.JWTConfig
}

func tokenRules(env callerEnvironment) (rules []tokenRule, err error) {
	if env.jwtRule != "" {
		cfg, err := authn.ParseJWTRule(env.jwtRule)
		if err != nil {
			return nil, fmt.Errorf("environment variable JWT_RULE: %w", err)
		}
		rules = append(rules, tokenRule{"JWT_RULE", cfg})
	}
	if env.issuer == "" {
		return rules, nil
	}
	if env.audience == "" {
		return nil, errors.New("environment variable TOKEN_ISSUER: AUDIENCE is empty: a token for anybody would be taken; write what tokens of the issuer must be for, such as istio-ca")
	}
	return append(rules, tokenRule{"TOKEN_ISSUER", authn.JWTConfig{Issuer: env.issuer, Audiences: []string{env.audience}}}), nil
}

// allow adds the hosts that the user names to those that follow from the rule.
func (r *tokenRule) allow(hosts []string) {
	if len(hosts) == 0 {
		return
	}
	fetch := &r.cfg.Fetch
	if u, err := url.Parse(r.cfg.Issuer); len(fetch.AllowedHosts) == 0 && err == nil && u.Host != "" {
		fetch.AllowedHosts = append(fetch.AllowedHosts, u.Host)
	}
	for _, host := range hosts {
		name, _, err := net.SplitHostPort(host)
		if err != nil {
			name = strings.Trim(host, "[]")
		}
		ip := net.ParseIP(name)
		fetch.AllowLoopback = fetch.AllowLoopback || name == "localhost" || ip != nil && ip.IsLoopback()
		fetch.AllowedHosts = append(fetch.AllowedHosts, host)
	}
}

// trusting marks the connections of callers that have proved who they are.
type trusting struct{ authn.Authenticator }

// Authenticate implements authn.Authenticator.
func (t trusting) Authenticate(ctx context.Context) (*authn.Caller, error) {
	caller, err := t.Authenticator.Authenticate(ctx)
	if err == nil {
		connlimit.Trust(ctx)
	}
	return caller, err
}
