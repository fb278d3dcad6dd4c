// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

// authorityEnvironment is the part of the environment about certificates.
type authorityEnvironment struct {
	signer       signerEnvironment
	enabled      bool
	pluginDir    string
	defaultTTL   time.Duration
	maxTTL       time.Duration
	root         ca.RootConfig
	propagation  time.Duration
	callerRate   float64 // negative means no limit, as below
	identityRate float64
	nodeAccounts map[string]bool
}

// authorityVariables are the rows of the table about certificates.
func authorityVariables() []variable {
	return []variable{
		{"ENABLE_CA_SERVER", "true", "false signs no certificates of workloads", boolean(func(e *environment) *bool { return &e.ca.enabled })},
		{"ROOT_CA_DIR", "./etc/cacerts", "directory of a plugged-in certificate authority: ca-cert.pem, ca-key.pem, root-cert.pem, cert-chain.pem and ca-crl.pem, or tls.crt, tls.key and ca.crt; read again when they change. Without them a self-signed root is made", text(func(e *environment) *string { return &e.ca.pluginDir })},
		{"DEFAULT_WORKLOAD_CERT_TTL", "24h", "life of a workload certificate when the request names none", duration(func(e *environment) *time.Duration { return &e.ca.defaultTTL })},
		{"MAX_WORKLOAD_CERT_TTL", "2160h", "longest life of a workload certificate that may be asked for", duration(func(e *environment) *time.Duration { return &e.ca.maxTTL })},
		{"CITADEL_SELF_SIGNED_CA_CERT_TTL", "87600h", "life of a self-signed root that is made", duration(func(e *environment) *time.Duration { return &e.ca.root.TTL })},
		{"CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL", "1h", "how often it is looked whether a self-signed root must be renewed; 0 means never", func(e *environment, s string) error {
			d, err := time.ParseDuration(s)
			if err != nil {
				return fmt.Errorf("%q is no duration: write for example 1h", s)
			}
			if d <= 0 {
				d = -1
			}
			e.ca.root.Check = d
			return nil
		}},
		{"CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE", "20", "a self-signed root is renewed when so many percent of its life are left", func(e *environment, s string) error {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > 99 {
				return fmt.Errorf("%q is no share of a life: write 1 to 99", s)
			}
			e.ca.root.Grace = n
			return nil
		}},
		{"OUTRIGGER_CA_KEY_TYPE", "P256", "key of a self-signed root that is made: P256, P384, RSA2048, RSA3072 or RSA4096", func(e *environment, s string) error {
			e.ca.root.KeyType = certs.KeyType(s)
			return e.ca.root.KeyType.Validate()
		}},
		{"CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE", "", "2048, 3072 or 4096 make an RSA root of that size; it goes before OUTRIGGER_CA_KEY_TYPE", func(e *environment, s string) error {
			if s == "" {
				return nil
			}
			if e.ca.root.KeyType = certs.KeyType("RSA" + s); e.ca.root.KeyType.Validate() != nil {
				return fmt.Errorf("%q is no size of an RSA key: write 2048, 3072 or 4096", s)
			}
			return nil
		}},
		{"OUTRIGGER_CA_PROPAGATION", "0s", "from when a new root is given out until it signs; 0 means until each workload has renewed its certificate", duration(func(e *environment) *time.Duration { return &e.ca.propagation })},
		{"CA_TRUSTED_NODE_ACCOUNTS", "", "namespace/serviceaccount of node proxies, with commas between, which may ask for certificates of the workloads on their node; only Kubernetes knows which those are", func(e *environment, s string) error {
			var err error
			e.ca.nodeAccounts, err = parseNodeAccounts(s)
			return err
		}},
		{"OUTRIGGER_CA_CALLER_RATE", "10", "certificate requests a second of one workload, ten times as many at once; 0 means no limit", perSecond(func(e *environment) *float64 { return &e.ca.callerRate })},
		{"OUTRIGGER_CA_IDENTITY_RATE", "100", "certificate requests a second for one identity, ten times as many at once; 0 means no limit", perSecond(func(e *environment) *float64 { return &e.ca.identityRate })},
	}
}

func perSecond(field func(*environment) *float64) func(*environment, string) error {
	return func(e *environment, s string) error {
		n, err := strconv.ParseFloat(s, 64)
		if err != nil || !(n >= 0 && n <= 1e6) {
			return fmt.Errorf("%q is no number of requests a second: write for example 10", s)
		}
		if n == 0 {
			n = -1
		}
		*field(e) = n
		return nil
	}
}

func parseNodeAccounts(list string) (map[string]bool, error) {
	accounts := map[string]bool{}
	for _, account := range strings.Split(list, ",") {
		if account = strings.TrimSpace(account); account == "" {
			continue
		}
		namespace, name, found := strings.Cut(account, "/")
		if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%q is no account: write namespace/serviceaccount", account)
		}
		accounts[account] = true
	}
	return accounts, nil
}

// limit makes a limit of a rate.
func limit(rate float64) ca.Limit {
	return ca.Limit{PerSecond: rate, Burst: max(1, int(10*rate))}
}

// openAuthority opens the authority. In a cluster it is in a Secret, which all
// replicas share, unless a directory is named.
func (s *server) openAuthority(ctx context.Context, f flags, env environment, reg prometheus.Registerer) error {
	cfg := ca.Config{
		Dir: f.state(env), PluginDir: env.ca.pluginDir, TrustDomain: s.mesh.GetTrustDomain(),
		Root: env.ca.root, MaxTTL: env.ca.maxTTL, Propagation: env.ca.propagation,
		Logger: s.log.With("component", "ca"), Registerer: reg,
	}
	if s.kube != nil && !f.stateNamed(env) {
		store, err := kube.NewAuthorityStore(s.kube, env.podNamespace)
		if err != nil {
			return err
		}
		if !ca.PluggedIn(cfg.PluginDir) {
			if err := store.Wait(ctx); err != nil {
				return fmt.Errorf("opening certificate authority: %w", err)
			}
		}
		cfg.Dir, cfg.Store = "", store
	}
	var err error
	s.authority, err = ca.Open(ctx, cfg)
	return err
}

// registerCertificates adds the certificate service to the TLS server.
func (s *server) registerCertificates(to *grpc.Server, env environment, auth authn.Authenticator, reg prometheus.Registerer) error {
	if !env.ca.enabled {
		s.log.Info("certificates of workloads are signed elsewhere: ENABLE_CA_SERVER is false", "component", "ca")
		return nil
	}
	cfg := ca.ServiceConfig{
		Authority: s.authority, Authenticate: auth.Authenticate,
		DefaultTTL: env.ca.defaultTTL, MaxTTL: env.ca.maxTTL,
		Denied:      s.deniedIdentity,
		Nodes:       ca.NodeAccounts{Trusted: env.ca.nodeAccounts},
		CallerLimit: limit(env.ca.callerRate), TotalLimit: limit(env.ca.identityRate),
		Logger: s.log.With("component", "ca"), Registerer: reg,
	}
	if s.kube != nil {
		nodes, err := kube.NewNodes(kube.NodesConfig{
			Client: s.kube, Trusted: slices.Collect(maps.Keys(env.ca.nodeAccounts)), TrustDomain: s.mesh.GetTrustDomain(),
		})
		if err != nil {
			return err
		}
		cfg.Nodes = ca.NodeAccounts{Trusted: nodes.Trusted(), MayImpersonate: nodes.Authorize}
	}
	remote, err := s.newRemoteSigner(env.ca.signer)
	if err != nil {
		return err
	}
	if remote != nil {
		cfg.Remote, cfg.RemoteName = remote, env.ca.signer.name
	}
	service, err := ca.NewService(cfg)
	if err != nil {
		return err
	}
	service.Register(to)
	return nil
}
