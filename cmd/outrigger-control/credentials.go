// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

// credentialEnvironment says where the certificates of gateways are, and who
// gets them.
type credentialEnvironment struct {
	source  string
	readers []string
}

func credentialVariables() []variable {
	return []variable{
		{"OUTRIGGER_CREDENTIALS", "", "where the Secrets with the certificates of gateways are: fs:///directory, with ?links=/other if links may lead to /other, or k8s:// for those of the cluster; empty serves none", text(func(e *environment) *string { return &e.credentials.source })},
		{"OUTRIGGER_CREDENTIAL_READERS", "", "with fs://: service accounts whose gateways get the Secrets of their namespace, as namespace/account, with commas between; * stands for all accounts of a namespace. In a cluster the right to list Secrets decides", func(e *environment, s string) (err error) {
			e.credentials.readers, err = accounts(s)
			return err
		}},
	}
}

// credentialSource is a Source that runs.
type credentialSource interface {
	credentials.Source
	Run(ctx context.Context) error
}

// newCredentials makes the source of gateways' certificates.
func (s *server) newCredentials(env credentialEnvironment, reg prometheus.Registerer) (config discovery.SecretsConfig, err error) {
	scheme, dir, _ := strings.Cut(env.source, "://")
	dir, parameters, _ := strings.Cut(dir, "?")
	query, _ := url.ParseQuery(parameters)
	links, fault := filetree.Links(query)
	switch {
	case env.source == "":
		return config, nil
	case fault != nil:
		return config, fmt.Errorf("environment variable OUTRIGGER_CREDENTIALS is %q: %w", env.source, fault)
	case scheme == "fs" && strings.HasPrefix(dir, "/"):
		if len(env.readers) == 0 {
			return config, errors.New("environment variable OUTRIGGER_CREDENTIAL_READERS is not set: nobody could get the Secrets of OUTRIGGER_CREDENTIALS; name the accounts of the gateways, such as istio-system/gateway")
		}
		s.credentials, err = credentials.NewFileSource(credentials.FileConfig{Dir: dir, Links: links, Logger: s.log.With("component", "credentials"), Registerer: reg})
		config.Authorize = env.authorize
	case scheme == "k8s" && dir == "" && s.kube == nil:
		return config, errors.New("environment variable OUTRIGGER_CREDENTIALS is k8s://, but no cluster is used: see OUTRIGGER_KUBERNETES and --kubeconfig")
	case scheme == "k8s" && dir == "":
		s.credentials, err = kube.NewSecrets(kube.SecretsConfig{Client: s.kube, Logger: s.log.With("component", "credentials"), Registerer: reg})
		config.Authorize = func(ctx context.Context, caller *authn.Caller) error {
			return s.kube.MayReadSecrets(ctx, caller.ID.Namespace, caller.ID.ServiceAccount)
		}
	default:
		return config, fmt.Errorf("environment variable OUTRIGGER_CREDENTIALS is %q, it must be fs:///directory or k8s://", env.source)
	}
	config.Source, config.Granted = s.credentials, s.granted
	return config, err
}

// authorize lets the accounts of the list pass.
func (env credentialEnvironment) authorize(_ context.Context, caller *authn.Caller) error {
	for _, account := range env.readers {
		namespace, name, _ := strings.Cut(account, "/")
		if namespace == caller.ID.Namespace && (name == "*" || name == caller.ID.ServiceAccount) {
			return nil
		}
	}
	return fmt.Errorf("%s/%s is not in OUTRIGGER_CREDENTIAL_READERS", caller.ID.Namespace, caller.ID.ServiceAccount)
}

// followRoots has each change of the mesh's roots reach the proxies, by the
// same way as any other change.
func (s *server) followRoots(ctx context.Context) error {
	for {
		changed := s.authority.Changed() // before build reads the roots
		s.debounce.Add(model.NewChange(model.Key{Kind: model.MeshConfigKind, Name: "roots"}))
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
