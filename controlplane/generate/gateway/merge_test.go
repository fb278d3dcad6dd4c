// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gateway

import (
	"fmt"
	"strings"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// spec parses a server: protocol, port, bind, TLS mode, credential, hosts; "-" means empty.
func spec(t *testing.T, text string) *networkingv1alpha3.Server {
	t.Helper()
	words := strings.Fields(text)
	s := &networkingv1alpha3.Server{Port: &networkingv1alpha3.Port{Protocol: words[0], Name: strings.Join(words, "-")}, Hosts: words[5:]}
	if _, err := fmt.Sscan(words[1], &s.Port.Number); err != nil {
		t.Fatal(err)
	}
	if words[2] != "-" {
		s.Bind = words[2]
	}
	if words[3] != "-" {
		s.Tls = &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_TLSmode(networkingv1alpha3.ServerTLSSettings_TLSmode_value[words[3]])}
		if words[4] != "-" {
			s.Tls.CredentialName = words[4]
		}
	}
	return s
}

// TestMerge assigns servers to ports. Compatible servers share a port; otherwise the first one
// wins, and the others are reported with the reason.
func TestMerge(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		servers []string // each is a separate Gateway, in this order
		want    string   // the listeners with their routes
		problem string   // a part of each problem, separated by "|"
	}{
		"HTTP servers share": {
			servers: []string{"HTTP 80 - - - a.test", "GRPC 80 - - - b.test", "HTTP2 80 0.0.0.0 - - a.test"},
			want:    "0.0.0.0_8080 http.8080 http.8080 http.8080",
		},
		"addresses tell apart": {
			servers: []string{"HTTP 80 - - - *", "TCP 80 127.77.57.9 - - *", "HTTP 80 ::1 - - *", "HTTP 0 unix:///run/x - - *"},
			want:    "0.0.0.0_8080 http.8080; 127.77.57.9_8080 -; [::1]_8080 http.8080.::1; /run/x http.0.unix:///run/x",
		},
		"one spelling of an address": {
			servers: []string{"HTTP 81 2001:DB8:0:0::1 - - *", "HTTP 81 2001:db8::1 - - *"},
			want:    "[2001:db8::1]_81 http.81.2001:db8::1 http.81.2001:db8::1",
		},
		"names tell TLS apart": {
			servers: []string{"HTTPS 443 - SIMPLE a a.test", "HTTPS 443 - SIMPLE b *.test", "TLS 443 - PASSTHROUGH - *", "TLS 443 - AUTO_PASSTHROUGH - a.test"},
			want:    "0.0.0.0_443 https.443.HTTPS-443---SIMPLE-a-a.test.gw-0.ns https.443.HTTPS-443---SIMPLE-b-*.test.gw-1.ns - -",
		},
		"one host twice": {
			servers: []string{"HTTPS 443 - SIMPLE a a.test", "TLS 443 - PASSTHROUGH - b.test ns/A.test", "HTTPS 443 127.77.57.9 SIMPLE a a.test"},
			want:    "0.0.0.0_443 https.443.HTTPS-443---SIMPLE-a-a.test.gw-0.ns; 127.77.57.9_443 https.443.HTTPS-443-127.77.57.9-SIMPLE-a-a.test.gw-2.ns.127.77.57.9",
			problem: `the host "a.test" of port 443 already belongs to spec.servers[0] of the Gateway ns/gw-0`,
		},
		"protocols that cannot share": {
			servers: []string{"TCP 90 - - - *", "TCP 90 - - - *", "HTTP 90 - - - *", "TLS 90 - PASSTHROUGH - *"},
			want:    "0.0.0.0_90 -", problem: "TCP and TCP cannot share it|TCP and HTTP cannot share it|TCP and TLS cannot share it",
		},
		"a server that is wrong takes no port": {
			servers: []string{"HTTPS 443 - SIMPLE - a.test", "TCP 443 - - - *"},
			want:    "0.0.0.0_443 -", problem: "tls.serverCertificate and tls.privateKey are missing",
		},
		"no port": {servers: []string{"HTTP 0 - - - *", "HTTP 65536 - - - *"}, problem: "port.number is 0|port.number is 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var gateways []*snapshot.Gateway
			for i, text := range tc.servers {
				gw := &networkingv1alpha3.Gateway{Servers: []*networkingv1alpha3.Server{spec(t, text)}}
				key := model.Key{Kind: model.Gateway, Namespace: "ns", Name: fmt.Sprint("gw-", i)}
				gateways = append(gateways, &snapshot.Gateway{Config: &model.Config{Key: key, Spec: gw}, Spec: gw, Name: "ns/" + key.Name})
			}
			m := Merge(&meshv1alpha1.MeshConfig{}, gateways, "0.0.0.0", func(port uint32) (uint32, xds.Sources) {
				if port == 80 {
					return 8080, nil
				}
				return port, nil
			})
			var listeners []string
			for _, l := range m.listeners {
				text := l.name()
				for _, s := range l.servers {
					if s.route == "" {
						text += " -"
					} else {
						text += " " + s.route
					}
				}
				listeners = append(listeners, text)
			}
			if got := strings.Join(listeners, "; "); got != tc.want {
				t.Errorf("listeners %s\nwant      %s", got, tc.want)
			}
			var want []string
			if tc.problem != "" {
				want = strings.Split(tc.problem, "|")
			}
			if len(m.Problems) != len(want) {
				t.Fatalf("problems %v, want %q", m.Problems, want)
			}
			for i, p := range m.Problems {
				if !strings.Contains(p.Reason, want[i]) {
					t.Errorf("problem %s, want %q", p, want[i])
				}
			}
		})
	}
}
