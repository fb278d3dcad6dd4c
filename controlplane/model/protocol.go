// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import "strings"

// Protocol is the application protocol of a port, spelled as Istio does.
type Protocol string

// The protocols that a port can name.
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
	// ProtocolUDP is in no service: Envoy carries streams only.
	ProtocolUDP Protocol = "UDP"
	// ProtocolUnsupported is that of a port that names none of the above: what
	// comes has to be looked at. A proxy that cannot do so treats it as TCP. It is the
	// zero value, as in objects, where no protocol means the same.
	ProtocolUnsupported Protocol = ""
)

// String returns a readable name, also for an unknown protocol.
func (p Protocol) String() string {
	if p == ProtocolUnsupported {
		return "unsupported"
	}
	return string(p)
}

// protocols are all names, in small letters. It is never written to.
var protocols = map[string]Protocol{
	"http": ProtocolHTTP, "http_proxy": ProtocolHTTP, "http2": ProtocolHTTP2, "grpc": ProtocolGRPC, "grpc-web": ProtocolGRPCWeb,
	"tcp": ProtocolTCP, "https": ProtocolHTTPS, "tls": ProtocolTLS, "mongo": ProtocolMongo, "redis": ProtocolRedis, "mysql": ProtocolMySQL,
	"udp": ProtocolUDP,
}

// ParseProtocol reads the protocol of an Istio port, any case: the protocol, or
// a name that begins with it and a dash ("http-web"). Everything else is
// [ProtocolUnsupported].
func ParseProtocol(s string) Protocol {
	const grpcWeb = "grpc-web"
	if len(s) >= len(grpcWeb) && strings.EqualFold(s[:len(grpcWeb)], grpcWeb) {
		return ProtocolGRPCWeb // the one with a dash of its own
	}
	base, _, _ := strings.Cut(s, "-")
	if p, ok := protocols[strings.ToLower(base)]; ok {
		return p
	}
	return ProtocolUnsupported
}

// ParseKubernetesPort reads the protocol of a port of a Kubernetes Service:
// appProtocol, which may be nil, goes before the name. Neither of them known
// means TCP on ports whose servers speak first (SMTP, DNS, MySQL, MongoDB), as in
// Istio's protocol selection.
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

// IsHTTP reports whether requests on the port are HTTP requests.
func (p Protocol) IsHTTP() bool { return p == ProtocolHTTP || p.IsHTTP2() }

// IsHTTP2 reports whether upstream connections must speak HTTP/2.
func (p Protocol) IsHTTP2() bool {
	return p == ProtocolHTTP2 || p == ProtocolGRPC || p == ProtocolGRPCWeb
}

// IsTLS reports whether connections begin with a TLS handshake that names a
// server.
func (p Protocol) IsTLS() bool { return p == ProtocolHTTPS || p == ProtocolTLS }

// IsTCP reports whether the port carries a stream that is known to be no HTTP.
func (p Protocol) IsTCP() bool {
	return p == ProtocolTCP || p.IsTLS() || p == ProtocolMongo || p == ProtocolRedis || p == ProtocolMySQL
}

// Sniffed reports whether only the first bytes tell the protocol.
func (p Protocol) Sniffed() bool { return p == ProtocolUnsupported }
