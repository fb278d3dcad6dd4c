// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

// The values of ClusterConfig.Use.
const (
	ClusterAuto = "auto" // with a kubeconfig, and in a pod
	ClusterOn   = "true"
	ClusterOff  = "false"
)

// registryKubernetes is the only supported platform of services.
const registryKubernetes = "Kubernetes"

// ClusterConfig configures the cluster of the control plane.
type ClusterConfig struct {
	Use           string // one of the constants above
	Kubeconfig    string // file of --kubeconfig, which enables the cluster
	Kubeconfigs   string // files of KUBECONFIG, a list of paths: the first existing one is used
	InPod         bool   // this process runs in a pod with a service account
	ID            string // name of the cluster
	Aliases       map[string]string
	QPS           float32 // requests per second to the API server
	Burst         int
	Registries    []string // platforms to read services from; empty means the cluster, if one is used
	NoRegistries  bool     // read services from no platform
	Election      bool     // one replica at a time writes
	WriteRoots    bool     // write the roots into each namespace
	WriteWebhooks bool     // update the configurations of the validating webhook
	// WriteInjectors updates the configurations of the injection webhook.
	WriteInjectors bool
}

// checkRegistries returns an error for unsupported platforms.
func (c *ClusterConfig) checkRegistries() error {
	for _, r := range c.Registries {
		if r != "" && r != registryKubernetes {
			return fmt.Errorf("--registries names %q, which is not supported: write %s, or \"\" for services of ServiceEntry objects only", r, registryKubernetes)
		}
	}
	return nil
}

// choose reports whether to use Kubernetes, and returns the kubeconfig; "" means the
// service account of this pod.
func (c *ClusterConfig) choose() (kubeconfig string, use bool, err error) {
	switch {
	case c.Use == ClusterOff && c.Kubeconfig != "":
		return "", false, errors.New("--kubeconfig is set, but OUTRIGGER_KUBERNETES is false: remove one of them")
	case c.Use == ClusterOff:
		return "", false, nil
	case c.Kubeconfig != "":
		return c.Kubeconfig, true, nil
	case c.Use == ClusterAuto && (!c.InPod || c.NoRegistries):
		return "", false, nil
	}
	for _, file := range filepath.SplitList(c.Kubeconfigs) {
		// Deployments name a file of an optional volume.
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			return file, true, nil
		}
	}
	return "", true, nil
}

// connect creates the client of the cluster; it returns nil if none is used.
func (s *Server) connect(cfg Config, reg prometheus.Registerer) (*kube.Client, error) {
	kubeconfig, use, err := cfg.Cluster.choose()
	if err != nil || !use {
		return nil, err
	}
	metrics, err := kube.NewMetrics(reg)
	if err != nil {
		return nil, err
	}
	log := s.log.With("component", "kube")
	kube.UseLogger(log)
	client, err := kube.New(kube.Config{Kubeconfig: kubeconfig, QPS: cfg.Cluster.QPS, Burst: cfg.Cluster.Burst, Logger: log, Metrics: metrics})
	if err != nil {
		return nil, err
	}
	source := kubeconfig
	if source == "" {
		source = "the service account of this pod"
	}
	if cfg.Cluster.NoRegistries {
		log.Info("identity uses Kubernetes; services do not", "source", source, "name", cfg.Cluster.ID)
	} else {
		log.Info("identity and services use Kubernetes", "source", source, "name", cfg.Cluster.ID)
	}
	return client, nil
}

// newRoots creates the writer of the roots in namespaces; it returns nil if that is off.
func (s *Server) newRoots(cfg Config) (*kube.Roots, error) {
	if s.kube == nil || s.identity.authority == nil || !cfg.Cluster.WriteRoots {
		return nil, nil
	}
	lease := kube.Lease{Namespace: cfg.Namespace}
	if cfg.Cluster.Election {
		lease.Identity = cfg.PodName
	}
	return kube.NewRoots(kube.RootsConfig{
		Client: s.kube, Bundle: s.identity.authority.RootPEM, Changed: s.identity.authority.Changed, Lease: lease, Logger: s.log.With("component", "kube"),
	})
}

// is reports whether a name in a call is that of the cluster.
func (c *ClusterConfig) is(name string) bool {
	return name == "" || name == c.ID || c.Aliases[name] == c.ID
}
