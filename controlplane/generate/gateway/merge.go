// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Merged contains the servers of all Gateways that select a proxy.
type Merged struct {
	// Problems are the problems of the Gateways.
	Problems []model.Problem

	listeners []*listener // sorted by bind, then port
}

// kind determines which servers can share a port.
type kind int

const (
	plainHTTP kind = iota // one connection manager, routes by host
	tlsByName             // filter chains by SNI
	plainTCP              // one server only, because connections cannot be distinguished
)

func (k kind) String() string { return [...]string{"HTTP", "TLS", "TCP"}[k] }

// listener contains the servers of one address.
type listener struct {
	bind    string // an IP address, or "unix://" and a path
	port    uint32 // 0 for a path
	kind    kind
	servers []*server
	// names maps the hosts of TLS servers to the server that has them.
	names map[string]*server
}

// server is one server of a Gateway.
type server struct {
	gateway  *snapshot.Gateway
	spec     *networkingv1alpha3.Server
	index    int
	protocol model.Protocol
	// route is the name of the server's routes. It is empty for servers that forward connections.
	route string
	// sources are the Gateway, and the Service that makes the server listen on a port other than
	// that of the Gateway.
	sources xds.Sources
}

// at returns the position of the server in its object.
func (s *server) at() string { return fmt.Sprintf("spec.servers[%d]", s.index) }

// number returns the port as written in the Gateway.
func (s *server) number() uint32 { return s.spec.GetPort().GetNumber() }

// terminates reports whether the server terminates TLS.
func (s *server) terminates() bool {
	switch s.spec.GetTls().GetMode() {
	case networkingv1alpha3.ServerTLSSettings_PASSTHROUGH, networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH:
		return false
	}
	return s.spec.GetTls() != nil
}

// automatic reports whether the SNI determines the destination of a connection.
func (s *server) automatic() bool {
	return s.spec.GetTls().GetMode() == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH && !s.protocol.IsHTTP()
}

// problem returns a problem of the Gateway of the server.
func (s *server) problem(format string, args ...any) model.Problem {
	return model.Problem{Object: s.gateway.Config.Key, Source: s.gateway.Config.Source, Reason: s.at() + ": " + fmt.Sprintf(format, args...)}
}

// merger assigns servers to listeners.
type merger struct {
	config   *meshv1alpha1.MeshConfig
	wildcard string
	target   func(uint32) (uint32, xds.Sources)
	byKey    map[listenerKey]*listener
	routes   map[string]*server // by the name of routes that a single server uses
	out      *Merged
}

type listenerKey struct {
	bind string
	port uint32
}

// Merge assigns the servers of Gateways to listeners, starting with the oldest Gateway. The config
// is that of the mesh. The wildcard is the bind address of servers that have none. The target
// function returns the target port of a service port of the proxy, and the Service.
func Merge(config *meshv1alpha1.MeshConfig, gateways []*snapshot.Gateway, wildcard string, target func(uint32) (uint32, xds.Sources)) *Merged {
	m := &merger{config: config, wildcard: wildcard, target: target, byKey: make(map[listenerKey]*listener), routes: make(map[string]*server), out: &Merged{}}
	for _, gw := range gateways {
		for i, spec := range gw.Spec.GetServers() {
			s := &server{gateway: gw, spec: spec, index: i, protocol: model.ParseProtocol(spec.GetPort().GetProtocol())}
			if p, ok := m.add(s); !ok {
				m.out.Problems = append(m.out.Problems, p)
			}
		}
	}
	for _, l := range m.byKey {
		m.out.listeners = append(m.out.listeners, l)
	}
	slices.SortFunc(m.out.listeners, func(a, b *listener) int {
		return cmp.Or(strings.Compare(a.bind, b.bind), cmp.Compare(a.port, b.port))
	})
	return m.out
}

// add adds a server to its listener. If it cannot, it returns the problem and false.
func (m *merger) add(s *server) (model.Problem, bool) {
	k, fault := kindOf(s)
	if fault != "" {
		return s.problem("%s", fault), false
	}
	if k == tlsByName && s.terminates() {
		if _, err := envoyconf.ServerTLS(m.config, "", s.spec.GetTls(), nil); err != nil {
			// Plaintext or another certificate is not an acceptable replacement.
			return s.problem("%s", err), false
		}
	}
	bind, fault := m.bind(s.spec.GetBind())
	if fault != "" {
		return s.problem("%s", fault), false
	}
	port, moved := m.target(s.number())
	s.sources.AddConfigs(s.gateway.Config)
	s.sources = slices.Clip(append(s.sources, moved...))
	if _, unix := envoyconf.UnixPath(bind); unix {
		port = 0
	} else if port == 0 || port > 65535 {
		return s.problem("port.number is %d: write a port from 1 to 65535", s.number()), false
	}
	key := listenerKey{bind, port}
	l := m.byKey[key]
	if l == nil {
		l = &listener{bind: bind, port: port, kind: k, names: make(map[string]*server)}
	} else if fault := l.refuses(s, k); fault != "" {
		return s.problem("%s", fault), false
	}
	switch {
	case s.protocol.IsHTTP():
		s.route = "http." + envoyconf.Number(port) + m.suffix(bind)
	case s.protocol == model.ProtocolHTTPS && s.terminates():
		s.route = "https." + envoyconf.Number(s.number()) + "." + s.spec.GetPort().GetName() + "." +
			s.gateway.Config.Name + "." + s.gateway.Config.Namespace + m.suffix(bind)
		if first := m.routes[s.route]; first != nil {
			return s.problem("port.name %q is also that of %s: give each port a name of its own", s.spec.GetPort().GetName(), first.at()), false
		}
		m.routes[s.route] = s
	}
	if k == tlsByName && !s.automatic() {
		for _, host := range plainHosts(s.spec.GetHosts()) {
			l.names[host] = s
		}
	}
	l.servers = append(l.servers, s)
	m.byKey[key] = l
	return model.Problem{}, true
}

// kindOf returns the kind of a server. The fault is empty unless the server cannot be supported.
func kindOf(s *server) (k kind, fault string) {
	tls := s.spec.GetTls()
	for _, h := range s.spec.GetHosts() {
		if !utf8.ValidString(h) {
			return 0, fmt.Sprintf("the host %q is not UTF-8", h)
		}
	}
	switch {
	case !utf8.ValidString(s.spec.GetPort().GetName() + s.spec.GetName() + s.spec.GetBind()):
		return 0, "name, port.name and bind must be UTF-8"
	case s.protocol.IsHTTP():
		if s.terminates() {
			// Plaintext is not acceptable if the author requires TLS.
			return 0, fmt.Sprintf("tls.mode is %s on a port of %s: write the protocol HTTPS, or nothing but tls.httpsRedirect", tls.GetMode(), s.protocol)
		}
		return plainHTTP, ""
	case s.protocol.IsTLS():
		if tls == nil {
			return 0, fmt.Sprintf("tls is missing: a port of %s needs it; write tls with a mode", s.protocol)
		}
		for _, h := range plainHosts(s.spec.GetHosts()) {
			if fault := serverNameFault(h); fault != "" {
				return 0, fault
			}
		}
		return tlsByName, ""
	case !s.protocol.IsTCP():
		return 0, fmt.Sprintf("port.protocol %q is not supported: write HTTP, HTTPS, HTTP2, GRPC, GRPC-WEB, TLS, TCP or MONGO", s.spec.GetPort().GetProtocol())
	case tls != nil:
		return 0, fmt.Sprintf("tls is not allowed on a port of %s: remove it, or write the protocol TLS", s.protocol)
	}
	return plainTCP, ""
}

// serverNameFault returns why a host cannot be used as an SNI, or "".
func serverNameFault(host string) string {
	if host == "*" || host != "" && !strings.Contains(strings.TrimPrefix(host, "*."), "*") {
		return ""
	}
	return fmt.Sprintf("the host %q cannot be matched: write a full name, *. and a domain, or *", host)
}

// refuses returns why a server cannot be added, or "".
func (l *listener) refuses(s *server, k kind) string {
	first := l.servers[0]
	switch {
	case l.kind != k || k == plainTCP:
		return fmt.Sprintf("port %d is already that of %s of the Gateway %s, which wins, and %s and %s cannot share it: use another port or bind",
			s.number(), first.at(), first.gateway.Name, l.kind, k)
	case k == plainHTTP || s.automatic():
		return ""
	}
	for _, host := range plainHosts(s.spec.GetHosts()) {
		if owner := l.names[host]; owner != nil {
			return fmt.Sprintf("the host %q of port %d already belongs to %s of the Gateway %s, which wins; the whole server is ignored: remove the host from one of them",
				host, s.number(), owner.at(), owner.gateway.Name)
		}
	}
	return ""
}

// bind returns the canonical form of a listener address, or a fault.
func (m *merger) bind(bind string) (address, fault string) {
	if bind == "" {
		return m.wildcard, ""
	}
	if path, ok := envoyconf.UnixPath(bind); ok {
		if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "@") || len(path) > 107 {
			return "", fmt.Sprintf("bind is %q: write unix:// and an absolute path of at most 107 bytes", bind)
		}
		return bind, ""
	}
	ip, err := netip.ParseAddr(bind)
	if err != nil || ip.Zone() != "" {
		return "", fmt.Sprintf("bind is %q: write an IP address, or unix:// and a path", bind)
	}
	return ip.String(), ""
}

// suffix returns the part of route names that distinguishes addresses.
func (m *merger) suffix(bind string) string {
	if bind == m.wildcard {
		return ""
	}
	return "." + bind
}

// name returns the name of the listener.
func (l *listener) name() string {
	if path, ok := envoyconf.UnixPath(l.bind); ok {
		return path
	}
	bind := l.bind
	if strings.Contains(bind, ":") {
		bind = "[" + bind + "]"
	}
	return bind + "_" + envoyconf.Number(l.port)
}

// plainHosts returns hosts in lower case, without their namespaces.
func plainHosts(hosts []string) []string {
	out := make([]string, 0, len(hosts))
	for _, h := range hosts {
		if _, host, ok := strings.Cut(h, "/"); ok {
			h = host
		}
		out = append(out, strings.ToLower(h))
	}
	return out
}
