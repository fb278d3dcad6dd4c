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

// newPlatform creates the registry of the cluster's services, unless it is not used.
func (s *Server) newPlatform(cfg Config, reg prometheus.Registerer) (err error) {
	switch {
	case cfg.Cluster.NoRegistries:
		return nil
	case s.kube == nil && slices.Contains(cfg.Cluster.Registries, registryKubernetes):
		return errors.New("--registries names Kubernetes, but there is no cluster: name one with --kubeconfig, or omit the flag")
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
		MCS: cfg.MCS, Logger: s.log.With("component", "kube"), Registerer: reg,
	})
	return err
}

// selectsPods reports whether a ServiceEntry of a namespace selects workloads by their
// labels. The store contains an object before it reports it, so a pod whose event was
// dropped because nothing selected it is found once the object is reported.
func (o *objects) selectsPods(namespace string) bool {
	return slices.ContainsFunc(o.store.List(model.ServiceEntry, namespace), func(c *model.Config) bool {
		se, ok := c.Spec.(*networkingv1alpha3.ServiceEntry)
		return ok && se.GetWorkloadSelector() != nil
	})
}

// ready reports whether the first snapshot can be built.
func (o *objects) ready() bool {
	select {
	case <-o.keysTried:
		return true // all other inputs were read before
	default:
		return false
	}
}

// waits returns channels that are closed once the inputs of a snapshot have been read.
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
