// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/status/health"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
	"github.com/outrigger-mesh/outrigger/xdsproxy/dns"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm"
)

// The types that the agent takes or changes itself.
const (
	typeProxyConfig = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
	typeExtension   = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
)

// dataDir is for what outlives the agent, relative to the working directory.
const dataDir = "./var/lib/istio/data"

// bindDNS binds the DNS proxy, where the node's metadata asks for one.
func (s *sockets) bindDNS(cfg *config) (err error) {
	if !bool(cfg.metadata.DNSCapture) || cfg.node.Role != node.Sidecar {
		return nil
	}
	address := cfg.env.dns.address
	if cfg.env.bindAddress != "" && address == dns.DefaultAddress {
		address = net.JoinHostPort(cfg.env.bindAddress, "15053")
	}
	place := dns.Place(address, os.Getuid() == 0)
	if s.upstream, err = dns.ReadResolvConf(place.ResolvConf...); err != nil {
		return fmt.Errorf("DNS proxy: %w", err)
	}
	s.upstream.Parallel, s.upstream.Timeout = cfg.env.dns.parallel, cfg.env.dns.timeout
	if s.dns, err = dns.Listen(place.Address, s.upstream.Servers); err != nil {
		return fmt.Errorf("environment variable DNS_PROXY_ADDR is %q: %w", address, err)
	}
	return nil
}

// bindDebug binds the debug port, for peers on this machine.
func (s *sockets) bindDebug(cfg *config) (err error) {
	if !cfg.env.relay.debug {
		return nil
	}
	if s.debug, err = net.Listen("tcp", net.JoinHostPort(debugHost(cfg.local), strconv.Itoa(cfg.env.relay.debugPort))); err != nil {
		return fmt.Errorf("debug port: %w; free it, set PROXY_XDS_DEBUG_VIA_AGENT_PORT, or PROXY_XDS_DEBUG_VIA_AGENT to false", err)
	}
	return nil
}

// dnsProxy makes the DNS proxy.
func (b *builder) dnsProxy() (err error) {
	if len(b.socks.dns) == 0 {
		return nil
	}
	b.parts.dns, err = dns.New(dns.Config{
		Sockets: b.socks.dns, Domain: b.cfg.node.Domain, Namespace: b.cfg.env.podNamespace, Upstream: b.socks.upstream,
		Logger: b.scope("dns"), Registerer: b.registry,
	})
	return err
}

// wasmCache makes the cache of Wasm modules.
func (b *builder) wasmCache() (err error) {
	e := b.cfg.env.wasm
	if !e.convert || b.cfg.env.disableEnvoy {
		return nil
	}
	dir, err := filepath.Abs(dataDir) // Envoy may have another working directory
	if err != nil {
		return err
	}
	b.parts.wasm, err = wasm.New(wasm.Config{
		Dir: dir, FileDir: e.fileDir, DockerConfigDir: e.dockerConfig, InsecureRegistries: e.insecure, AllowedHosts: e.allowed,
		Expiry: e.expiry, PurgeInterval: e.purge, HTTPTimeout: e.httpTimeout, HTTPMaxAttempts: e.httpAttempts, MaxCacheBytes: int64(e.cacheBytes),
		Logger: b.scope("wasm"), Registerer: b.registry,
	})
	return err
}

// consumers are the types that the agent takes itself.
func (b *builder) consumers() []xdsproxy.Consumer {
	var list []xdsproxy.Consumer
	if table := b.parts.dns; table != nil {
		list = append(list, xdsproxy.Consumer{TypeURL: nds.TypeURL, Subscribe: true, Handle: func(messages [][]byte, _ []string) error {
			if len(messages) == 0 {
				if !table.Ready() {
					table.Update(&nds.Table{}) // there are no names
				}
				return nil
			}
			names, err := nds.Unmarshal(messages[0])
			if err != nil {
				return err
			}
			table.Update(names)
			return nil
		}})
	}
	if workload := b.parts.workload; workload != nil && b.cfg.env.relay.trustBundle {
		list = append(list, xdsproxy.Consumer{TypeURL: typeProxyConfig, Subscribe: true, Handle: func(messages [][]byte, _ []string) error {
			if len(messages) == 0 {
				return nil
			}
			pc := &meshv1alpha1.ProxyConfig{}
			if err := proto.Unmarshal(messages[0], pc); err != nil {
				return errors.New("the ProxyConfig cannot be read")
			}
			var anchors [][]byte
			for _, text := range pc.GetCaCertificatesPem() {
				anchors = append(anchors, []byte(text))
			}
			return workload.SetAnchors(anchors)
		}})
	}
	return list
}

// rewriters are the types that the agent changes.
func (b *builder) rewriters() map[string]xdsproxy.Rewriter {
	cache := b.parts.wasm
	if cache == nil {
		return nil
	}
	return map[string]xdsproxy.Rewriter{typeExtension: func(ctx context.Context, response []byte, delta bool) ([]byte, string) {
		r := cache.RewriteResponse(ctx, response, delta)
		if len(r.Failures) == 0 {
			return r.Frame, ""
		}
		return r.Frame, r.Reason()
	}}
}

// fileCheck keeps Envoy from reading files as Wasm modules that lie outside of the
// directory for them, wherever the control plane names them. Where modules are left
// to Envoy there is no such directory.
func (b *builder) fileCheck() *xdsproxy.Check {
	if b.parts.wasm == nil {
		return nil
	}
	return &xdsproxy.Check{Marker: wasm.Marker, Func: b.parts.wasm.Check}
}

// debugPort makes the server of the debug port.
func (b *builder) debugPort() (err error) {
	if b.socks.debug == nil {
		return nil
	}
	b.parts.debug, err = xdsproxy.NewDebug(xdsproxy.DebugConfig{Listener: b.socks.debug, Proxy: b.parts.relay, Logger: b.scope("xdsproxy")})
	return err
}

// healthCheck makes the check of an application that no kubelet probes.
func (b *builder) healthCheck() (err error) {
	probe := b.cfg.proxyConfig.GetReadinessProbe()
	if probe == nil {
		return nil
	}
	c := health.Config{
		Probe: probe, Address: b.cfg.node.IP, SourceIP: b.probeSource(), Report: b.parts.relay.ReportHealth,
		Logger: b.scope("healthcheck"), Registerer: b.registry,
	}
	if b.cfg.env.legacyProbeLocalhost {
		c.Address = ""
	}
	if b.parts.envoy != nil {
		c.EnvoyReady = b.parts.envoy.Ready
	}
	b.parts.health, err = health.New(c)
	return err
}

// probeSource is where probes come from: an address that the rules which
// capture traffic let pass. Empty: the kernel chooses.
func (b *builder) probeSource() string {
	switch {
	case b.cfg.metadata.InterceptionMode == "NONE", b.cfg.env.bindAddress != "":
		return ""
	case b.cfg.local == "::1":
		return "::6"
	}
	return "127.0.0.6"
}

// namesHandler shows the name table.
func namesHandler(table *dns.Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if table == nil || table.Table() == nil {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte("{}\n")) // a peer that has gone needs no answer
			return
		}
		_ = json.NewEncoder(w).Encode(table.Table()) // nor does it here
	})
}

// relayHandler shows how the streams to the control plane are.
func relayHandler(relay *xdsproxy.Proxy) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(relay.Status()) // a peer that has gone needs no answer
	})
}
