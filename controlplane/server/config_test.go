// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		c    Config
		says string
	}{
		"a platform": {Config{Cluster: ClusterConfig{Registries: []string{"Kubernetes", "Mock"}}, Listen: ListenConfig{Plaintext: ":1", HTTP: ":1"}}, `"Mock"`},
		"no port":    {Config{Listen: ListenConfig{HTTP: ":1"}}, "no proxy could connect"},
		"no health":  {Config{Listen: ListenConfig{Plaintext: ":1"}}, "/ready"},
	} {
		if err := tc.c.check(); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got error %v, want one with %q", name, err, tc.says)
		}
	}
	for _, r := range []string{"", "Kubernetes"} {
		if err := (&Config{Cluster: ClusterConfig{Registries: []string{r}}, Listen: ListenConfig{Secure: ":1", HTTP: ":1"}}).check(); err != nil {
			t.Error(err)
		}
	}
}

// TestClusterChoice checks that Kubernetes is used if it is configured or in a pod. A KUBECONFIG
// variable that happens to be set has no effect.
func TestClusterChoice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	there, empty := filepath.Join(dir, "config"), filepath.Join(dir, "empty")
	for file, text := range map[string]string{there: "x", empty: ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		c          ClusterConfig
		kubeconfig string
		use        bool
		says       string
	}{
		"on a machine":                  {c: ClusterConfig{Use: ClusterAuto}},
		"KUBECONFIG in the environment": {c: ClusterConfig{Use: ClusterAuto, Kubeconfigs: there}},
		"named":                         {c: ClusterConfig{Use: ClusterAuto, Kubeconfig: "k"}, kubeconfig: "k", use: true},
		"named, without registries":     {c: ClusterConfig{Use: ClusterAuto, Kubeconfig: "k", NoRegistries: true}, kubeconfig: "k", use: true},
		"in a pod":                      {c: ClusterConfig{Use: ClusterAuto, InPod: true}, use: true},
		"in a pod, no registries":       {c: ClusterConfig{Use: ClusterAuto, NoRegistries: true, InPod: true}},
		"in a pod, disabled":            {c: ClusterConfig{Use: ClusterOff, InPod: true}},
		"in a pod, another cluster":     {c: ClusterConfig{Use: ClusterAuto, Kubeconfigs: there, InPod: true}, kubeconfig: there, use: true},
		"in a pod, missing file":        {c: ClusterConfig{Use: ClusterAuto, Kubeconfigs: filepath.Join(dir, "none"), InPod: true}, use: true},
		"in a pod, empty file":          {c: ClusterConfig{Use: ClusterAuto, Kubeconfigs: empty, InPod: true}, use: true},
		"enabled":                       {c: ClusterConfig{Use: ClusterOn, Kubeconfigs: empty + ":" + there}, kubeconfig: there, use: true},
		"enabled, nothing configured":   {c: ClusterConfig{Use: ClusterOn, NoRegistries: true}, use: true}, // kube.New reports what is missing
		"contradiction":                 {c: ClusterConfig{Use: ClusterOff, Kubeconfig: "k"}, says: "remove one of them"},
	} {
		kubeconfig, use, err := tc.c.choose()
		if kubeconfig != tc.kubeconfig || use != tc.use || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got kubeconfig %q, use %v, error %v", name, kubeconfig, use, err)
		}
	}
}

func TestClusterNames(t *testing.T) {
	t.Parallel()
	c := ClusterConfig{ID: "c1", Aliases: map[string]string{"a": "c1", "b": "c2"}}
	for name, want := range map[string]bool{"": true, "c1": true, "a": true, "b": false, "c0": false, "Kubernetes": false} {
		if got := c.is(name); got != want {
			t.Errorf("cluster %q: got %v", name, got)
		}
	}
}

func TestStateDirectory(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]string{"": "./var/lib/outrigger/ca", "d": "d"} {
		if got := (&Config{StateDir: dir}).stateDir(); got != want {
			t.Errorf("stateDir() with %q = %s, want %s", dir, got, want)
		}
	}
}
