// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import "strings"

// Protocol is the application protocol of a port, spelled as Istio does.
type Protocol string

// The protocols of service ports.
const (
	ProtocolHTTP    Protocol = "HTTP"
	ProtocolHTTP2   Protocol = "HTTP2"
	ProtocolGRPC    Protocol = "GRPC"
	ProtocolGRPCWeb Protocol = "GRPC-Web"
	ProtocolTCP     Protocol = "TCP"
	ProtocolHTTPS   Protocol = "HTTPS"
	ProtocolTLS     Protocol = "TLS"
	ProtocolMongo   Protocol = "Mongo"
	ProtocolRedis   Protocol = "Redis"
	ProtocolMySQL   Protocol = "MySQL"
	// ProtocolUDP is never the protocol of a service port, because Envoy proxies only streams.
	ProtocolUDP Protocol = "UDP"
	// ProtocolUnsupported is the protocol of a port that declares none of the above. Envoy detects
	// the protocol from the first bytes; a proxy that cannot do so treats the port as TCP. It is
	// the zero value, like an unset protocol in an object.
	ProtocolUnsupported Protocol = ""
)

// String returns the name of the protocol, or "unsupported" for [ProtocolUnsupported].
func (p Protocol) String() string {
	if p == ProtocolUnsupported {
		return "unsupported"
	}
	return string(p)
}

// protocols maps lower-case names to protocols. It is never modified.
var protocols = map[string]Protocol{
	"http": ProtocolHTTP, "http_proxy": ProtocolHTTP, "http2": ProtocolHTTP2, "grpc": ProtocolGRPC, "grpc-web": ProtocolGRPCWeb,
	"tcp": ProtocolTCP, "https": ProtocolHTTPS, "tls": ProtocolTLS, "mongo": ProtocolMongo, "redis": ProtocolRedis, "mysql": ProtocolMySQL,
	"udp": ProtocolUDP,
}

// ParseProtocol parses the protocol of an Istio port, ignoring case: a protocol name, optionally
// followed by a dash and a suffix ("http-web"). It returns [ProtocolUnsupported] for anything else.
func ParseProtocol(s string) Protocol {
	const grpcWeb = "grpc-web"
	if len(s) >= len(grpcWeb) && strings.EqualFold(s[:len(grpcWeb)], grpcWeb) {
		return ProtocolGRPCWeb // the only protocol name that contains a dash
	}
	base, _, _ := strings.Cut(s, "-")
	if p, ok := protocols[strings.ToLower(base)]; ok {
		return p
	}
	return ProtocolUnsupported
}

// ParseKubernetesPort returns the protocol of a port of a Kubernetes Service. If appProtocol is not
// nil, it is used instead of the port name. If the protocol is unknown, the function returns TCP
// for the ports of server-first protocols (SMTP, DNS, MySQL, MongoDB), like Istio's protocol
// selection.
func ParseKubernetesPort(name string, appProtocol *string, port uint32) Protocol {
	if appProtocol != nil {
		switch strings.ToLower(*appProtocol) {
		case "kubernetes.io/h2c", "h2c":
			return ProtocolHTTP2
		case "kubernetes.io/ws":
			return ProtocolHTTP
		case "kubernetes.io/wss":
			return ProtocolHTTPS
		}
		name = *appProtocol
	}
	p := ParseProtocol(name)
	if p == ProtocolUnsupported {
		switch port {
		case 25, 53, 3306, 27017:
			return ProtocolTCP
		}
	}
	return p
}

// IsHTTP reports whether the port carries HTTP requests.
func (p Protocol) IsHTTP() bool { return p == ProtocolHTTP || p.IsHTTP2() }

// IsHTTP2 reports whether upstream connections must speak HTTP/2.
func (p Protocol) IsHTTP2() bool {
	return p == ProtocolHTTP2 || p == ProtocolGRPC || p == ProtocolGRPCWeb
}

// IsTLS reports whether connections begin with a TLS handshake with SNI.
func (p Protocol) IsTLS() bool { return p == ProtocolHTTPS || p == ProtocolTLS }

// IsTCP reports whether the port carries a stream that is known not to be HTTP.
func (p Protocol) IsTCP() bool {
	return p == ProtocolTCP || p.IsTLS() || p == ProtocolMongo || p == ProtocolRedis || p == ProtocolMySQL
}

// Sniffed reports whether the protocol must be detected from the first bytes of a connection.
func (p Protocol) Sniffed() bool { return p == ProtocolUnsupported }
