// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
)

// notCredentials is a field selector that excludes the Secrets of Helm and the tokens of service
// accounts, which are many and large.
const notCredentials = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token"

// SecretsConfig is the configuration of Secrets.
type SecretsConfig struct {
	Client     *Client
	Namespaces []string              // namespaces whose Secrets are read; empty means all
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil means no metrics
}

// Secrets is the credentials.Source of a cluster. It requires permission to list and watch Secrets
// in the configured namespaces.
type Secrets struct {
	*credentials.Table

	cfg SecretsConfig
}

// NewSecrets returns a Secrets. It returns an error if the configuration is invalid.
func NewSecrets(cfg SecretsConfig) (*Secrets, error) {
	if cfg.Client == nil {
		return nil, errors.New("credentials: there is no cluster to read them from")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if len(cfg.Namespaces) == 0 {
		cfg.Namespaces = []string{metav1.NamespaceAll}
	}
	table, err := credentials.NewTable(cfg.Logger, cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return &Secrets{Table: table, cfg: cfg}, nil
}

// Run follows the Secrets until ctx is done.
func (s *Secrets) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var synced []cache.InformerSynced
	for _, namespace := range s.cfg.Namespaces {
		_, one, err := selected[*corev1.Secret, *corev1.SecretList]{
			source: s.cfg.Client.api.secrets(namespace), kind: "Secret", example: &corev1.Secret{}, fields: notCredentials, strip: stripSecret,
			// The table shares the data slices with the informer, so that nothing is stored twice.
			set:  func(o *corev1.Secret) { s.Set(o.Namespace, o.Name, o.Data) },
			gone: func(o *corev1.Secret) { s.Delete(o.Namespace, o.Name) },
		}.follow(ctx, &running, s.cfg.Logger)
		if err != nil {
			return err
		}
		synced = append(synced, one)
	}
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		s.SetSynced()
	}
	<-ctx.Done()
	return nil
}

var _ credentials.Source = (*Secrets)(nil)
