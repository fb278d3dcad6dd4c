// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/stores"
)

// openStores opens the sources of the mesh config, or else the directory of
// --configDir, or else the cluster.
func (s *Server) openStores(cfg Config, reg prometheus.Registerer) (*config.Aggregate, error) {
	addresses, err := s.sources(cfg)
	if err != nil {
		return nil, err
	}
	drivers := stores.Drivers(stores.Config{
		Cluster: func() (*kube.Client, error) { return s.kube, nil }, Revision: cfg.Revision, Namespace: cfg.Namespace,
	})
	open := config.OpenConfig{
		Logger: s.log.With("component", "config"), Registerer: reg, Drivers: drivers,
		State: filepath.Join(filepath.Dir(cfg.stateDir()), "config"), Keep: true, TLS: cfg.Compliance,
	}
	if !cfg.GatewayAPI.On {
		open.Kinds = istioKinds()
	}
	var list []config.Store
	var writer config.Store
	for _, address := range addresses {
		store, err := config.Open(address, open)
		if errors.Is(err, config.ErrUnknownScheme) {
			// Like pilot-discovery: continue with the other sources.
			s.log.Warn("config source skipped", "component", "control", "err", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if list = append(list, store); writer == nil && !strings.HasPrefix(address, "xds://") {
			writer = store
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no configuration: none of the %d configSources of the mesh config can be used", len(addresses))
	}
	all := config.NewAggregate(writer, list...)
	all.SetWatchErrorHandler(func(err error) {
		s.faults.source(err)
		// The stores log errors that they retry.
		if errors.Is(err, config.ErrEnded) {
			s.log.Error("config source ended; its objects stay in force until the control plane restarts", "component", "config", "err", err)
		}
	})
	all.SetHiddenHandler(func(p model.Problem) {
		s.log.Warn("a configuration object has a problem", "component", "config", "source", p.Source, "kind", p.Object.Kind, "name", p.Object.Name, "namespace", p.Object.Namespace, "reason", p.Reason)
	})
	return all, nil
}

// istioKinds returns the kinds except those of the Gateway API and Ingress, which the account of the
// control plane may have no right to read.
func istioKinds() []model.Kind {
	var kinds []model.Kind
	for _, s := range schema.All() {
		if strings.HasSuffix(s.Group, ".istio.io") {
			kinds = append(kinds, s.Kind)
		}
	}
	return kinds
}

// loading returns a sentence about what the control plane waits for before it serves.
func (o *objects) loading() string {
	text := "configuration is still loading"
	if waiting := o.store.Waiting(); len(waiting) > 0 {
		text += ": waiting for " + strings.Join(waiting, ", ")
	}
	return text
}

// readiness returns the answer of a ready control plane. It stays ready even if it
// cannot apply changes: proxies receive the last good configuration, which serves their
// traffic.
func (o *objects) readiness() string {
	if behind := o.store.Behind(); len(behind) > 0 {
		return "ready, but changes of the configuration are not applied: reading " + strings.Join(behind, ", ") + " does not finish"
	}
	return "ready"
}

// sources returns the URLs of the config stores.
func (s *Server) sources(cfg Config) ([]string, error) {
	var addresses []string
	for _, source := range s.snapshots.mesh.GetConfigSources() {
		address, err := sourceAddress(source)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	switch {
	case len(addresses) > 0:
		return addresses, nil
	case cfg.ConfigDir != "":
		abs, err := absolute(cfg.ConfigDir)
		if err != nil {
			return nil, err
		}
		return []string{"fs://" + abs}, nil
	case s.kube != nil:
		return []string{"k8s://"}, nil
	}
	return nil, errors.New("no configuration: name a directory with --configDir, a cluster with --kubeconfig, or sources with configSources in the mesh config")
}

// sourceAddress returns the URL of a source. Its TLS settings become parameters of the
// URL.
func sourceAddress(source *meshv1alpha1.ConfigSource) (string, error) {
	tls := source.GetTlsSettings()
	var values url.Values
	switch mode := tls.GetMode(); {
	case tls == nil, mode == networkingv1alpha3.ClientTLSSettings_DISABLE:
		return source.GetAddress(), nil
	case mode == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL:
		return "", fmt.Errorf("config source %q: tlsSettings.mode ISTIO_MUTUAL: the control plane's own certificate is not in a file: write MUTUAL with clientCertificate, privateKey and caCertificates", source.GetAddress())
	case mode == networkingv1alpha3.ClientTLSSettings_MUTUAL:
		values = url.Values{"cert": {tls.GetClientCertificate()}, "key": {tls.GetPrivateKey()}}
	default:
		values = url.Values{}
	}
	if ca := tls.GetCaCertificates(); ca != "" {
		values.Set("ca", ca)
	} else {
		values.Set("tls", "true")
	}
	if tls.GetSni() != "" {
		values.Set("servername", tls.GetSni())
	}
	u, err := url.Parse(source.GetAddress())
	if err != nil {
		return "", fmt.Errorf("config source %q is not a URL: %w", source.GetAddress(), err)
	}
	for name := range u.Query() {
		values.Set(name, u.Query().Get(name))
	}
	u.RawQuery = values.Encode()
	return u.String(), nil
}
