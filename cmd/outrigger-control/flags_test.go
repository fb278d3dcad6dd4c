// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// parse reads a command line and an environment as the program does.
func parse(t *testing.T, args []string, env map[string]string) (flags, environment) {
	t.Helper()
	var f flags
	fs := pflag.NewFlagSet("discovery", pflag.ContinueOnError)
	f.add(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	f.note(fs)
	e, err := environmentFrom(func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	f.over(&e)
	return f, e
}

// The command lines of deployments of pilot-discovery start, and say which flags
// do nothing.
func TestDropInFlags(t *testing.T) {
	t.Parallel()
	f, e := parse(t, []string{
		"--monitoringAddr=:15014", "--log_output_level=default:info", "--domain", "cluster.local", "--keepaliveMaxServerConnectionAge", "30m",
	}, nil)
	if len(f.ineffects) != 0 || f.maxAge != 30*time.Minute || f.check() != nil || e.keepaliveInterval != 30*time.Second || e.kube.clusterID != "Kubernetes" {
		t.Errorf("the chart's: %+v, without effect %q, error %v", f, f.ineffects, f.check())
	}
	f, e = parse(t, []string{
		"-n", "mesh", "--clusterID", "c1", "--clusterAliases", "a=c1,b=c2", "--kubernetesApiQPS", "5", "--kubernetesApiBurst", "9",
		"--keepaliveInterval", "7s", "--keepaliveTimeout", "3s", "--clusterRegistriesNamespace", "mesh", "--networksConfig", "/x",
		"--ctrlz_port", "1", "--log_target", "stdout", "--log_target=/x", "--log_rotate_max_age", "30", "--vklog=2", "--shutdownDuration", "5s",
	}, map[string]string{"POD_NAMESPACE": "other", "CLUSTER_ID": "c0", "GRPC_KEEPALIVE_INTERVAL": "1h"})
	if e.podNamespace != "mesh" || e.kube.clusterID != "c1" || e.keepaliveInterval != 7*time.Second || e.keepaliveTimeout != 3*time.Second || f.qps != 5 || f.burst != 9 || f.networksConfig != "/x" {
		t.Errorf("got %+v, %+v", f, e)
	}
	for name, want := range map[string]bool{"": true, "c1": true, "a": true, "b": false, "c0": false, "Kubernetes": false} {
		if got := isCluster(name, f, e); got != want {
			t.Errorf("cluster %q: %v", name, got)
		}
	}
	want := []string{"--clusterRegistriesNamespace", "--ctrlz_port", "--log_target", "--vklog"}
	if !slices.Equal(f.ineffects, want) {
		t.Errorf("without effect %q, want %q", f.ineffects, want)
	}
	root := newRootCommand()
	root.SetArgs([]string{"discovery", "--of-the-future"})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "of-the-future") {
		t.Errorf("an unknown flag: %v", err)
	}
}

func TestFlagsCheck(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		f    flags
		says string
	}{
		"a platform": {flags{registries: []string{"Kubernetes", "Mock"}, grpcAddr: ":1", httpAddr: ":1"}, `"Mock"`},
		"no port":    {flags{httpAddr: ":1"}, "no proxy could connect"},
		"no health":  {flags{grpcAddr: ":1"}, "/ready"},
	} {
		if err := tc.f.check(); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got %v, want an error that says %q", name, err, tc.says)
		}
	}
	for _, r := range []string{"", "Kubernetes"} {
		if err := (&flags{registries: []string{r}, secureGRPCAddr: ":1", httpAddr: ":1"}).check(); err != nil {
			t.Error(err)
		}
	}
}

// Kubernetes is used where somebody says so, and in a pod; a KUBECONFIG that
// lies around in somebody's shell makes nothing happen.
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
		args       []string
		env        map[string]string
		inPod      bool
		kubeconfig string
		use        bool
		says       string
	}{
		"on a machine":                {},
		"with a shell's KUBECONFIG":   {env: map[string]string{"KUBECONFIG": there}},
		"named":                       {args: []string{"--kubeconfig", "k"}, kubeconfig: "k", use: true},
		"named, without registries":   {args: []string{"--kubeconfig", "k", "--registries", ""}, kubeconfig: "k", use: true},
		"in a pod":                    {inPod: true, use: true},
		"in a pod, no registries":     {args: []string{"--registries", ""}, inPod: true},
		"in a pod, no registries =":   {args: []string{"--registries="}, inPod: true},
		"in a pod, turned off":        {env: map[string]string{"OUTRIGGER_KUBERNETES": "false"}, inPod: true},
		"in a pod, for another one":   {env: map[string]string{"KUBECONFIG": there}, inPod: true, kubeconfig: there, use: true},
		"in a pod, file is not there": {env: map[string]string{"KUBECONFIG": filepath.Join(dir, "none")}, inPod: true, use: true},
		"in a pod, file is empty":     {env: map[string]string{"KUBECONFIG": empty}, inPod: true, use: true},
		"asked for":                   {env: map[string]string{"KUBECONFIG": empty + ":" + there, "OUTRIGGER_KUBERNETES": "true"}, kubeconfig: there, use: true},
		"asked for, nothing there":    {args: []string{"--registries", ""}, env: map[string]string{"OUTRIGGER_KUBERNETES": "true"}, use: true}, // kube.New says what is missing
		"contradiction":               {args: []string{"--kubeconfig", "k"}, env: map[string]string{"OUTRIGGER_KUBERNETES": "false"}, says: "take one of them back"},
	} {
		f, e := parse(t, tc.args, tc.env)
		e.kube.inPod = tc.inPod
		kubeconfig, use, err := f.cluster(e.kube)
		if kubeconfig != tc.kubeconfig || use != tc.use || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %q, %v, %v", name, kubeconfig, use, err)
		}
	}
}

func TestStateDirectory(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args  []string
		env   map[string]string
		dir   string
		named bool
	}{
		"nobody says": {dir: "./var/lib/outrigger/ca"},
		"variable":    {env: map[string]string{"OUTRIGGER_STATE_DIR": "v"}, dir: "v", named: true},
		"flag":        {args: []string{"--stateDir", "f"}, env: map[string]string{"OUTRIGGER_STATE_DIR": "v"}, dir: "f", named: true},
	} {
		f, e := parse(t, tc.args, tc.env)
		if f.state(e) != tc.dir || f.stateNamed(e) != tc.named {
			t.Errorf("%s: %s, named %v", name, f.state(e), f.stateNamed(e))
		}
	}
}
