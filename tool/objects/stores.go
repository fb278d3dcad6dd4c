// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/stores"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	userAgent = "outrigger"
	// clusterQPS is the client-side limit of requests per second to a cluster. The API server has
	// its own limit, and the user is waiting.
	clusterQPS = 1000
)

// Stores describes where to find the config stores of the user.
type Stores struct {
	Named      string // from OUTRIGGER_STORE
	Kubeconfig string // from KUBECONFIG
	Home       string // home directory of the user
	InPod      bool   // this process runs in a pod
}

// Default returns the default config store: the one in OUTRIGGER_STORE, else that of the only mesh
// that runs on this machine, else the cluster.
func (s Stores) Default() (string, error) {
	if s.Named != "" {
		return s.Named, nil
	}
	running, err := mesh.Running(os.TempDir())
	if err != nil {
		return "", err
	}
	switch path, inCluster := s.kubeconfigPath(); {
	case len(running) == 1:
		return running[0], nil
	case len(running) > 1:
		return "", fmt.Errorf("several meshes run on this machine: choose one with --store %s", strings.Join(running, ", or --store "))
	case path != "" || inCluster:
		return "k8s://", nil
	}
	return "", errors.New("no config store: no outrigger up with a config directory runs here, and there is no kubeconfig; name one with --store, for example --store fs:///etc/mesh" +
		mesh.OtherControls("name its config directory with --store"))
}

// kubeconfigPath returns the path of the user's kubeconfig, with the same rules as kubectl.
func (s Stores) kubeconfigPath() (path string, inCluster bool) {
	candidates := filepath.SplitList(s.Kubeconfig)
	if len(candidates) == 0 && s.Home != "" {
		candidates = []string{filepath.Join(s.Home, ".kube", "config")}
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, false
		}
	}
	return "", s.InPod
}

// HasCluster reports whether there is a kubeconfig, or a cluster that this program runs in.
func (s Stores) HasCluster() bool {
	path, inPod := s.kubeconfigPath()
	return path != "" || inPod
}

// Cluster returns an HTTP client for the API server of a context of the user's kubeconfig, and the
// API server's URL. An empty context means the current one.
func (s Stores) Cluster(kubeContext string) (*http.Client, string, error) {
	path, inPod := s.kubeconfigPath()
	if path == "" && !inPod {
		return nil, "", errors.New("no cluster: there is no kubeconfig; name one in KUBECONFIG")
	}
	return kube.HTTP(kube.Config{Kubeconfig: path, Context: kubeContext, UserAgent: userAgent})
}

// Open opens a config store with logging disabled: the command reports failures.
func (s Stores) Open(address string, kinds []model.Kind) (config.Store, error) {
	quiet := slog.New(slog.DiscardHandler)
	kube.UseLogger(quiet)
	state, err := mesh.RunningState(os.TempDir(), address)
	if err != nil {
		return nil, err
	}
	return config.Open(address, config.OpenConfig{
		Logger: quiet, Kinds: kinds, State: state,
		Drivers: stores.Drivers(stores.Config{
			UserAgent: userAgent, QPS: clusterQPS,
			Cluster: func() (*kube.Client, error) {
				path, _ := s.kubeconfigPath()
				return kube.New(kube.Config{Kubeconfig: path, UserAgent: userAgent, QPS: clusterQPS, Burst: clusterQPS, Logger: quiet})
			},
		}),
	})
}
