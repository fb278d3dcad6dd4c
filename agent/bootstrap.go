// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap"
	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// istioTemplate is the path of the bootstrap template in Istio's images. A setting
// that names it selects the built-in bootstrap: the template is for Istio's own Envoy.
const istioTemplate = "/var/lib/istio/envoy/envoy_bootstrap_tmpl.json"

// setBootstrap sets Envoy's bootstrap in the settings: a file of the user, the output
// of a user's template, or the built-in bootstrap.
func setBootstrap(src sources, cfg *settings, tracingSet bool) (warnings []string, err error) {
	pc := cfg.proxyConfig
	path, from, warnings := chooseTemplate(src, pc)
	if own := pc.GetCustomConfigFile(); own != "" && path == "" {
		doc, err := src.read(own)
		if err != nil {
			return nil, fmt.Errorf("ProxyConfig customConfigFile is %q; it must be a bootstrap of Envoy: %w", own, err)
		}
		if len(doc) == 0 {
			return nil, fmt.Errorf("ProxyConfig customConfigFile is %q; it must be a bootstrap of Envoy: the file is empty", own)
		}
		cfg.bootstrapFile = own
		return warnings, nil
	}
	for _, file := range bootstrap.Files(pc, cfg.metadata) {
		if _, err := src.read(file.Path); err != nil {
			return nil, fmt.Errorf("%s is %q; it must be a file that Envoy can read: %w", file.Field, file.Path, err)
		}
	}
	in := bootstrap.Input{
		Node: cfg.node, Metadata: cfg.metadata, ProxyConfig: pc, BindAddress: src.Environ.BindAddress, StateOfTheWorld: !src.Environ.Envoy.DeltaXDS,
		TracingSet: tracingSet, HostIP: src.Environ.Workload.HostIP, DualStack: src.Environ.Envoy.DualStack, SystemRoots: rootsFile(src.read, pc),
		Locality: cfg.locality, Metrics: bootstrapMetrics(src.Environ.Metrics), SDSSocketName: src.Environ.Identity.SocketFile, TLS: src.Environ.Compliance,
	}
	if path == "" {
		cfg.metadata.DelimitedStats = true
		cfg.bootstrap, err = bootstrap.Render(in)
		cfg.bootstrapFile = filepath.Join(pc.GetConfigPath(), "envoy-rev.json")
		return slices.Concat(warnings, bootstrap.Replaced(pc), bootstrap.StatsDoubts(cfg.metadata)), err
	}
	template := bootstrap.Template{Path: path}
	if template.Text, err = src.read(path); err != nil {
		return nil, fmt.Errorf("%s is %q; it must be a template of Envoy's bootstrap: %w", from, path, err)
	}
	xds, _, err := upstreams(src, pc, cfg.source)
	if err != nil {
		return nil, err
	}
	in.XDSRootCert = xds.roots
	doc, doubts, err := bootstrap.RenderTemplate(in, template)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	cfg.bootstrap, cfg.bootstrapFile = doc, filepath.Join(pc.GetConfigPath(), template.Output())
	return append(warnings, doubts...), nil
}

// chooseTemplate returns the path of the user's bootstrap template and the setting
// that names it, or "".
func chooseTemplate(src sources, pc *meshv1alpha1.ProxyConfig) (path, from string, warnings []string) {
	note := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	own := func(path, from string) bool {
		clean := filepath.Clean("/" + path) // Istio's agent runs in / and uses a relative path
		if path != "" && clean == istioTemplate {
			note("%s is %q, the template of Istio's bootstrap: it is replaced by the built-in bootstrap, which stock Envoy accepts; to use a modified template, give it another name", from, path)
		}
		return path != "" && clean != istioTemplate
	}
	const variable, flag, field = "environment variable ISTIO_BOOTSTRAP", "--templateFile", "ProxyConfig proxyBootstrapTemplatePath"
	switch custom := pc.GetCustomConfigFile(); {
	case custom != "":
		if src.Environ.Envoy.Template != "" {
			note("%s is %q: it is not used, ProxyConfig customConfigFile %q is Envoy's whole configuration", variable, src.Environ.Envoy.Template, custom)
		}
		return "", "", warnings
	case src.Environ.Envoy.Template != "":
		if own(src.Environ.Envoy.Template, variable) {
			return src.Environ.Envoy.Template, variable, warnings
		}
	case src.Flags.TemplateFile != "":
		if own(src.Flags.TemplateFile, flag) {
			return src.Flags.TemplateFile, flag, warnings
		}
	case own(pc.GetProxyBootstrapTemplatePath(), field):
		return pc.GetProxyBootstrapTemplatePath(), field, warnings
	}
	return "", "", warnings
}

// systemFiles are where systems have their root certificates.
var systemFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora
	"/etc/pki/tls/certs/ca-bundle.crt",                  // older ones
	"/etc/ssl/ca-bundle.pem",                            // openSUSE
	"/etc/ssl/cert.pem",
}

// rootsFile returns the file of the system's root certificates, or "" if no server
// uses TLS or the file is not in any of the usual directories.
func rootsFile(read func(string) ([]byte, error), pc *meshv1alpha1.ProxyConfig) string {
	if pc.GetTracing().GetTlsSettings() == nil && pc.GetEnvoyMetricsService().GetTlsSettings() == nil && pc.GetEnvoyAccessLogService().GetTlsSettings() == nil {
		return ""
	}
	for _, path := range systemFiles {
		if _, err := read(path); err == nil {
			return path
		}
	}
	return ""
}

// lookupTimeout is how long the start waits for the address of statsd.
const lookupTimeout = 5 * time.Second

// resolveStatsd replaces the host name of statsd by its IP address, because Envoy does
// not resolve it. If the lookup fails, the sink is left out, which affects no traffic.
func resolveStatsd(ctx context.Context, src sources, pc *meshv1alpha1.ProxyConfig, warn func(string, ...any)) error {
	const field = "statsdUdpAddress"
	address := pc.GetStatsdUdpAddress()
	if address == "" {
		return nil
	}
	host, port, err := bootstrap.SplitAddress(field, address, src.Environ.Workload.HostIP)
	if err != nil {
		return err
	}
	ip := host
	if net.ParseIP(host) == nil {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		ips, err := src.lookup(ctx, host)
		if err == nil && len(ips) == 0 {
			err = errors.New("the name has no address")
		}
		if err != nil {
			warn("ProxyConfig %s is %q: Envoy is started without statsd: %s", field, address, err)
			pc.StatsdUdpAddress = ""
			return nil
		}
		ip = ips[0]
		for _, other := range ips {
			if parsed := net.ParseIP(other); parsed != nil && parsed.To4() != nil {
				ip = other
				break
			}
		}
	}
	pc.StatsdUdpAddress = net.JoinHostPort(ip, port)
	return nil
}

// writeBootstrap writes the rendered bootstrap, and returns a function that removes
// it. It does not touch a user's file.
func writeBootstrap(cfg *settings) (remove func(), err error) {
	if cfg.bootstrap == nil || cfg.env.Envoy.Disabled {
		return func() {}, nil
	}
	remove = func() { _ = os.Remove(cfg.bootstrapFile) } // a remaining file is overwritten at the next start
	if err := durable.ReplaceFast(cfg.bootstrapFile, cfg.bootstrap, 0o600); err != nil {
		return nil, fmt.Errorf("ProxyConfig configPath is %q: %w", cfg.proxyConfig.GetConfigPath(), err)
	}
	return remove, nil
}
