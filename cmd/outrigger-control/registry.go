// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// registryKubernetes is the one platform that services are read from.
const registryKubernetes = "Kubernetes"

// remoteEnvironment is the part of the environment about other clusters.
type remoteEnvironment struct {
	on      bool
	allowed string
	wait    time.Duration
}

// remoteVariables are the rows of the table about other clusters.
func remoteVariables() []variable {
	return []variable{
		{"OUTRIGGER_REMOTE_CLUSTERS", "true", "with Kubernetes: services are also read from the clusters whose kubeconfigs are in Secrets of the control plane's namespace with the label istio/multiCluster=true, under the name of the cluster; false does not read these Secrets", boolean(func(e *environment) *bool { return &e.remotes.on })},
		{"PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS", "", "ways of these kubeconfigs to read files or run programs here that are not refused, with commas between: exec, tokenFile, clientCertificate, clientKey, certificateAuthority, or the name of an auth provider", text(func(e *environment) *string { return &e.remotes.allowed })},
		{"PILOT_REMOTE_CLUSTER_TIMEOUT", "30s", "how long a start waits for these clusters", duration(func(e *environment) *time.Duration { return &e.remotes.wait })},
	}
}

// checkRegistries refuses platforms that are not served.
func (f *flags) checkRegistries() error {
	for _, r := range f.registries {
		if r != "" && r != registryKubernetes {
			return fmt.Errorf("--registries names %q, which is not served: write %s, or \"\" for services of ServiceEntry objects alone", r, registryKubernetes)
		}
	}
	return nil
}

// newPlatform makes the registry of services of the cluster; nil if it is not
// used for them.
func (s *server) newPlatform(f flags, env environment, reg prometheus.Registerer) (err error) {
	switch {
	case f.noRegistries:
		return nil
	case s.kube == nil && slices.Contains(f.registries, registryKubernetes):
		return errors.New("--registries names Kubernetes, and there is no cluster: name one with --kubeconfig, or leave the flag out")
	case s.kube == nil:
		return nil
	}
	s.platform, err = kube.NewRegistry(kube.RegistryConfig{
		Client: s.kube, Cluster: env.kube.clusterID, Domain: f.domain, Namespace: env.podNamespace,
		OnChange:    func(c model.Change) { s.debounce.Add(c) },
		SelectsPods: s.selectsPods,
		Remote: kube.RemoteConfig{
			On: env.remotes.on, Allowed: strings.FieldsFunc(env.remotes.allowed, func(c rune) bool { return c == ',' || c == ' ' }),
			Wait: env.remotes.wait, QPS: f.qps, Burst: f.burst,
		},
		Logger: s.log.With("component", "kube"), Registerer: reg,
	})
	return err
}

// selectsPods tells whether a ServiceEntry of a namespace chooses workloads by
// their labels. The store holds an object before it tells of it: a pod that is
// not told of because nobody chooses it yet is there when the object is.
func (s *server) selectsPods(namespace string) bool {
	return slices.ContainsFunc(s.store.List(model.ServiceEntry, namespace), func(c *model.Config) bool {
		se, ok := c.Spec.(*networkingv1alpha3.ServiceEntry)
		return ok && se.GetWorkloadSelector() != nil
	})
}

// loaded tells whether everything that a snapshot is made of was read once.
func (s *server) loaded() bool {
	for _, synced := range s.waits() {
		select {
		case <-synced:
		default:
			return false
		}
	}
	return true
}

// waits are closed when what a snapshot is made of was read once.
func (s *server) waits() []<-chan struct{} {
	out := []<-chan struct{}{s.store.Synced()}
	if s.platform != nil {
		out = append(out, s.platform.Synced())
	}
	if s.conversion != nil && s.conversion.namespaces != nil {
		out = append(out, s.conversion.namespaces.Synced())
	}
	return out
}
