// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/bootstrap"
	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/bootstrap/platform"
	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/status"
)

// The files of the downward API, relative to the working directory.
const (
	labelsFile      = "./etc/istio/pod/labels"
	annotationsFile = "./etc/istio/pod/annotations"
)

// The annotations of a pod that change its ProxyConfig.
const (
	annotationProxyConfig = "proxy.istio.io/config"
	annotationDiscovery   = "sidecar.istio.io/discoveryAddress"
	annotationStatusPort  = "status.sidecar.istio.io/port"
	// Interfaces, with commas between, whose addresses are not those of the proxy.
	annotationExcludeInterfaces = "traffic.sidecar.istio.io/excludeInterfaces"
	// Several scrape targets of the application, as in Istio 1.31.
	annotationScrapeTargets = "prometheus.istio.io/scrape-targets"
)

// settings is the resolved configuration of the agent. It is immutable.
type settings struct {
	flags       Flags
	now         <-chan struct{}
	logLevels   http.Handler
	version     string
	env         environ.Values
	proxyConfig *meshv1alpha1.ProxyConfig
	node        node.ID
	metadata    *node.Metadata
	locality    bootstrap.Locality // of the cloud, if there is one
	identity    certs.ID
	source      identitySource
	keyType     certs.KeyType

	// local is the host of the local ports of agent and Envoy.
	local string
	// bootstrap is Envoy's configuration, and bootstrapFile the file to write it
	// to. If bootstrap is nil, bootstrapFile is a user's file.
	bootstrap     []byte
	bootstrapFile string
	envoyArgs     []string

	xds, ca   upstream
	probers   status.Probers
	appScrape []status.AppScrape
}

// sources are the inputs of settings.
type sources struct {
	Config
	// read reads a file, and interfaces returns the host's interfaces that are up.
	// Tests replace them.
	read       func(string) ([]byte, error)
	interfaces func() []networkInterface
	// lookup returns the addresses of a name.
	lookup func(ctx context.Context, host string) ([]string, error)
	// platform detects the cloud; nil means none.
	platform func(ipv6 bool) platform.Result
}

// resolve returns the settings. Flags override the pod's annotations, which override
// the environment, which overrides the mesh config file, which overrides the defaults.
// The warnings are sentences for the log. Lookups end with ctx.
func resolve(ctx context.Context, src sources) (cfg *settings, warnings []string, err error) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	labels := podInfo(src.read, labelsFile, warn)
	annotations := podInfo(src.read, annotationsFile, warn)
	pc, tracingSet, err := resolveProxyConfig(ctx, src, annotations, warn)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range src.Environ.Unserved {
		warn("environment variable %s is set but has no effect: it is not supported yet", name)
	}
	cfg = &settings{flags: src.Flags, now: src.Now, logLevels: src.LogLevels, version: src.Version, env: src.Environ, proxyConfig: pc}
	ips, err := proxyAddresses(src, annotations[annotationExcludeInterfaces], warn)
	if err != nil {
		return nil, nil, err
	}
	if cfg.node, err = nodeID(src, ips[0], warn); err != nil {
		return nil, nil, err
	}
	var cloud platform.Result
	if src.platform != nil {
		cloud = src.platform(bootstrap.OnlyIPv6(ips))
		cfg.locality = bootstrap.Locality(cloud.Locality)
	}
	cfg.identity = certs.ID{TrustDomain: src.Environ.Workload.TrustDomain, Namespace: src.Environ.Workload.Namespace, ServiceAccount: src.Environ.Workload.ServiceAccount}
	if cfg.keyType, err = keyType(src.Environ); err != nil {
		return nil, nil, err
	}
	if cfg.source, err = resolveIdentity(src); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(checkIdentity(cfg), checkCompliance(src.Environ, cfg.keyType), checkWasm(src.Environ), checkMetrics(cfg)); err != nil {
		return nil, nil, err
	}
	var left []string
	cfg.metadata, left, err = bootstrap.NodeMetadata(bootstrap.MetadataInput{
		Variables: src.Environ.Metadata, Labels: labels, Annotations: annotations, ProxyConfig: pc, Own: own(src, cfg.node, ips, cloud.Metadata),
	})
	if err != nil {
		return nil, nil, err
	}
	warnings = append(warnings, left...)
	if left, err = setBootstrap(src, cfg, tracingSet); err != nil {
		return nil, nil, err
	}
	warnings = append(warnings, left...)
	cfg.local = bootstrap.LocalAddress(src.Environ.BindAddress, ips, src.Environ.Envoy.DualStack)
	if cfg.envoyArgs, err = envoyArgs(src, cfg, ips, warn); err != nil {
		return nil, nil, err
	}
	if cfg.xds, cfg.ca, err = upstreams(src, pc, cfg.source); err != nil {
		return nil, nil, err
	}
	if cfg.probers, err = status.ParseProbers(src.Environ.Probe.AppProbers); err != nil {
		return nil, nil, err
	}
	if src.Role == node.Sidecar {
		if cfg.appScrape, err = status.ParseScrape(src.Environ.Metrics.Annotations, annotations[annotationScrapeTargets], int(pc.GetStatusPort())); err != nil {
			return nil, nil, err
		}
	}
	return cfg, warnings, nil
}

// resolveProxyConfig merges the sources of the ProxyConfig, and reports whether one of
// them sets tracing.
func resolveProxyConfig(ctx context.Context, src sources, annotations map[string]string, warn func(string, ...any)) (pc *meshv1alpha1.ProxyConfig, tracingSet bool, err error) {
	pc = meshconfig.DefaultProxyConfig()
	doc, err := src.read(src.Flags.MeshConfig)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, false, fmt.Errorf("--meshConfig: %w", err)
	default:
		mesh, err := meshconfig.Parse(doc)
		if err != nil {
			return nil, false, fmt.Errorf("--meshConfig %s: %w", src.Flags.MeshConfig, err)
		}
		pc = mesh.GetDefaultConfig()
	}
	const tracing = "tracing"
	tracingSet = meshconfig.HasField(doc, "defaultConfig", tracing) || meshconfig.HasField([]byte(src.Environ.Envoy.ProxyConfig), tracing) ||
		meshconfig.HasField([]byte(annotations[annotationProxyConfig]), tracing)
	if pc, err = meshconfig.ApplyProxyConfig(pc, src.Environ.Envoy.ProxyConfig); err != nil {
		return nil, false, fmt.Errorf("environment variable PROXY_CONFIG: %w", err)
	}
	if pc, err = meshconfig.ApplyProxyConfig(pc, annotations[annotationProxyConfig]); err != nil {
		return nil, false, fmt.Errorf("annotation %s: %w", annotationProxyConfig, err)
	}
	if pc.GetConcurrency() == nil && src.Environ.Envoy.CPULimit > 0 {
		pc.Concurrency = wrapperspb.Int32(int32(min(src.Environ.Envoy.CPULimit, 1<<16)))
	}
	if src.Flags.Concurrency != 0 {
		pc.Concurrency = wrapperspb.Int32(int32(min(src.Flags.Concurrency, 1<<16)))
	}
	if _, ok := pc.GetClusterName().(*meshv1alpha1.ProxyConfig_ServiceCluster); ok && pc.GetServiceCluster() == "" {
		pc.ClusterName = &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: src.Flags.ServiceCluster}
	}
	if err := resolveStatsd(ctx, src, pc, warn); err != nil {
		return nil, false, err
	}
	if address := annotations[annotationDiscovery]; address != "" {
		if err := meshconfig.CheckAddress(address); err != nil {
			return nil, false, fmt.Errorf("annotation %s is %q: %w", annotationDiscovery, address, err)
		}
		pc.DiscoveryAddress = address
	}
	if text := annotations[annotationStatusPort]; text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, false, fmt.Errorf("annotation %s is %q; it must be a port from 0 (no status port) to 65535", annotationStatusPort, text)
		}
		pc.StatusPort = int32(port)
	}
	if err := meshconfig.ValidateProxyConfig(pc); err != nil {
		return nil, false, fmt.Errorf("ProxyConfig: %w", err)
	}
	return pc, tracingSet, nil
}

// podInfo reads a file of the downward API. A missing or invalid file must not prevent
// the workload from starting.
func podInfo(read func(string) ([]byte, error), path string, warn func(string, ...any)) map[string]string {
	data, err := read(path)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			warn("%s is ignored: %s", path, err)
		}
		return nil
	}
	values, err := bootstrap.ParsePodInfo(string(data))
	if err != nil {
		warn("%s is ignored: %s", path, err)
	}
	return values
}

func nodeID(src sources, ip string, warn func(string, ...any)) (node.ID, error) {
	name, domain := src.Environ.Workload.Name, src.Flags.Domain
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return node.ID{}, fmt.Errorf("environment variable POD_NAME is not set, and the host has no name: %w", err)
		}
		name, _, _ = strings.Cut(host, ".")
		warn("environment variable POD_NAME is not set, the host's name %s is used", name)
	}
	if src.Environ.Workload.Namespace == "" {
		return node.ID{}, errors.New("environment variable POD_NAMESPACE is not set; it must be the namespace of the workload")
	}
	for variable, value := range map[string]string{"POD_NAME": name, "POD_NAMESPACE": src.Environ.Workload.Namespace} {
		if strings.Contains(value, "~") {
			return node.ID{}, fmt.Errorf("environment variable %s is %q; it must be a name without ~, which separates the parts of the node id", variable, value)
		}
	}
	if domain == "" {
		domain = src.Environ.Workload.Namespace + ".svc.cluster.local"
	}
	if strings.Contains(domain, "~") {
		return node.ID{}, fmt.Errorf("--domain is %q; it must be a DNS domain such as default.svc.cluster.local", domain)
	}
	return node.ParseID(node.ID{Role: src.Role, IP: ip, Name: name + "." + src.Environ.Workload.Namespace, Domain: domain}.String())
}

// own returns the metadata that the agent determines itself.
func own(src sources, id node.ID, ips []string, cloud map[string]string) node.Metadata {
	return node.Metadata{
		Name:                        strings.TrimSuffix(id.Name, "."+src.Environ.Workload.Namespace),
		Namespace:                   src.Environ.Workload.Namespace,
		ServiceAccount:              src.Environ.Workload.ServiceAccount,
		InstanceIPs:                 ips,
		EnvoyStatusPort:             node.Port(src.Environ.Envoy.StatusPort),
		EnvoyPrometheusPort:         node.Port(src.Environ.Envoy.PrometheusPort),
		ExitOnZeroActiveConnections: node.Bool(src.Environ.Envoy.ExitOnZero),
		OutlierLogPath:              src.Flags.OutlierLogPath,
		Denies:                      src.Environ.Metrics.SecurePort != 0 || src.Environ.Metrics.SecureMergedPort != 0,
		Records:                     recorded(src.Environ),
		ReportsKeys:                 node.Bool(!src.Environ.Envoy.Disabled),
		PlatformMetadata:            cloud,
	}
}

// recorded returns the headers of the requests that can be recorded. The log spells only well-known
// methods, so the method is one of them. Without Envoy nothing can be recorded.
func recorded(env environ.Values) node.List {
	if env.Envoy.Disabled {
		return nil
	}
	return append(node.List{":method"}, env.RecordHeaders...)
}

// maxArgument is the kernel's limit of one argument of a program, in bytes.
const maxArgument = 128<<10 - 1

func envoyArgs(src sources, cfg *settings, ips []string, warn func(string, ...any)) ([]string, error) {
	_, _, dropped := envoy.ParseLogLevel(src.Flags.ProxyLogLevel)
	for _, entry := range dropped {
		warn("--proxyLogLevel: %q is ignored, write a level or component:level; the levels are %s", entry, strings.Join(envoy.LogLevels(), ", "))
	}
	override := ""
	if path := src.Environ.Envoy.Override; path != "" {
		doc, err := src.read(path)
		if err != nil {
			warn("environment variable ISTIO_BOOTSTRAP_OVERRIDE: envoy is started without it: %s", err)
		}
		override = string(doc)
		if len(override) > maxArgument || strings.ContainsRune(override, 0) {
			return nil, fmt.Errorf("environment variable ISTIO_BOOTSTRAP_OVERRIDE is %q, a file of %d bytes: it becomes an argument of Envoy, so it must be text of at most %d bytes; customConfigFile of ProxyConfig has no such limit", path, len(override), maxArgument)
		}
	}
	return envoy.Args(envoy.ArgsInput{
		ConfigFile:         cfg.bootstrapFile,
		DrainDuration:      cfg.proxyConfig.GetDrainDuration().AsDuration(),
		IPv6Only:           bootstrap.OnlyIPv6(ips),
		LogLevel:           src.Flags.ProxyLogLevel,
		ComponentLogLevel:  src.Flags.ComponentLogLevel,
		JSONLog:            src.JSONLog,
		OverrideYAML:       override,
		Concurrency:        int(cfg.proxyConfig.GetConcurrency().GetValue()),
		SkipDeprecatedLogs: src.Environ.Envoy.SkipDeprecatedLogs,
		HotRestart:         src.Flags.HotRestart,
	}), nil
}

// drain returns how to drain and stop Envoy.
func (c *settings) drain() envoy.DrainConfig {
	return envoy.DrainConfig{
		InboundOnly: c.node.Role == node.Sidecar,
		Duration:    c.proxyConfig.GetTerminationDrainDuration().AsDuration(),
		ExitOnZero:  c.env.Envoy.ExitOnZero,
		MinDuration: c.env.Envoy.MinDrain,
		IgnorePorts: c.ownPorts(),
		KillAfter:   5 * time.Second,
		MaxDuration: c.flags.MaxDrain,
		Now:         c.now,
	}
}

// ownPorts returns the ports of Envoy that probes and scrapes stay connected to.
func (c *settings) ownPorts() []int {
	ports := []int{c.env.Envoy.StatusPort, c.env.Envoy.PrometheusPort}
	for _, port := range []int{c.env.Metrics.SecurePort, c.env.Metrics.SecureMergedPort} {
		if port != 0 {
			ports = append(ports, port)
		}
	}
	return ports
}

// address returns the address of a local port.
func (c *settings) address(port int) string { return net.JoinHostPort(c.local, strconv.Itoa(port)) }
