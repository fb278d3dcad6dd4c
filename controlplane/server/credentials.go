// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

// credentialSource is a Source with a Run method.
type credentialSource interface {
	credentials.Source
	Run(ctx context.Context) error
}

// rootSource is the Source of roots in ConfigMaps.
type rootSource interface{ credentials.Source }

// newCredentials creates the sources of gateway certificates and of roots in ConfigMaps.
func (s *Server) newCredentials(cfg CredentialsConfig, reg prometheus.Registerer) (config secrets.Config, err error) {
	scheme, dir, _ := strings.Cut(cfg.Source, "://")
	dir, parameters, _ := strings.Cut(dir, "?")
	query, _ := url.ParseQuery(parameters)
	links, fault := filetree.Links(query)
	log := s.log.With("component", "credentials")
	switch {
	case cfg.Source == "":
		return config, nil
	case fault != nil:
		return config, fmt.Errorf("environment variable OUTRIGGER_CREDENTIALS is %q: %w", cfg.Source, fault)
	case scheme == "fs" && strings.HasPrefix(dir, "/"):
		if len(cfg.Readers) == 0 {
			return config, errors.New("environment variable OUTRIGGER_CREDENTIAL_READERS is not set: no gateway could read the Secrets of OUTRIGGER_CREDENTIALS; name the accounts of the gateways, such as istio-system/gateway")
		}
		files, err := credentials.NewFileSource(credentials.FileConfig{Dir: dir, Links: links, Logger: log, Registerer: reg})
		if err != nil {
			return config, err
		}
		s.objects.credentials, s.objects.roots = files, files.Maps
		config.Authorize = cfg.authorize
	case scheme == "k8s" && dir == "" && s.kube == nil:
		return config, errors.New("environment variable OUTRIGGER_CREDENTIALS is k8s://, but no cluster is used: see OUTRIGGER_KUBERNETES and --kubeconfig")
	case scheme == "k8s" && dir == "":
		if s.objects.credentials, err = kube.NewSecrets(kube.SecretsConfig{Client: s.kube, Logger: log, Registerer: reg}); err != nil {
			return config, err
		}
		if s.objects.rootMaps, err = kube.NewRootMaps(s.kube, log, reg); err != nil {
			return config, err
		}
		s.objects.roots = s.objects.rootMaps
		config.Authorize = func(ctx context.Context, caller *authn.Caller) error {
			return s.kube.MayReadSecrets(ctx, caller.ID.Namespace, caller.ID.ServiceAccount)
		}
	default:
		return config, fmt.Errorf("environment variable OUTRIGGER_CREDENTIALS is %q; it must be fs:///directory or k8s://", cfg.Source)
	}
	config.Source, config.ConfigMaps, config.Granted = s.objects.credentials, s.objects.roots, s.objects.granted
	return config, nil
}

// authorize returns an error unless the caller's account is in the list.
func (cfg CredentialsConfig) authorize(_ context.Context, caller *authn.Caller) error {
	for _, account := range cfg.Readers {
		namespace, name, _ := strings.Cut(account, "/")
		if namespace == caller.ID.Namespace && (name == "*" || name == caller.ID.ServiceAccount) {
			return nil
		}
	}
	return fmt.Errorf("%s/%s is not in OUTRIGGER_CREDENTIAL_READERS", caller.ID.Namespace, caller.ID.ServiceAccount)
}
