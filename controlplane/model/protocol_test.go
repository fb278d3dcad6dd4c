// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import "testing"

func TestParseProtocol(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Protocol{
		"HTTP": ProtocolHTTP, "http-web": ProtocolHTTP, "HTTP_PROXY": ProtocolHTTP, "http2": ProtocolHTTP2, "Http2-x-y": ProtocolHTTP2,
		"grpc": ProtocolGRPC, "grpc-api": ProtocolGRPC, "grpc-web": ProtocolGRPCWeb, "GRPC-Web": ProtocolGRPCWeb, "grpc-web-x": ProtocolGRPCWeb, "grpc-webby": ProtocolGRPCWeb,
		"tcp": ProtocolTCP, "https": ProtocolHTTPS, "tls-x": ProtocolTLS, "mongo": ProtocolMongo, "redis-0": ProtocolRedis, "mysql": ProtocolMySQL, "udp-dns": ProtocolUDP,
		"": ProtocolUnsupported, "-": ProtocolUnsupported, "-http": ProtocolUnsupported, "web": ProtocolUnsupported, "httpx": ProtocolUnsupported,
		"web-http": ProtocolUnsupported, "HBONE": ProtocolUnsupported, "UnsupportedProtocol": ProtocolUnsupported, "hTTPİ": ProtocolUnsupported,
	} {
		if got := ParseProtocol(text); got != want {
			t.Errorf("ParseProtocol(%q) = %s, want %s", text, got, want)
		}
	}
}

func TestParseKubernetesPort(t *testing.T) {
	t.Parallel()
	const none = "\x00"
	for _, c := range []struct {
		name, app string
		port      uint32
		want      Protocol
	}{
		{"http-web", none, 80, ProtocolHTTP},
		{"", none, 80, ProtocolUnsupported},
		{"web", none, 3306, ProtocolTCP},
		{"", none, 25, ProtocolTCP},
		{"dns", none, 53, ProtocolTCP},
		{"", none, 27017, ProtocolTCP},
		{"http", none, 3306, ProtocolHTTP},
		{"http", "tcp", 80, ProtocolTCP},
		{"http", "TLS", 80, ProtocolTLS},
		{"http", "", 80, ProtocolUnsupported},
		{"http", "example.com/own", 80, ProtocolUnsupported},
		{"tcp", "example.com/own", 25, ProtocolTCP},
		{"tcp", "kubernetes.io/h2c", 80, ProtocolHTTP2},
		{"tcp", "kubernetes.io/ws", 80, ProtocolHTTP},
		{"http", "kubernetes.io/wss", 80, ProtocolHTTPS},
		{"tcp", "grpc-web", 80, ProtocolGRPCWeb},
	} {
		app := &c.app
		if c.app == none {
			app = nil
		}
		if got := ParseKubernetesPort(c.name, app, c.port); got != c.want {
			t.Errorf("ParseKubernetesPort() for %+v = %s", c, got)
		}
	}
}

// TestProtocolCategories checks that each protocol belongs to exactly one category, and that only
// HTTP can be HTTP/2.
func TestProtocolCategories(t *testing.T) {
	t.Parallel()
	all := map[Protocol]bool{ProtocolUnsupported: true}
	for _, p := range protocols {
		all[p] = true
	}
	for p := range all {
		sorts := 0
		for _, is := range []bool{p.IsHTTP(), p.IsTCP(), p.Sniffed(), p == ProtocolUDP} {
			if is {
				sorts++
			}
		}
		if sorts != 1 || p.IsHTTP2() && !p.IsHTTP() || p.IsTLS() && !p.IsTCP() {
			t.Errorf("%s belongs to %d categories, or its properties contradict", p, sorts)
		}
	}
}

func FuzzParseProtocol(f *testing.F) {
	for _, seed := range []string{"http", "grpc-web", "x-", "UDP", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p := ParseProtocol(s)
		if again := ParseProtocol(string(p)); again != p {
			t.Errorf("ParseProtocol(%q) = %s, which is parsed as %s", s, p, again)
		}
		if withApp := ParseKubernetesPort("http", &s, 80); withApp != p && p != ProtocolUnsupported {
			t.Errorf("ParseProtocol(%q) = %s, but %s as appProtocol", s, p, withApp)
		}
	})
}
