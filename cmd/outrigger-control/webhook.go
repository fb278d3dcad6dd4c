// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"crypto/tls"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/webhook"
)

// newWebhooks makes what answers the API server, and what keeps the
// configuration by which it asks. Without a cluster nobody asks.
func (s *server) newWebhooks(f flags, env environment, reg prometheus.Registerer) error {
	if s.kube == nil || s.authority == nil {
		return nil
	}
	validator, err := webhook.NewValidator(webhook.Config{Logger: s.log.With("component", "webhook"), Registerer: reg})
	if err != nil {
		return err
	}
	s.validator = http.NewServeMux()
	s.validator.Handle("/validate", validator)
	s.validator.Handle("/validate/", validator)
	if f.httpsAddr != "" {
		cfg, err := s.newTLS(f, env)
		if err != nil {
			return err
		}
		s.webhooks = s.limits.httpServer(s.validator)
		s.webhooks.TLSConfig = withoutClients(cfg)
	}
	if !env.kube.webhook {
		return nil
	}
	s.webhookConfig, err = kube.NewWebhook(kube.WebhookConfig{
		Client: s.kube, Revision: env.revision, Namespace: env.podNamespace,
		Bundle: s.authority.RootPEM, Changed: s.authority.Changed, Logger: s.log.With("component", "kube"),
	})
	return err
}

// withoutClients gives the TLS configuration of the control plane for callers
// that need not say who they are: an API server has no certificate of the mesh.
func withoutClients(cfg *tls.Config) *tls.Config {
	apply := func(c *tls.Config) {
		c.ClientAuth, c.ClientCAs = tls.NoClientCert, nil
		c.NextProtos = []string{"http/1.1"} // one request at a time: its limits are those of the other ports
	}
	out := cfg.Clone()
	apply(out)
	if cfg.GetConfigForClient != nil {
		out.GetConfigForClient = (&overlay{inner: cfg.GetConfigForClient, apply: apply}).get
	}
	return out
}
