// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/controlplane/server"
)

// flags are the command line of discovery. Most are fields of the configuration;
// these have a variable of the same meaning, or are about the program.
type flags struct {
	namespace, clusterID, stateDir      string
	keepaliveInterval, keepaliveTimeout time.Duration

	logLevel  string
	logAsJSON bool
	ineffects []string // flags that were given in vain
}

// add registers the flags. Those that f does not have set fields of c.
func (f *flags) add(fs *pflag.FlagSet, c *server.Config) {
	fs.SortFlags = false
	fs.StringVar(&c.ConfigDir, "configDir", "", "directory of Istio YAML, watched; used when the mesh config names no configSources")
	fs.StringVar(&c.Mesh.File, "meshConfig", "./etc/istio/config/mesh", "mesh config file, followed; where it is missing and objects come from a cluster, the key mesh of the ConfigMap istio (istio-<revision>) in the namespace of the control plane counts")
	fs.StringVar(&c.Mesh.NetworksFile, "networksConfig", "./etc/istio/config/meshNetworks", "file with the networks of the mesh, followed; where it is missing, the key meshNetworks of that ConfigMap counts")
	fs.StringSliceVar(&c.Cluster.Registries, "registries", nil, "platforms to read services from, beside ServiceEntries: Kubernetes (default where a cluster is used); given and empty: none, and identity does not use the cluster of this pod either")
	fs.StringVar(&c.Domain, "domain", "cluster.local", "DNS domain of the mesh")
	fs.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the control plane (default: POD_NAMESPACE)")
	fs.StringVar(&c.Cluster.Kubeconfig, "kubeconfig", "", "kubeconfig of the cluster that identity and services use (default: in a pod, KUBECONFIG, else its service account)")
	fs.StringVar(&f.clusterID, "clusterID", "", "name of that cluster, as agents give it with a token (default: CLUSTER_ID)")
	fs.StringToStringVar(&c.Cluster.Aliases, "clusterAliases", nil, "other names of the cluster, as alias=name")
	fs.Float32Var(&c.Cluster.QPS, "kubernetesApiQPS", 80, "requests a second to the API server; reviews of tokens do not count")
	fs.IntVar(&c.Cluster.Burst, "kubernetesApiBurst", 160, "requests at once to the API server")
	fs.StringVar(&c.Listen.Secure, "secureGRPCAddr", ":15012", "address for ADS and certificate signing over TLS; empty turns it off")
	fs.StringVar(&c.Listen.Plaintext, "grpcAddr", "127.0.0.1:15010", "address for ADS in plaintext, unauthenticated; empty turns it off")
	fs.StringVar(&c.Listen.HTTP, "httpAddr", ":8080", "address for /ready and /debug")
	fs.StringVar(&c.Listen.Webhooks, "httpsAddr", ":15017", "with Kubernetes: address for /validate, which the API server asks; empty puts it on httpAddr")
	fs.StringVar(&c.Listen.Monitoring, "monitoringAddr", "127.0.0.1:15014", "address for /metrics, /version and /debug; empty puts them on httpAddr")
	fs.StringVar(&c.TLS.CertFile, "tlsCertFile", "", "file with the control plane's own certificate, read again when it changes (default: "+server.OwnCertFile+" if it is there, else one is made)")
	fs.StringVar(&c.TLS.KeyFile, "tlsKeyFile", "", "file with its key (default: "+server.OwnKeyFile+")")
	fs.StringVar(&c.TLS.RootFile, "caCertFile", "", "file with roots above it, which the mesh is given beside its own (default: "+server.OwnRootFile+" if it is there)")
	fs.StringSliceVar(&c.TLS.Suites, "tls-cipher-suites", nil, "cipher suites of TLS 1.2, by their names; those of TLS 1.3 are always on (default: those of Go)")
	fs.DurationVar(&f.keepaliveInterval, "keepaliveInterval", 0, "how long a connection is silent before it is probed (default: GRPC_KEEPALIVE_INTERVAL)")
	fs.DurationVar(&f.keepaliveTimeout, "keepaliveTimeout", 0, "how long a probe may take (default: GRPC_KEEPALIVE_TIMEOUT)")
	fs.DurationVar(&c.Keepalive.MaxAge, "keepaliveMaxServerConnectionAge", 0, "proxies are asked to connect anew after this time, so that replicas share them; 0 means never")
	fs.DurationVar(&c.Shutdown, "shutdownDuration", 10*time.Second, "how long the stop may take: streams end one after the other in half of it, or sooner if they are few; calls that are under way have the rest")
	fs.StringVar(&f.stateDir, "stateDir", "", "directory of the self-signed certificate authority; the status and the last good versions of objects in files are kept in config beside it (default: OUTRIGGER_STATE_DIR, else ./var/lib/outrigger/ca)")
	fs.BoolVar(&c.Profile, "profile", false, "pprof under /debug/pprof on monitoringAddr, for loopback peers")
	fs.BoolVar(&f.logAsJSON, "log_as_json", false, "write the log as JSON")
	fs.StringVar(&f.logLevel, "log_output_level", "default:info", "lowest level of the log: debug, info, warn or error")
	for _, u := range unservedFlags() {
		u.add(fs)
	}
}

// unservedFlag is a flag of pilot-discovery that is taken and does nothing.
type unservedFlag struct {
	name, kind, value string
	// nothing are the values that ask for nothing, or for what is done anyway.
	nothing []string
}

// unservedFlags are those of pilot-discovery, so that its command line starts.
func unservedFlags() []unservedFlag {
	return []unservedFlag{
		{name: "clusterRegistriesNamespace", kind: "string"},
		{name: "ctrlz_address", kind: "string", value: "localhost"},
		{name: "ctrlz_port", kind: "int", value: "9876"},
		{name: "log_caller", kind: "string"},
		{name: "log_rotate", kind: "string"},
		{name: "log_rotate_max_age", kind: "int", value: "30"},
		{name: "log_rotate_max_backups", kind: "int", value: "1000"},
		{name: "log_rotate_max_size", kind: "int", value: "104857600"},
		{name: "log_stacktrace_level", kind: "string", value: "default:none"},
		{name: "log_target", kind: "stringArray", value: "[stdout]", nothing: []string{"[stdout]"}},
		{name: "vklog", kind: "string", value: "0"},
	}
}

func (u unservedFlag) add(fs *pflag.FlagSet) {
	fs.Var(&ineffective{u.kind, u.value}, u.name, "accepted, without effect")
}

// ineffective is the value of a flag that nobody reads.
type ineffective struct{ kind, value string }

// String implements pflag.Value.
func (v *ineffective) String() string { return v.value }

// Set implements pflag.Value.
func (v *ineffective) Set(s string) error { v.value = s; return nil }

// Type implements pflag.Value.
func (v *ineffective) Type() string { return v.kind }

// resolve completes the configuration with what only the command line itself
// shows, and lays flags over the variables of the same meaning.
func (f *flags) resolve(fs *pflag.FlagSet, c *server.Config) {
	c.Cluster.NoRegistries = fs.Changed("registries") && !slices.ContainsFunc(c.Cluster.Registries, func(r string) bool { return r != "" })
	for _, u := range unservedFlags() {
		if got := fs.Lookup(u.name); got.Changed && got.Value.String() != u.value && !slices.Contains(u.nothing, got.Value.String()) {
			f.ineffects = append(f.ineffects, "--"+u.name)
		}
	}
	for to, text := range map[*string]string{&c.Namespace: f.namespace, &c.Cluster.ID: f.clusterID, &c.StateDir: f.stateDir} {
		if text != "" {
			*to = text
		}
	}
	for to, d := range map[*time.Duration]time.Duration{&c.Keepalive.Interval: f.keepaliveInterval, &c.Keepalive.Timeout: f.keepaliveTimeout} {
		if d > 0 {
			*to = d
		}
	}
}

// logger makes the log that the flags ask for. Istio's form scope:level is
// read; there is one scope.
func (f *flags) logger() (*slog.Logger, error) {
	var level slog.Level
	for _, item := range strings.Split(f.logLevel, ",") {
		_, text, found := strings.Cut(item, ":")
		if !found {
			text = item
		}
		if text == "none" || text == "fatal" {
			level = slog.LevelError + 1
		} else if err := level.UnmarshalText([]byte(text)); err != nil {
			return nil, fmt.Errorf("--log_output_level %q: write debug, info, warn or error", f.logLevel)
		}
	}
	opts := &slog.HandlerOptions{Level: level}
	if f.logAsJSON {
		return slog.New(slog.NewJSONHandler(os.Stdout, opts)), nil
	}
	return slog.New(slog.NewTextHandler(os.Stdout, opts)), nil
}
