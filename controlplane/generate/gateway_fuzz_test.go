// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// chaos builds Gateways and VirtualServices from valid and invalid values in random combinations.
type chaos struct{ *rand.Rand }

func (r chaos) one(list ...string) string { return list[r.IntN(len(list))] }

// rarely returns the wrong value now and then.
func (r chaos) rarely(wrong string, right ...string) string {
	if r.IntN(30) == 0 {
		return wrong
	}
	return r.one(right...)
}

func (r chaos) some(list ...string) []string {
	var out []string
	for range r.IntN(4) {
		out = append(out, r.one(list...))
	}
	return out
}

func (r chaos) hosts() []string {
	right := append(r.some("*", "a.test", "b.test", "*.test", "*.a.test", "x.a.test", "./a.test", "shop/b.test", "*/c.test", "none/d.test", "UPPER.test"), "web.test")
	if r.IntN(5) > 0 {
		return right
	}
	return append(right, r.some("par*tial.test", "*foo.test", "", "/", "192.0.2.1", "2001:db8::1", "\xff.test", "a\nb")...)
}

func (r chaos) tls() *networkingv1alpha3.ServerTLSSettings {
	switch r.IntN(6) {
	case 0:
		return nil
	case 1, 2, 3:
		return &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_TLSmode(r.IntN(6)), CredentialName: "one"}
	}
	return &networkingv1alpha3.ServerTLSSettings{
		Mode:                  networkingv1alpha3.ServerTLSSettings_TLSmode(r.IntN(7)),
		HttpsRedirect:         r.IntN(4) == 0,
		CredentialName:        r.one("", "one", "kubernetes://shop/two", "kubernetes-gateway://a/b", "builtin://", "sds://x", "\xff"),
		CredentialNames:       r.some("one", "two", ""),
		CaCertCredentialName:  r.one("", "", "roots", "roots-cacert"),
		ServerCertificate:     r.one("", "/tls.crt"),
		PrivateKey:            r.one("", "/tls.key"),
		CaCertificates:        r.one("", "/ca.crt"),
		SubjectAltNames:       r.some("spiffe://a/b", "a.test", "192.0.2.1", ""),
		VerifyCertificateHash: r.some("nonsense", "df6ff72fe9116521268f6f2dd4966f51df479883fe7037b39f75916ac3049d1a"),
		VerifyCertificateSpki: r.some("nonsense", "NvqYIYSbgK2vCJpQhObf77vv+bQWtc5ek5RIOwPiC9A="),
		CipherSuites:          r.some("ECDHE-RSA-AES256-GCM-SHA384", "nonsense", "AES128-SHA", "DES-CBC3-SHA", ""),
		MinProtocolVersion:    networkingv1alpha3.ServerTLSSettings_TLSProtocol(r.IntN(6)),
		MaxProtocolVersion:    networkingv1alpha3.ServerTLSSettings_TLSProtocol(r.IntN(6)),
	}
}

func (r chaos) gateway() *networkingv1alpha3.Gateway {
	gw := &networkingv1alpha3.Gateway{}
	for i := range 1 + r.IntN(6) {
		gw.Servers = append(gw.Servers, &networkingv1alpha3.Server{
			Name: r.rarely("\xff", "", "name"), Bind: r.rarely(r.one("unix://", "nonsense", "fe80::1%eth0"), "", "", "", "", "", "0.0.0.0", "127.77.57.1", "::", "unix:///tmp/x"),
			Hosts: r.hosts(), Tls: r.tls(),
			Port: &networkingv1alpha3.Port{
				Number:   []uint32{80, 80, 443, 443, 443, 443, 8080, 8443, 8443, 9000, 0, 70000}[r.IntN(12)],
				Name:     r.rarely("\xff", "port", fmt.Sprint("port-", i), fmt.Sprint("port-", i)),
				Protocol: r.one("HTTP", "HTTPS", "HTTPS", "HTTP2", "GRPC", "GRPC-WEB", "HTTPS", "TLS", "TLS", "TCP", "MONGO", "UDP", r.rarely("nonsense", "HTTP")),
			},
		})
	}
	return gw
}

func (r chaos) destination() *networkingv1alpha3.Destination {
	d := &networkingv1alpha3.Destination{Host: r.one("web", "web.shop.svc.cluster.local", "nobody", "", "\xff"), Subset: r.one("", "v1")}
	if r.IntN(2) == 0 {
		d.Port = &networkingv1alpha3.PortSelector{Number: uint32(r.IntN(3) * 9080)}
	}
	return d
}

func (r chaos) streams() []*networkingv1alpha3.RouteDestination {
	var out []*networkingv1alpha3.RouteDestination
	for range r.IntN(4) {
		out = append(out, &networkingv1alpha3.RouteDestination{Destination: r.destination(), Weight: int32(r.IntN(4)*30 - 10)})
	}
	return out
}

func (r chaos) subnets() []string {
	return r.some("10.0.0.0/8", "10.1.1.1", "10.2.3.4/8", "2001:db8::/32", "nonsense", "")
}

func (r chaos) virtualService() *networkingv1alpha3.VirtualService {
	vs := &networkingv1alpha3.VirtualService{Hosts: r.hosts(), Gateways: append(r.some("shop/gw-0", "gw-1", "./gw-0", "mesh", "gw-9"), "shop/gw-0", "shop/gw-1")}
	for range r.IntN(4) {
		http := &networkingv1alpha3.HTTPRoute{}
		if r.IntN(2) == 0 {
			http.Match = []*networkingv1alpha3.HTTPMatchRequest{{
				Uri:  &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: r.one("/", "/a", "")}},
				Port: uint32(r.IntN(3)) * 80, Gateways: r.some("shop/gw-0", "mesh"),
			}}
		}
		if r.IntN(2) == 0 {
			http.Route = []*networkingv1alpha3.HTTPRouteDestination{{Destination: r.destination()}}
		} else {
			http.Redirect = &networkingv1alpha3.HTTPRedirect{Uri: r.one("/b", "\n", "\xff")}
		}
		vs.Http = append(vs.Http, http)
	}
	for range r.IntN(3) {
		vs.Tcp = append(vs.Tcp, &networkingv1alpha3.TCPRoute{Route: r.streams(), Match: []*networkingv1alpha3.L4MatchAttributes{{
			Port: uint32(r.IntN(2)) * 9000, DestinationSubnets: r.subnets(), SourceSubnet: r.one("", "", "192.0.2.0/24", "nonsense"),
		}}})
		vs.Tls = append(vs.Tls, &networkingv1alpha3.TLSRoute{Route: r.streams(), Match: []*networkingv1alpha3.TLSMatchAttributes{{
			Port: uint32(r.IntN(2)) * 443, DestinationSubnets: r.subnets(), SniHosts: r.hosts(),
		}}})
	}
	return vs
}

// gatewayChaos returns the objects of a seed.
func gatewayChaos(t *testing.T, seed uint64) []*model.Config {
	t.Helper()
	r := chaos{rand.New(rand.NewPCG(seed, 57))}
	objects := decode(t, `
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}]
  endpoints: [{address: 10.0.0.1, serviceAccount: web, labels: {version: v1}}]
---
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web.shop.svc.cluster.local, subsets: [{name: v1, labels: {version: v1}}]}
`)
	add := func(kind model.Kind, name string, spec proto.Message) {
		objects = append(objects, &model.Config{Key: model.Key{Kind: kind, Namespace: "shop", Name: name}, Spec: spec})
	}
	for i := range 1 + r.IntN(4) {
		add(model.Gateway, fmt.Sprint("gw-", i), r.gateway())
	}
	for i := range r.IntN(5) {
		add(model.VirtualService, fmt.Sprint("vs-", i), r.virtualService())
	}
	return objects
}

var edgeProxy = model.Proxy{Role: "router", ID: "edge.shop", Namespace: "shop", IPs: []string{"127.77.57.1"}, Labels: map[string]string{"app": "edge"}}

// FuzzGateway builds listeners and routes from random objects. It must not panic, the result must
// be valid and complete, and two builds must be equal.
func FuzzGateway(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		objects := gatewayChaos(t, seed)
		mesh := snapshot.Build(nil, inputOf(objects, meshconfig.Default()), model.Change{All: true})
		g := New(Config{})
		sets := generateAll(g, mesh, &edgeProxy)
		slices.Reverse(objects)
		again := generateAll(New(Config{}), snapshot.Build(nil, inputOf(objects, meshconfig.Default()), model.Change{All: true}), &edgeProxy)
		for i, typeURL := range xds.Types {
			sameSet(t, typeURL, sets[i], again[i])
			if !slices.Equal(sets[i].Problems, again[i].Problems) {
				t.Errorf("%s: the problems of two builds differ", typeURL)
			}
		}
		listeners, routes := sets[slices.Index(xds.Types, xds.TypeListener)], sets[slices.Index(xds.Types, xds.TypeRoute)]
		for _, name := range routeNames(t, listeners) {
			if routes.Get(name) == nil {
				t.Errorf("no routes %q", name)
			}
		}
		addresses := map[string]bool{}
		for _, r := range listeners.Resources {
			l := unpack(t, r).(*listenerv3.Listener)
			address := l.GetAddress().String()
			if err := l.ValidateAll(); err != nil || addresses[address] || len(l.GetFilterChains()) == 0 {
				t.Errorf("listener %s: %v", r.Name, err)
			}
			addresses[address] = true
			uniqueMatches(t, l)
		}
		for _, r := range routes.Resources {
			c := unpack(t, r).(*routev3.RouteConfiguration)
			if err := c.ValidateAll(); err != nil || len(c.GetVirtualHosts()) == 0 {
				t.Errorf("routes %s: %v", r.Name, err)
			}
			domains := map[string]bool{}
			for _, vh := range c.GetVirtualHosts() {
				for _, d := range vh.GetDomains() {
					if domains[d] {
						t.Errorf("routes %s: the domain %q twice", r.Name, d)
					}
					domains[d] = true
				}
			}
		}
	})
}

// uniqueMatches fails if two filter chains have the same match.
func uniqueMatches(t *testing.T, l *listenerv3.Listener) {
	t.Helper()
	seen := map[string]bool{}
	for _, chain := range l.GetFilterChains() {
		m := chain.GetFilterChainMatch()
		for _, name := range append(m.GetServerNames(), "")[:max(len(m.GetServerNames()), 1)] {
			key := name
			if len(m.GetPrefixRanges())+len(m.GetSourcePrefixRanges()) > 0 {
				key += fmt.Sprint(m.GetPrefixRanges(), m.GetSourcePrefixRanges())
			}
			if seen[key] {
				t.Errorf("listener %s: two chains for %q", l.GetName(), key)
			}
			seen[key] = true
		}
	}
}

// TestEnvoyAcceptsGateways validates the resources of random objects with the real Envoy.
func TestEnvoyAcceptsGateways(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			mesh := snapshot.Build(nil, inputOf(gatewayChaos(t, 1000+seed), meshconfig.Default()), model.Change{All: true})
			validateWithEnvoy(t, binary, mesh, &edgeProxy)
		})
	}
}
