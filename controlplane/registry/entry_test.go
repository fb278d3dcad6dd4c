// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func TestBuildResolutions(t *testing.T) {
	t.Parallel()
	checkBuild(t, []buildCase{
		{
			name: "the address that was dialled",
			entries: map[string]string{
				"default/a": `hosts: "a.example" addresses: "10.0.0.0/8" resolution: NONE ` + http,
				"default/b": `hosts: "b.example" resolution: NONE ` + http + `endpoints {address: "10.0.0.1"}`,
			},
			want: `default/a.example http:80:HTTP passthrough external [10.0.0.0/8] [] by a
default/b.example http:80:HTTP passthrough external [] [] by b
  80 -> 10.0.0.1:80 w1 default/
`,
		},
		{
			name: "one name",
			entries: map[string]string{
				"default/a": `hosts: "a.example" resolution: DNS_ROUND_ROBIN ports {number: 443 name: "tls" target_port: 8443} ` + http,
				"default/b": `hosts: "b.example" resolution: DNS_ROUND_ROBIN ports {number: 443 name: "tls"} ` + http + `endpoints {address: "b1.example"} endpoints {address: "b2.example"}`,
			},
			want: `default/a.example tls:443:TLS http:80:HTTP round robin external [] [] by a
  80 -> a.example:80 w1 default/
  443 -> a.example:8443 w1 default/
default/b.example tls:443:TLS http:80:HTTP round robin external [] [] by b
  80 -> b1.example:80 w1 default/
  443 -> b1.example:443 w1 default/
default/b.yaml:1: ServiceEntry/default/b: the address "b2.example" cannot serve ServiceEntry/default/b: resolution DNS_ROUND_ROBIN allows one endpoint, and there is one already; write resolution: DNS
`,
		},
		{
			name:    "the name of the request",
			entries: map[string]string{"default/a": `hosts: "*.example" resolution: DYNAMIC_DNS ` + http + `endpoints {address: "10.0.0.1"}`},
			want:    "default/*.example http:80:HTTP dynamic external [] [] by a\n",
		},
		{
			name:    "addresses of one machine",
			entries: map[string]string{"default/a": `hosts: "a.example" resolution: STATIC ` + http + `endpoints {address: "fe80::1%eth0"} endpoints {address: "fe80::1"}`},
			want: `default/a.example http:80:HTTP external [] [] by a
  80 -> fe80::1:80 w1 default/
default/a.yaml:1: ServiceEntry/default/a: the address "fe80::1%eth0" cannot serve ServiceEntry/default/a: the zone "eth0" is known only on its own machine; write an address that others reach
`,
		},
		{
			name: "protocols",
			entries: map[string]string{"default/a": `hosts: "a.example" resolution: DNS
				ports {number: 1 name: "a" protocol: "http_proxy"} ports {number: 2 name: "http-b" protocol: "MONGO"} ports {number: 3 name: "redis-c"}
				ports {number: 4 name: "d"} ports {number: 5 name: "e" protocol: "UDP"} ports {number: 6 name: "udp"} ports {number: 7 name: "g" protocol: "GRPC-Web"}`},
			want: `default/a.example a:1:HTTP http-b:2:Mongo redis-c:3:Redis d:4:unsupported g:7:GRPC-Web dns external [] [] by a
  1 -> a.example:1 w1 default/
  2 -> a.example:2 w1 default/
  3 -> a.example:3 w1 default/
  4 -> a.example:4 w1 default/
  7 -> a.example:7 w1 default/
`,
		},
	})
}

func TestBuildSockets(t *testing.T) {
	t.Parallel()
	checkBuild(t, []buildCase{{
		name: "sockets",
		entries: map[string]string{
			"default/a": `hosts: "a.example" resolution: STATIC ` + http + `endpoints {address: "unix:///run/a" ports {key: "http" value: 9}} endpoints {address: "unix://@a"}`,
			"default/b": `hosts: "b.example" resolution: DNS ` + http + `endpoints {address: "unix:///run/b"}`,
			"default/c": `hosts: "c.example" resolution: STATIC ` + http + `endpoints {address: "unix://run/c"} endpoints {address: "http://c"} endpoints {address: "unix:///` + strings.Repeat("x", maxUnixPath) + `"}`,
		},
		want: `default/a.example http:80:HTTP external [] [] by a
  80 -> unix:///run/a:0 w1 default/
  80 -> unix://@a:0 w1 default/
default/b.example http:80:HTTP dns external [] [] by b
default/c.example http:80:HTTP external [] [] by c
default/b.yaml:1: ServiceEntry/default/b: the address "unix:///run/b" cannot serve ServiceEntry/default/b: a socket has no name to resolve; write resolution: STATIC in the ServiceEntry
default/c.yaml:1: ServiceEntry/default/c: the address "unix://run/c" cannot serve ServiceEntry/default/c: it names no socket; write unix:// and an absolute path, or unix://@ and a name
default/c.yaml:1: ServiceEntry/default/c: the address "http://c" cannot serve ServiceEntry/default/c: only unix:// is allowed before a path; write an IP address or unix:///path
default/c.yaml:1: ServiceEntry/default/c: the address "unix:///` + strings.Repeat("x", maxUnixPath) + `" cannot serve ServiceEntry/default/c: a path of a socket has at most 107 bytes; write a shorter one
`,
	}})
}

// TestLabelsAndDistribution checks that a service has the settings in the labels and annotations of
// its object, and that an invalid annotation is reported.
func TestLabelsAndDistribution(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]model.Distribution{
		"": "", "Any": "", "PreferClose": model.PreferSameZone, "preferSameZone": model.PreferSameZone, "PreferSameNode": model.PreferSameNode, "PreferFar": "",
	} {
		c := object(t, model.ServiceEntry, "default/a", `hosts: "a.example" resolution: DNS `+http)
		c.Labels, c.Annotations = map[string]string{model.PersistentSessionLabel: "cookie"}, map[string]string{distributionAnnotation: text}
		s, problems := build([]*model.Config{c}, nil, nil)
		svc := s.Sorted[0]
		if svc.Distribution != want || !svc.Persistent() || (len(problems) > 0) != (text == "PreferFar") {
			t.Errorf("%q: got distribution %q, problems %v", text, svc.Distribution, problems)
		}
	}
}
