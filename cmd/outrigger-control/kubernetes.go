// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

// podToken is what makes a container one of a pod with a service account.
const podToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// The values of OUTRIGGER_KUBERNETES.
const (
	kubernetesAuto = "auto"
	kubernetesOn   = "true"
	kubernetesOff  = "false"
)

// kubernetesEnvironment is the part of the environment about the cluster.
type kubernetesEnvironment struct {
	use        string // one of the constants above
	kubeconfig string
	inPod      bool // not from a variable of ours; a test sets it
	clusterID  string
	podName    string
	election   bool
	roots      bool
	webhook    bool // whether the configuration of the webhook is kept
}

// kubernetesVariables are the rows of the table about the cluster.
func kubernetesVariables() []variable {
	return []variable{
		{"OUTRIGGER_KUBERNETES", kubernetesAuto, "true uses Kubernetes: its API server tells whose a token is, the self-signed root is in the Secret istio-ca-secret, the roots are in each namespace, its services are those of the mesh, and its objects the configuration where no other is named. false does not. auto does with `--kubeconfig`, and in a pod with a service account unless `--registries \"\"` is given", func(e *environment, s string) error {
			if !slices.Contains([]string{kubernetesAuto, kubernetesOn, kubernetesOff}, s) {
				return fmt.Errorf("%q is none of %s, %s and %s", s, kubernetesAuto, kubernetesOn, kubernetesOff)
			}
			e.kube.use = s
			return nil
		}},
		{"KUBECONFIG", "", "in a pod, or with OUTRIGGER_KUBERNETES=true: kubeconfig of the cluster, if there is such a file; else the service account of the pod is used. --kubeconfig wins. Alone, it makes nothing happen", text(func(e *environment) *string { return &e.kube.kubeconfig })},
		{"KUBERNETES_SERVICE_HOST", "", "set by Kubernetes in each pod", func(e *environment, s string) error {
			_, err := os.Stat(podToken)
			e.kube.inPod = s != "" && err == nil
			return nil
		}},
		{"CLUSTER_ID", "Kubernetes", "name of the cluster, as agents give it with a token; --clusterID wins", text(func(e *environment) *string { return &e.kube.clusterID })},
		{"POD_NAME", "", "name of this replica in elections (default: host name and process)", func(e *environment, s string) error {
			e.register.podName = s
			if e.kube.podName = s; s != "" {
				return nil
			}
			host, err := os.Hostname()
			e.kube.podName = fmt.Sprintf("%s-%d", host, os.Getpid())
			return err
		}},
		{"ENABLE_LEADER_ELECTION", "true", "false lets each replica write the roots into the namespaces", boolean(func(e *environment) *bool { return &e.kube.election })},
		{"VALIDATION_WEBHOOK_CONFIG_NAME", "istio-istio-system", "empty leaves the ValidatingWebhookConfigurations of the cluster alone; otherwise those with the label istio.io/rev of this revision are kept right, whatever they are called", func(e *environment, s string) error {
			e.kube.webhook = s != ""
			return nil
		}},
		{"OUTRIGGER_ROOTS_CONFIGMAP", "true", "false leaves the ConfigMaps istio-ca-root-cert alone: for a second mesh in a cluster, or where others write them", boolean(func(e *environment) *bool { return &e.kube.roots })},
	}
}

// cluster tells whether Kubernetes is used, and with which kubeconfig; an empty
// one means the service account of this pod.
func (f *flags) cluster(env kubernetesEnvironment) (kubeconfig string, use bool, err error) {
	switch {
	case env.use == kubernetesOff && f.kubeconfig != "":
		return "", false, errors.New("--kubeconfig is given, but OUTRIGGER_KUBERNETES is false: take one of them back")
	case env.use == kubernetesOff:
		return "", false, nil
	case f.kubeconfig != "":
		return f.kubeconfig, true, nil
	case env.use == kubernetesAuto && (!env.inPod || f.noRegistries):
		return "", false, nil
	}
	for _, file := range filepath.SplitList(env.kubeconfig) {
		// Deployments name a file of a volume that is often not there.
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			return file, true, nil
		}
	}
	return "", true, nil
}

// connect makes the client of the cluster; nil if none is used.
func (s *server) connect(f flags, env environment, reg prometheus.Registerer) (*kube.Client, error) {
	kubeconfig, use, err := f.cluster(env.kube)
	if err != nil || !use {
		return nil, err
	}
	metrics, err := kube.NewMetrics(reg)
	if err != nil {
		return nil, err
	}
	log := s.log.With("component", "kube")
	kube.UseLogger(log)
	client, err := kube.New(kube.Config{Kubeconfig: kubeconfig, QPS: f.qps, Burst: f.burst, Logger: log, Metrics: metrics})
	if err != nil {
		return nil, err
	}
	source := kubeconfig
	if source == "" {
		source = "the service account of this pod"
	}
	if f.noRegistries {
		log.Info("identity uses Kubernetes; services do not", "source", source, "name", env.kube.clusterID)
	} else {
		log.Info("identity and services use Kubernetes", "source", source, "name", env.kube.clusterID)
	}
	return client, nil
}

// newRoots makes what writes the roots into the namespaces; nil if nothing does.
func (s *server) newRoots(env environment) (*kube.Roots, error) {
	if s.kube == nil || s.authority == nil || !env.kube.roots {
		return nil, nil
	}
	lease := kube.Lease{Namespace: env.podNamespace}
	if env.kube.election {
		lease.Identity = env.kube.podName
	}
	return kube.NewRoots(kube.RootsConfig{
		Client: s.kube, Bundle: s.authority.RootPEM, Changed: s.authority.Changed, Lease: lease, Logger: s.log.With("component", "kube"),
	})
}

// isCluster tells whether a name that a call gives is that of the cluster.
func isCluster(name string, f flags, env environment) bool {
	own := env.kube.clusterID
	return name == "" || name == own || f.clusterAliases[name] == own
}
