// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/internal/connlimit"
	"github.com/outrigger-mesh/outrigger/internal/specialaddr"
)

// newAuthenticator returns an authenticator that accepts client certificates of the
// mesh, tokens of the configured issuers, and tokens that the cluster's API server
// reviews.
func (s *Server) newAuthenticator(cfg Config, reg prometheus.Registerer) (authn.Authenticator, error) {
	log := s.log.With("component", "authn")
	metrics, err := authn.NewMetrics(reg)
	if err != nil {
		return nil, err
	}
	if err := s.identity.clients.trust(s.snapshots.mesh); err != nil {
		return nil, err
	}
	methods := []authn.Authenticator{&s.identity.clients}
	rules, err := tokenRules(cfg.Callers)
	if err != nil {
		return nil, err
	}
	for _, rule := range rules {
		rule.allow(cfg.Callers.Hosts)
		rule.cfg.Fetch.TLS, rule.cfg.TrustDomain, rule.cfg.Logger, rule.cfg.Metrics = cfg.Compliance, s.snapshots.mesh.GetTrustDomain(), log, metrics
		token, err := authn.NewJWT(rule.cfg)
		if err != nil {
			return nil, fmt.Errorf("environment variable %s: %w", rule.name, err)
		}
		s.identity.tokens = append(s.identity.tokens, token)
		methods = append(methods, token)
	}
	if s.kube == nil {
		return authn.Any(s.exceptDenied(methods)...), nil
	}
	review, err := authn.NewKubernetes(authn.KubernetesConfig{
		TrustDomain: s.snapshots.mesh.GetTrustDomain(), Audiences: cfg.Callers.KubernetesAudiences, AllowUnbound: !cfg.Callers.RequireAudience,
		Reviewer: func(cluster string) authn.Reviewer {
			if !cfg.Cluster.is(cluster) {
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

// exceptDenied makes each method refuse callers on the deny list. A caller with a
// denied certificate can still use another method.
func (s *Server) exceptDenied(methods []authn.Authenticator) []authn.Authenticator {
	out := make([]authn.Authenticator, 0, len(methods))
	for _, m := range methods {
		out = append(out, authn.Except(m, s.denied))
	}
	return out
}

// tokenRule is one issuer of tokens, and the variable that configures it.
type tokenRule struct {
	name string
	cfg  authn.JWTConfig
}

func tokenRules(cfg CallersConfig) (rules []tokenRule, err error) {
	if cfg.JWTRule != "" {
		cfg, err := authn.ParseJWTRule(cfg.JWTRule)
		if err != nil {
			return nil, fmt.Errorf("environment variable JWT_RULE: %w", err)
		}
		rules = append(rules, tokenRule{"JWT_RULE", cfg})
	}
	if cfg.Issuer == "" {
		return rules, nil
	}
	if cfg.Audience == "" {
		return nil, errors.New("environment variable TOKEN_ISSUER: AUDIENCE is empty, so tokens for any audience would be accepted; set the audience of the issuer's tokens, such as istio-ca")
	}
	return append(rules, tokenRule{"TOKEN_ISSUER", authn.JWTConfig{Issuer: cfg.Issuer, Audiences: []string{cfg.Audience}}}), nil
}

// allow adds the configured hosts to those of the rule.
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
			name = host
		}
		ip, err := specialaddr.ParseHost(name)
		fetch.AllowLoopback = fetch.AllowLoopback || name == "localhost" || err == nil && ip.Unmap().IsLoopback()
		fetch.AllowedHosts = append(fetch.AllowedHosts, host)
	}
}

// trusting marks the connections of authenticated callers.
type trusting struct{ authn.Authenticator }

// Authenticate implements authn.Authenticator.
func (t trusting) Authenticate(ctx context.Context) (*authn.Caller, error) {
	caller, err := t.Authenticator.Authenticate(ctx)
	if err == nil {
		connlimit.Trust(ctx)
	}
	return caller, err
}

// clients accepts client certificates of the trust domains in the current mesh config.
type clients struct {
	atomic.Pointer[authn.ClientCertificate]
}

func (c *clients) trust(mesh *meshv1alpha1.MeshConfig) error {
	certificate, err := authn.NewClientCertificate(mesh.GetTrustDomain(), mesh.GetTrustDomainAliases()...)
	if err == nil {
		c.Store(certificate)
	}
	return err
}

// Authenticate implements authn.Authenticator.
func (c *clients) Authenticate(ctx context.Context) (*authn.Caller, error) {
	return c.Load().Authenticate(ctx)
}
