// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
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
	ctx, cancel := context.WithCancel(ctx)
	var factories []informers.SharedInformerFactory
	defer func() {
		cancel()
		for _, f := range factories {
			f.Shutdown()
		}
	}()
	var synced []cache.InformerSynced
	for _, namespace := range s.cfg.Namespaces {
		f := informers.NewSharedInformerFactoryWithOptions(s.cfg.Client.api, 0,
			informers.WithNamespace(namespace), informers.WithTransform(stripSecret),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = notCredentials }))
		registration, err := s.watch(f.Core().V1().Secrets().Informer())
		if err != nil {
			return fmt.Errorf("watch Secrets: %w", err)
		}
		f.StartWithContext(ctx)
		factories, synced = append(factories, f), append(synced, registration.HasSynced)
	}
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		s.SetSynced()
	}
	<-ctx.Done()
	return nil
}

// watch feeds the table. The table shares the data slices with the informer, so that nothing is
// stored twice.
func (s *Secrets) watch(informer cache.SharedIndexInformer) (cache.ResourceEventHandlerRegistration, error) {
	set := func(o any) {
		if secret, ok := o.(*corev1.Secret); ok {
			s.Set(secret.Namespace, secret.Name, secret.Data)
		}
	}
	if err := informer.SetWatchErrorHandlerWithContext(watchFault(s.cfg.Logger, "Secret")); err != nil {
		return nil, err
	}
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, o any) { set(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if secret, ok := o.(*corev1.Secret); ok {
				s.Delete(secret.Namespace, secret.Name)
			}
		},
	})
}

var _ credentials.Source = (*Secrets)(nil)
