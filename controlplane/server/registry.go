// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"errors"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// newPlatform makes the registry of services of the cluster; nil if it is not
// used for them.
func (s *Server) newPlatform(cfg Config, reg prometheus.Registerer) (err error) {
	switch {
	case cfg.Cluster.NoRegistries:
		return nil
	case s.kube == nil && slices.Contains(cfg.Cluster.Registries, registryKubernetes):
		return errors.New("--registries names Kubernetes, and there is no cluster: name one with --kubeconfig, or leave the flag out")
	case s.kube == nil:
		return nil
	}
	s.objects.platform, err = kube.NewRegistry(kube.RegistryConfig{
		Client: s.kube, Cluster: cfg.Cluster.ID, Domain: cfg.Domain, Namespace: cfg.Namespace,
		OnChange:    func(c model.Change) { s.debounce.Add(c) },
		SelectsPods: s.objects.selectsPods,
		Remote: kube.RemoteConfig{
			On: cfg.Remotes.On, Allowed: strings.FieldsFunc(cfg.Remotes.Allowed, func(c rune) bool { return c == ',' || c == ' ' }),
			Wait: cfg.Remotes.Wait, QPS: cfg.Cluster.QPS, Burst: cfg.Cluster.Burst,
		},
		Logger: s.log.With("component", "kube"), Registerer: reg,
	})
	return err
}

// selectsPods tells whether a ServiceEntry of a namespace chooses workloads by
// their labels. The store holds an object before it tells of it: a pod that is
// not told of because nobody chooses it yet is there when the object is.
func (o *objects) selectsPods(namespace string) bool {
	return slices.ContainsFunc(o.store.List(model.ServiceEntry, namespace), func(c *model.Config) bool {
		se, ok := c.Spec.(*networkingv1alpha3.ServiceEntry)
		return ok && se.GetWorkloadSelector() != nil
	})
}

// loaded tells whether everything that a snapshot is made of was read once.
func (o *objects) loaded() bool {
	for _, synced := range o.waits() {
		select {
		case <-synced:
		default:
			return false
		}
	}
	return true
}

// waits are closed when what a snapshot is made of was read once.
func (o *objects) waits() []<-chan struct{} {
	out := []<-chan struct{}{o.store.Synced()}
	if o.platform != nil {
		out = append(out, o.platform.Synced())
	}
	if o.conversion != nil && o.conversion.namespaces != nil {
		out = append(out, o.conversion.namespaces.Synced())
	}
	return out
}
