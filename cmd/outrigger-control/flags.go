// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// flags are the command line of discovery.
type flags struct {
	configDir, meshConfig, networksConfig string
	domain, namespace                     string
	registries                            []string
	noRegistries                          bool // it was said that there are none

	kubeconfig, clusterID string
	clusterAliases        map[string]string
	qps                   float32
	burst                 int

	grpcAddr, secureGRPCAddr, httpAddr, httpsAddr, monitoringAddr string
	tls                                                           tlsFlags
	keepaliveInterval, keepaliveTimeout, maxAge                   time.Duration
	shutdown                                                      time.Duration

	stateDir  string
	logLevel  string
	logAsJSON bool
	profile   bool
	ineffects []string // flags that were given in vain
}

func (f *flags) add(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.StringVar(&f.configDir, "configDir", "", "directory of Istio YAML, watched; used when the mesh config names no configSources")
	fs.StringVar(&f.meshConfig, "meshConfig", "./etc/istio/config/mesh", "mesh config file, followed; where it is missing and objects come from a cluster, the key mesh of the ConfigMap istio (istio-<revision>) in the namespace of the control plane counts")
	fs.StringVar(&f.networksConfig, "networksConfig", "./etc/istio/config/meshNetworks", "file with the networks of the mesh, followed; where it is missing, the key meshNetworks of that ConfigMap counts")
	fs.StringSliceVar(&f.registries, "registries", nil, "platforms to read services from, beside ServiceEntries: Kubernetes (default where a cluster is used); given and empty: none, and identity does not use the cluster of this pod either")
	fs.StringVar(&f.domain, "domain", "cluster.local", "DNS domain of the mesh")
	fs.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the control plane (default: POD_NAMESPACE)")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster that identity and services use (default: in a pod, KUBECONFIG, else its service account)")
	fs.StringVar(&f.clusterID, "clusterID", "", "name of that cluster, as agents give it with a token (default: CLUSTER_ID)")
	fs.StringToStringVar(&f.clusterAliases, "clusterAliases", nil, "other names of the cluster, as alias=name")
	fs.Float32Var(&f.qps, "kubernetesApiQPS", 80, "requests a second to the API server; reviews of tokens do not count")
	fs.IntVar(&f.burst, "kubernetesApiBurst", 160, "requests at once to the API server")
	fs.StringVar(&f.secureGRPCAddr, "secureGRPCAddr", ":15012", "address for ADS and certificate signing over TLS; empty turns it off")
	fs.StringVar(&f.grpcAddr, "grpcAddr", "127.0.0.1:15010", "address for ADS in plaintext, unauthenticated; empty turns it off")
	fs.StringVar(&f.httpAddr, "httpAddr", ":8080", "address for /ready and /debug")
	fs.StringVar(&f.httpsAddr, "httpsAddr", ":15017", "with Kubernetes: address for /validate, which the API server asks; empty puts it on httpAddr")
	fs.StringVar(&f.monitoringAddr, "monitoringAddr", "127.0.0.1:15014", "address for /metrics, /version and /debug; empty puts them on httpAddr")
	f.tls.add(fs)
	fs.DurationVar(&f.keepaliveInterval, "keepaliveInterval", 0, "how long a connection is silent before it is probed (default: GRPC_KEEPALIVE_INTERVAL)")
	fs.DurationVar(&f.keepaliveTimeout, "keepaliveTimeout", 0, "how long a probe may take (default: GRPC_KEEPALIVE_TIMEOUT)")
	fs.DurationVar(&f.maxAge, "keepaliveMaxServerConnectionAge", 0, "proxies are asked to connect anew after this time, so that replicas share them; 0 means never")
	fs.DurationVar(&f.shutdown, "shutdownDuration", 10*time.Second, "how long the stop may take: streams end one after the other in half of it, or sooner if they are few; calls that are under way have the rest")
	fs.StringVar(&f.stateDir, "stateDir", "", "directory of the self-signed certificate authority; objects in their last good version are kept in last-good beside it (default: OUTRIGGER_STATE_DIR, else ./var/lib/outrigger/ca)")
	fs.BoolVar(&f.profile, "profile", false, "pprof under /debug/pprof on monitoringAddr, for loopback peers")
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

// note remembers what can be seen only on the command line itself.
func (f *flags) note(fs *pflag.FlagSet) {
	f.noRegistries = fs.Changed("registries") && !slices.ContainsFunc(f.registries, func(r string) bool { return r != "" })
	for _, u := range unservedFlags() {
		if got := fs.Lookup(u.name); got.Changed && got.Value.String() != u.value && !slices.Contains(u.nothing, got.Value.String()) {
			f.ineffects = append(f.ineffects, "--"+u.name)
		}
	}
}

// over lays the flags over the variables of the same meaning.
func (f *flags) over(env *environment) {
	for to, text := range map[*string]string{&env.podNamespace: f.namespace, &env.kube.clusterID: f.clusterID} {
		if text != "" {
			*to = text
		}
	}
	for to, d := range map[*time.Duration]time.Duration{&env.keepaliveInterval: f.keepaliveInterval, &env.keepaliveTimeout: f.keepaliveTimeout} {
		if d > 0 {
			*to = d
		}
	}
}

// stateNamed tells whether somebody has named a directory for the state.
func (f *flags) stateNamed(env environment) bool { return f.stateDir+env.stateDir != "" }

// state is the directory of the certificate authority. What else the control
// plane keeps stands beside it.
func (f *flags) state(env environment) string {
	switch {
	case f.stateDir != "":
		return f.stateDir
	case env.stateDir != "":
		return env.stateDir
	}
	return "./var/lib/outrigger/ca"
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

// check refuses flags whose wish cannot be granted.
func (f *flags) check() error {
	if err := f.checkRegistries(); err != nil {
		return err
	}
	if f.shutdown < 0 {
		return fmt.Errorf("--shutdownDuration %s: write a time that is not below 0, such as 10s", f.shutdown)
	}
	if f.secureGRPCAddr == "" && f.grpcAddr == "" {
		return errors.New("--secureGRPCAddr and --grpcAddr are both empty: no proxy could connect")
	}
	if f.httpAddr == "" {
		return errors.New("--httpAddr is empty: /ready needs an address")
	}
	return nil
}
