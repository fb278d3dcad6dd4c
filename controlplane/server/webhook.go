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

// newWebhooks creates the server of validation requests, and the updater of the
// webhook configurations. Without a cluster there are none.
func (s *Server) newWebhooks(cfg Config, reg prometheus.Registerer) error {
	if s.kube == nil || s.identity.authority == nil {
		return nil
	}
	validator, err := webhook.NewValidator(webhook.Config{Logger: s.log.With("component", "webhook"), Registerer: reg})
	if err != nil {
		return err
	}
	s.validator = http.NewServeMux()
	s.validator.Handle("/validate", validator)
	s.validator.Handle("/validate/", validator)
	if cfg.Listen.Webhooks != "" {
		cfg, err := s.newTLS(cfg)
		if err != nil {
			return err
		}
		s.ports.webhooks = s.ports.limits.httpServer(s.validator)
		s.ports.webhooks.TLSConfig = withoutClients(cfg)
	}
	if !cfg.Cluster.WriteWebhooks {
		return nil
	}
	s.identity.webhookConfig, err = kube.NewWebhook(kube.WebhookConfig{
		Client: s.kube, Revision: cfg.Revision, Namespace: cfg.Namespace,
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
