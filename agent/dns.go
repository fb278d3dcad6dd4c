// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/internal/handover"
	"github.com/outrigger-mesh/outrigger/xdsproxy/dns"
)

// bindDNS binds the DNS proxy, if the node's metadata enables it.
func (s *sockets) bindDNS(cfg *settings, inherited *handover.Sockets) (err error) {
	if !bool(cfg.metadata.DNSCapture) || cfg.node.Role != node.Sidecar {
		return nil
	}
	address := cfg.env.DNS.Address
	if cfg.env.BindAddress != "" && address == dns.DefaultAddress {
		address = net.JoinHostPort(cfg.env.BindAddress, "15053")
	}
	place := dns.Place(address, os.Getuid() == 0)
	if s.upstream, err = dns.ReadResolvConf(place.ResolvConf...); err != nil {
		return fmt.Errorf("DNS proxy: %w", err)
	}
	s.upstream.Parallel, s.upstream.Timeout = cfg.env.DNS.Parallel, cfg.env.DNS.Timeout
	if s.dns, err = dns.Listen(place.Address, s.upstream.Servers, inherited); err != nil {
		return fmt.Errorf("environment variable DNS_PROXY_ADDR is %q: %w", address, err)
	}
	return nil
}

// dnsProxy creates the DNS proxy.
func (b *builder) dnsProxy() (err error) {
	if len(b.socks.dns) == 0 {
		return nil
	}
	b.parts.dns, err = dns.New(dns.Config{
		Sockets: b.socks.dns, Domain: b.cfg.node.Domain, Namespace: b.cfg.env.Workload.Namespace, Upstream: b.socks.upstream,
		Logger: b.logger("dns"), Registerer: b.registry,
	})
	return err
}

// namesMissing reports whether the DNS proxy has not received its first names yet.
func (b *builder) namesMissing() bool { return b.parts.dns != nil && !b.parts.dns.Ready() }

// namesHandler serves the name table.
func namesHandler(table *dns.Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if table == nil || table.Table() == nil {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte("{}\n")) // a disconnected peer needs no answer
			return
		}
		_ = json.NewEncoder(w).Encode(table.Table()) // a disconnected peer needs no answer
	})
}
