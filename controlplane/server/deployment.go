// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"cmp"
	"context"
	"log/slog"

	"golang.org/x/sync/errgroup"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/deployment"
	"github.com/outrigger-mesh/outrigger/controlplane/inject"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// newDeployment creates the controller that deploys the proxies of Gateways, unless it is off. It
// needs the images of the injector. The store must not run yet.
func (s *Server) newDeployment(cfg Config, log *slog.Logger) error {
	c := s.objects.conversion
	if !cfg.GatewayAPI.Deploy || !cfg.Inject.On || s.kube == nil || c.namespaces == nil {
		return nil
	}
	log = log.With("component", "deployment")
	cluster, err := kube.NewDeployments(kube.DeploymentsConfig{
		Client: s.kube, Kinds: deployment.Kinds(), Selector: deployment.ManagedLabel + "=" + deployment.ManagedValue, Revision: cfg.Revision,
		OnTags: func() { c.deploys("") }, Logger: log,
	})
	if err != nil {
		return err
	}
	c.deployment, err = deployment.New(deployment.Config{
		Store: s.objects.store, Cluster: cluster, Owned: cluster.Owned, Fingerprint: kube.Fingerprint,
		Follow: func(ctx context.Context, owner string, ready func(), changed func(namespace, gateway string)) error {
			for _, synced := range s.objects.waits() { // labels of namespaces, and classes
				select {
				case <-ctx.Done():
					return nil
				case <-synced:
				}
			}
			return cluster.Follow(ctx, owner, ready, changed)
		},
		Mine: func(namespace string) bool {
			return cluster.Serves(cmp.Or(c.namespaces.Labels(namespace)["istio.io/rev"], "default"))
		},
		Injector: func() *inject.Injector {
			if s.injection == nil {
				return nil // there is no authority, and no webhook
			}
			return s.injection.injector()
		},
		Added: func(namespace, gateway string) ([]gatewayv1.Listener, bool) {
			if result := c.view.Result(); result != nil {
				return result.AddedListeners(namespace, gateway), true
			}
			return nil, false
		},
		HTTP3:   cfg.Generate.HTTP3,
		OnFault: func(key model.Key) { s.reconvert(key) }, Logger: log,
	})
	if err != nil {
		return err
	}
	s.objects.store.RegisterEventHandler(c.deployment.Hear, model.KubernetesGateway, model.GatewayClass, model.ProxyConfig)
	return nil
}

// deploys checks the Gateways of a namespace, or of all namespaces.
func (c *conversion) deploys(namespace string) {
	if c != nil && c.deployment != nil {
		c.deployment.Check(namespace)
	}
}

// leadBoth returns how the writer of statuses is elected. The same replica deploys, because only it
// knows what went wrong.
func (c *conversion) leadBoth() func(context.Context, func(context.Context) error) error {
	if c.lead == nil || c.deployment == nil {
		return c.lead
	}
	return func(ctx context.Context, write func(context.Context) error) error {
		return c.lead(ctx, func(ctx context.Context) error {
			g, ctx := errgroup.WithContext(ctx)
			g.Go(func() error { return write(ctx) })            // reads results of conversions, feeds the store
			g.Go(func() error { return c.deployment.Run(ctx) }) // reads Gateways, feeds the cluster
			return g.Wait()
		})
	}
}

// deploy deploys while this replica leads, without a writer of statuses.
func (c *conversion) deploy(ctx context.Context) error {
	if c.lead == nil {
		return c.deployment.Run(ctx)
	}
	return c.lead(ctx, c.deployment.Run)
}
