// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/outrigger-mesh/outrigger/cmd/outrigger/up"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/stores"
)

const (
	userAgent = "outrigger"
	// clusterQPS is how much a command asks of a cluster in a second. The API
	// server has its own limit, and a person waits.
	clusterQPS = 1000
)

// defaultStore gives the config store of a person who names none: that of
// OUTRIGGER_STORE, of the one mesh that runs here, or the cluster.
func (e environment) defaultStore() (string, error) {
	if e.store != "" {
		return e.store, nil
	}
	running, err := up.Running(os.TempDir())
	if err != nil {
		return "", err
	}
	switch path, inCluster := e.kubeconfigPath(); {
	case len(running) == 1:
		return running[0], nil
	case len(running) > 1:
		return "", fmt.Errorf("several meshes run on this machine: choose one with --store %s", strings.Join(running, ", or --store "))
	case path != "" || inCluster:
		return "k8s://", nil
	}
	return "", errors.New("no config store: no outrigger up with a config directory runs here, and there is no kubeconfig; name one with --store, for example --store fs:///etc/mesh")
}

// localControl is where a control plane answers questions unless it is told
// otherwise, and where kubectl port-forward puts that of a pod.
const localControl = "127.0.0.1:15014"

// defaultControls gives the control planes that are asked when none is named:
// those of OUTRIGGER_CONTROL, that of the one mesh that runs here, or the one of
// this machine.
func (e environment) defaultControls() ([]string, error) {
	if e.control != "" {
		return strings.Split(e.control, ","), nil
	}
	running, err := up.RunningControls(os.TempDir())
	switch {
	case err != nil:
		return nil, err
	case len(running) > 1:
		return nil, fmt.Errorf("several meshes run on this machine: choose one with --control %s", strings.Join(running, ", or --control "))
	case len(running) == 0:
		running = []string{localControl}
	}
	return running, nil
}

// kubeconfigPath gives the kubeconfig of the user, as kubectl finds it.
func (e environment) kubeconfigPath() (path string, inCluster bool) {
	candidates := filepath.SplitList(e.kubeconfig)
	if len(candidates) == 0 && e.home != "" {
		candidates = []string{filepath.Join(e.home, ".kube", "config")}
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, false
		}
	}
	return "", e.inPod
}

// openStore opens a config store. What goes on inside is not logged: a command
// says what failed.
func (e environment) openStore(address string, kinds []model.Kind) (config.Store, error) {
	quiet := slog.New(slog.DiscardHandler)
	kube.UseLogger(quiet)
	return config.Open(address, config.OpenConfig{
		Logger: quiet, Kinds: kinds,
		Drivers: stores.Drivers(stores.Config{
			UserAgent: userAgent, QPS: clusterQPS,
			Cluster: func() (*kube.Client, error) {
				path, _ := e.kubeconfigPath()
				return kube.New(kube.Config{Kubeconfig: path, UserAgent: userAgent, QPS: clusterQPS, Burst: clusterQPS, Logger: quiet})
			},
		}),
	})
}
