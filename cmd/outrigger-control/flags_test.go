// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/controlplane/server"
)

// parse reads a command line and an environment like the program.
func parse(t *testing.T, args []string, env map[string]string) (flags, server.Config) {
	t.Helper()
	var f flags
	var e environment
	fs := pflag.NewFlagSet("discovery", pflag.ContinueOnError)
	f.add(fs, &e.Config)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := e.readFrom(func(k string) (string, bool) { v, ok := env[k]; return v, ok }); err != nil {
		t.Fatal(err)
	}
	f.resolve(fs, &e.Config)
	return f, e.Config
}

// TestDropInFlags checks that command lines of pilot-discovery deployments are accepted, and that
// the flags without effect are reported.
func TestDropInFlags(t *testing.T) {
	t.Parallel()
	f, c := parse(t, []string{
		"--monitoringAddr=:15014", "--log_output_level=default:info", "--domain", "cluster.local", "--keepaliveMaxServerConnectionAge", "30m",
	}, nil)
	if len(f.ineffects) != 0 || c.Keepalive.MaxAge != 30*time.Minute || c.Keepalive.Interval != 30*time.Second || c.Cluster.ID != "Kubernetes" {
		t.Errorf("flags of the chart: got %+v, without effect %q", c, f.ineffects)
	}
	f, c = parse(t, []string{
		"-n", "mesh", "--clusterID", "c1", "--clusterAliases", "a=c1,b=c2", "--kubernetesApiQPS", "5", "--kubernetesApiBurst", "9",
		"--keepaliveInterval", "7s", "--keepaliveTimeout", "3s", "--clusterRegistriesNamespace", "mesh", "--networksConfig", "/x",
		"--ctrlz_port", "1", "--log_target", "stdout", "--log_target=/x", "--log_rotate_max_age", "30", "--vklog=2", "--plugins", "authn,authz", "--shutdownDuration", "5s",
	}, map[string]string{"POD_NAMESPACE": "other", "CLUSTER_ID": "c0", "GRPC_KEEPALIVE_INTERVAL": "1h"})
	if c.Namespace != "mesh" || c.Cluster.ID != "c1" || c.Keepalive.Interval != 7*time.Second || c.Keepalive.Timeout != 3*time.Second || c.Cluster.QPS != 5 || c.Cluster.Burst != 9 || c.Mesh.NetworksFile != "/x" {
		t.Errorf("got flags %+v, configuration %+v", f, c)
	}
	if c.Cluster.Aliases["b"] != "c2" || c.Cluster.NoRegistries {
		t.Errorf("cluster: got %+v", c.Cluster)
	}
	want := []string{"--clusterRegistriesNamespace", "--ctrlz_port", "--log_target", "--plugins", "--vklog"}
	if !slices.Equal(f.ineffects, want) {
		t.Errorf("flags without effect: got %q, want %q", f.ineffects, want)
	}
	// pilot-discovery rejects unknown flags too.
	root := newRootCommand(nil)
	root.SetArgs([]string{"discovery", "--of-the-future"})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "of-the-future") {
		t.Errorf("an unknown flag: got error %v", err)
	}
}

func TestStateDirectory(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		env  map[string]string
		dir  string
	}{
		"not set":  {},
		"variable": {env: map[string]string{"OUTRIGGER_STATE_DIR": "v"}, dir: "v"},
		"flag":     {args: []string{"--stateDir", "f"}, env: map[string]string{"OUTRIGGER_STATE_DIR": "v"}, dir: "f"},
	} {
		_, c := parse(t, tc.args, tc.env)
		if c.StateDir != tc.dir {
			t.Errorf("%s: StateDir = %s, want %s", name, c.StateDir, tc.dir)
		}
	}
}

func TestNoRegistries(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"--registries=": true, "--registries=Kubernetes": false, "--domain=cluster.local": false} {
		if _, c := parse(t, []string{text}, nil); c.Cluster.NoRegistries != want {
			t.Errorf("%s: NoRegistries = %v", text, c.Cluster.NoRegistries)
		}
	}
}
