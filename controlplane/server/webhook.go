// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"crypto/tls"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/webhook"
)

// newWebhooks creates the server of validation and injection requests, and the updater of
// the webhook configurations. Without a cluster there are none.
func (s *Server) newWebhooks(cfg Config, reg prometheus.Registerer) error {
	if s.kube == nil || s.identity.authority == nil {
		return nil
	}
	validator, err := webhook.NewValidator(webhook.Config{Logger: s.log.With("component", "webhook"), Registerer: reg, Patches: cfg.Patches})
	if err != nil {
		return err
	}
	s.webhooks = http.NewServeMux()
	s.webhooks.Handle("/validate", validator)
	s.webhooks.Handle("/validate/", validator)
	if err := s.newInjectionWebhook(cfg, reg); err != nil {
		return err
	}
	if cfg.Listen.Webhooks != "" {
		cfg, err := s.newTLS(cfg, webhookPort)
		if err != nil {
			return err
		}
		s.ports.webhooks = s.ports.limits.httpServer(s.ports.leaving(s.webhooks))
		s.ports.webhooks.TLSConfig = withoutClients(cfg)
	}
	if !cfg.Cluster.WriteWebhooks && !cfg.Cluster.WriteInjectors {
		return nil
	}
	s.identity.webhookConfig, err = kube.NewWebhook(kube.WebhookConfig{
		Client: s.kube, Revision: cfg.Revision, Namespace: cfg.Namespace, Validating: cfg.Cluster.WriteWebhooks, Mutating: cfg.Cluster.WriteInjectors,
		Bundle: s.identity.authority.RootPEM, Changed: s.identity.authority.Changed, Logger: s.log.With("component", "kube"),
	})
	return err
}

// withoutClients returns the TLS configuration for callers without a client
// certificate: an API server has no certificate of the mesh.
func withoutClients(cfg *tls.Config) *tls.Config {
	apply := func(c *tls.Config) {
		c.ClientAuth, c.ClientCAs = tls.NoClientCert, nil
		c.NextProtos = []string{"http/1.1"} // one request at a time, so that the limits of the other ports apply
	}
	out := cfg.Clone()
	apply(out)
	if cfg.GetConfigForClient != nil {
		out.GetConfigForClient = (&overlay{inner: cfg.GetConfigForClient, apply: apply}).get
	}
	return out
}
