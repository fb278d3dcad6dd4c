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

// flags are the flags of discovery that are not fields of the configuration: they
// override environment variables, or concern the program.
type flags struct {
	namespace, clusterID, stateDir      string
	keepaliveInterval, keepaliveTimeout time.Duration

	logLevel  string
	logAsJSON bool
	ineffects []string // flags without effect that are set
}

// add registers the flags. Those without a field in f set fields of c.
func (f *flags) add(fs *pflag.FlagSet, c *server.Config) {
	fs.SortFlags = false
	fs.StringVar(&c.ConfigDir, "configDir", "", "directory of Istio YAML, watched; used when the mesh config names no configSources")
	fs.StringVar(&c.Mesh.File, "meshConfig", "./etc/istio/config/mesh", "mesh config file, watched; if it is missing and objects come from a cluster, the key mesh of the ConfigMap istio (istio-<revision>) in the namespace of the control plane applies")
	fs.StringVar(&c.Mesh.NetworksFile, "networksConfig", "./etc/istio/config/meshNetworks", "file with the networks of the mesh, watched; if it is missing, the key meshNetworks of that ConfigMap applies")
	fs.StringSliceVar(&c.Cluster.Registries, "registries", nil, "platforms to read services from, besides ServiceEntries: Kubernetes (default if a cluster is used); an empty value means none, and that the cluster of this pod is not used for identity either")
	fs.StringVar(&c.Domain, "domain", "cluster.local", "DNS domain of the mesh")
	fs.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the control plane (default: POD_NAMESPACE)")
	fs.StringVar(&c.Cluster.Kubeconfig, "kubeconfig", "", "kubeconfig of the cluster that identity and services use (default: in a pod, KUBECONFIG, else its service account)")
	fs.StringVar(&f.clusterID, "clusterID", "", "name of that cluster, which agents send with a token (default: CLUSTER_ID)")
	fs.StringToStringVar(&c.Cluster.Aliases, "clusterAliases", nil, "other names of the cluster, as alias=name")
	fs.Float32Var(&c.Cluster.QPS, "kubernetesApiQPS", 80, "requests per second to the API server; token reviews do not count")
	fs.IntVar(&c.Cluster.Burst, "kubernetesApiBurst", 160, "burst of requests to the API server")
	fs.StringVar(&c.Listen.Secure, "secureGRPCAddr", ":15012", "address for ADS and certificate signing over TLS; empty turns it off")
	fs.StringVar(&c.Listen.Plaintext, "grpcAddr", "127.0.0.1:15010", "address for ADS in plaintext, unauthenticated; empty turns it off")
	fs.StringVar(&c.Listen.HTTP, "httpAddr", ":8080", "address for /ready and /debug")
	fs.StringVar(&c.Listen.Webhooks, "httpsAddr", ":15017", "with Kubernetes: address for /validate and /inject, which the API server calls; empty serves them on httpAddr")
	fs.StringVar(&c.Listen.Monitoring, "monitoringAddr", "127.0.0.1:15014", "address for /metrics, /version and /debug; empty serves them on httpAddr")
	fs.StringVar(&c.TLS.CertFile, "tlsCertFile", "", "file with the control plane's own certificate, reloaded when it changes (default: "+server.OwnCertFile+" if it exists, else one is issued)")
	fs.StringVar(&c.TLS.KeyFile, "tlsKeyFile", "", "file with its key (default: "+server.OwnKeyFile+")")
	fs.StringVar(&c.TLS.RootFile, "caCertFile", "", "file with its roots, which are distributed to the mesh in addition to its own (default: "+server.OwnRootFile+" if it exists)")
	fs.StringSliceVar(&c.TLS.Suites, "tls-cipher-suites", nil, "names of TLS 1.2 cipher suites; those of TLS 1.3 are always enabled (default: those of Go)")
	fs.DurationVar(&f.keepaliveInterval, "keepaliveInterval", 0, "idle time after which a connection is probed (default: GRPC_KEEPALIVE_INTERVAL)")
	fs.DurationVar(&f.keepaliveTimeout, "keepaliveTimeout", 0, "time to wait for the answer to a probe (default: GRPC_KEEPALIVE_TIMEOUT)")
	fs.DurationVar(&c.Keepalive.MaxAge, "keepaliveMaxServerConnectionAge", 0, "age after which proxies must reconnect, which spreads them over replicas; 0 means never")
	fs.DurationVar(&c.Shutdown, "shutdownDuration", 10*time.Second, "time limit of the shutdown: streams are closed one after the other in half of it, or sooner if there are few; calls in progress have the rest")
	fs.StringVar(&f.stateDir, "stateDir", "", "directory of the self-signed certificate authority; the status and the last valid versions of objects in files are stored in the directory config beside it (default: OUTRIGGER_STATE_DIR, else ./var/lib/outrigger/ca)")
	fs.BoolVar(&c.Profile, "profile", false, "pprof under /debug/pprof on monitoringAddr, for loopback peers")
	fs.BoolVar(&f.logAsJSON, "log_as_json", false, "write the log as JSON")
	fs.StringVar(&f.logLevel, "log_output_level", "default:info", "lowest level of the log: debug, info, warn or error")
	for _, u := range unservedFlags() {
		u.add(fs)
	}
}

// unservedFlag is a flag of pilot-discovery that is accepted and ignored.
type unservedFlag struct {
	name, kind, value string
	// nothing are the values that need no warning, because they match the
	// behavior.
	nothing []string
}

// unservedFlags returns the ignored flags, so that command lines of pilot-discovery
// work.
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
		{name: "plugins", kind: "strings"},
		{name: "vklog", kind: "string", value: "0"},
	}
}

func (u unservedFlag) add(fs *pflag.FlagSet) {
	fs.Var(&ineffective{u.kind, u.value}, u.name, "accepted, without effect")
}

// ineffective is the value of an ignored flag.
type ineffective struct{ kind, value string }

// String implements pflag.Value.
func (v *ineffective) String() string { return v.value }

// Set implements pflag.Value.
func (v *ineffective) Set(s string) error { v.value = s; return nil }

// Type implements pflag.Value.
func (v *ineffective) Type() string { return v.kind }

// resolve applies the flags that override environment variables, and records which
// flags are set.
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

// logger returns the logger that the flags describe. Levels may have Istio's form
// component:level, but all components have the same level.
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
