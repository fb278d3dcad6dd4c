// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package stores

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestDrivers checks that every scheme has a driver, and that an error about a URL says how to
// correct it.
func TestDrivers(t *testing.T) {
	t.Parallel()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	const text = `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}], clusters: [{name: a, cluster: {server: "http://127.77.161.8:1"}}]}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	none := func() (*kube.Client, error) { return nil, nil }
	open := func(address string, kinds ...model.Kind) (config.Store, error) {
		return config.Open(address, config.OpenConfig{Kinds: kinds, Drivers: Drivers(Config{Cluster: none})})
	}
	for address, name := range map[string]string{
		"etcd://127.77.161.8:1/mesh":                     "etcd://127.77.161.8:1",
		"xds://127.77.161.8:1":                           "xds://127.77.161.8:1",
		"k8s://" + kubeconfig:                            "k8s://" + kubeconfig,
		"k8s://" + kubeconfig + "?context=a&namespace=b": "k8s://" + kubeconfig + "?context=a&namespace=b",
	} {
		s, err := open(address)
		if err != nil || !strings.HasPrefix(s.Name(), name) || len(s.Schemas()) == 0 {
			t.Errorf("open(%s) = %v, %v", address, s, err)
		}
	}
	if s, err := open("k8s://"+kubeconfig, model.Sidecar); err != nil || len(s.Schemas()) != 1 {
		t.Errorf("a store for one kind: got %v, %v", s, err)
	}
	for address, words := range map[string]string{
		"k8s://":                             "this control plane uses no cluster: name a kubeconfig",
		"k8s://host/path":                    `names the host "host": write k8s:// for the local cluster`,
		"k8s://" + kubeconfig + "?ns=a":      `unknown parameters "ns=a"`,
		"k8s://" + kubeconfig + "?context=b": "does not exist",
		"k8s:///nowhere":                     "/nowhere",
		"zk://host":                          "the scheme is unknown: zk",
	} {
		if _, err := open(address); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("open(%s) = %v, want an error with %q", address, err, words)
		}
	}
}
