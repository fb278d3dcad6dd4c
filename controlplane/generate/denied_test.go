// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpstatsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tcp_stats/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/denylist"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

func denyList(t *testing.T, text string) *denylist.List {
	t.Helper()
	list, err := denylist.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// eventually retries until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after 2 minutes", what)
		}
	}
}

// TestEnvoyDenies denies peers of a running Envoy: their connections are closed, new ones are
// refused, and all others are served.
func TestEnvoyDenies(t *testing.T) {
	t.Parallel()
	s := startGuarded(t, nil)
	one, _, _ := s.identity(t, "spiffe://cluster.local/ns/ok/sa/fine")
	other, _, _ := s.identity(t, "spiffe://cluster.local/ns/ok/sa/fine")
	exact, _, _ := s.identity(t, "spiffe://cluster.local/ns/evil/sa/mallory")
	near, _, _ := s.identity(t, "spiffe://cluster.local/ns/evil/sa/mallory2")
	whole, _, _ := s.identity(t, "spiffe://cluster.local/ns/old/sa/any")
	calls := func(port string, who string) error {
		alpn := map[string]string{"HTTP": "http/1.1", "TCP": "istio", "ANY": "istio-http/1.1"}[port]
		client, scheme := s.client(nil), "http"
		switch who {
		case "one":
			client, scheme = s.client(&one, alpn), "https"
		case "other":
			client, scheme = s.client(&other, alpn), "https"
		case "exact":
			client, scheme = s.client(&exact, alpn), "https"
		case "near":
			client, scheme = s.client(&near, alpn), "https"
		case "whole":
			client, scheme = s.client(&whole, alpn), "https"
		}
		_, err := s.ask(t, client, scheme, port, "")
		return err
	}
	out := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: s.address + ":" + s.ports["PROXY"]})}}
	far := func() int {
		status, _ := get(t, out, "http://far.default/", "")
		return status
	}
	ports := []string{"HTTP", "TCP", "ANY"}
	everybody := []string{"one", "other", "exact", "near", "whole", "plaintext"}
	for _, port := range ports {
		for _, who := range everybody {
			if err := calls(port, who); err != nil {
				t.Fatalf("%s at %s, before anybody is denied: %v", who, port, err)
			}
		}
	}
	if status := far(); status != http.StatusOK {
		t.Fatalf("the other workload answers with %d", status)
	}
	first := map[string]tls.Certificate{"one": one, "other": other, "exact": exact, "near": near, "whole": whole}
	for who, pair := range first {
		if got := s.greeted(pair); got != greeting {
			t.Fatalf("%s, before anybody is denied, is greeted with %q", who, got)
		}
	}
	held := s.client(&exact, "http/1.1")
	held.Transport.(*http.Transport).DisableKeepAlives = false
	if _, err := s.ask(t, held, "https", "HTTP", ""); err != nil {
		t.Fatal(err)
	}

	text := fmt.Sprintf("spiffe://cluster.local/ns/evil/sa/mallory\nspiffe://cluster.local/ns/old/sa/*\nspiffe://cluster.local/ns/default/sa/far\nserial %X\n", one.Leaf.SerialNumber)
	for i := 4; i < denylist.MaxEntries; i++ {
		text += fmt.Sprintf("spiffe://cluster.local/ns/evil/sa/other-%d\n", i)
	}
	s.put(t, snapshot.Input{Denied: denyList(t, text)})
	refused := []string{"one", "exact", "whole"}
	if envoyMinor(t) < serialsFrom {
		t.Log("this Envoy does not look at serial numbers") // documented in docs/operations/security.md
		refused = refused[1:]
	}
	for _, port := range ports {
		for _, who := range refused {
			eventually(t, who+" is refused at "+port, func() bool { return calls(port, who) != nil })
		}
		for _, who := range []string{"other", "near", "plaintext"} {
			if err := calls(port, who); err != nil {
				t.Errorf("%s at %s is not denied: %v", who, port, err)
			}
		}
	}
	for who, pair := range first {
		want := greeting
		if who == "exact" || who == "whole" { // without redirection, a denied serial number is detected with the client's first byte
			want = ""
		}
		eventually(t, fmt.Sprintf("%s is greeted with %q", who, want), func() bool { return s.greeted(pair) == want })
	}
	eventually(t, "a connection from before ends", func() bool {
		_, err := s.ask(t, held, "https", "HTTP", "")
		return err != nil
	})
	eventually(t, "the other workload is not accepted", func() bool { return far() == http.StatusServiceUnavailable })

	s.put(t, snapshot.Input{Denied: denyList(t, "# nobody\n")})
	for _, port := range ports {
		for _, who := range everybody {
			eventually(t, who+" is served again at "+port, func() bool { return calls(port, who) == nil })
		}
	}
	eventually(t, "the other workload is accepted again", func() bool { return far() == http.StatusOK })
}

// TestDenied generates each case with and without a list. Envoy must accept both. A list must be
// checked first in every chain that verifies clients, and an empty one must change nothing.
func TestDenied(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	text := "spiffe://cluster.local/ns/evil/sa/mallory\nspiffe://old.example/ns/old/sa/*\n"
	filters := []string{"envoy.filters.network.rbac"}
	if envoyMinor(t) >= serialsFrom {
		text += "serial ab\n"
		filters = []string{"envoy.filters.network.set_filter_state", "envoy.filters.network.rbac"}
	}
	guarded := 0
	for _, c := range testCases(t) {
		t.Run(c.name, func(t *testing.T) {
			g, in := New(Config{}), c.input()
			in.Denied = denyList(t, text)
			before, mesh := generateAll(g, c.build(), c.proxy), snapshot.Build(nil, in, model.Change{All: true})
			for _, r := range g.Generate(mesh, c.proxy, xds.TypeListener).Resources {
				l := unpack(t, r).(*listenerv3.Listener)
				for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
					denies := startsWith(t, chain, filters)
					if verifies := verified(t, chain); verifies != denies {
						t.Errorf("listener %s, chain %s: it verifies clients: %t, it looks at the list: %t", l.GetName(), chain.GetName(), verifies, denies)
					}
					if denies {
						guarded++
					}
				}
			}
			in.Denied = denyList(t, "# nobody\n")
			for i, set := range generateAll(g, snapshot.Build(mesh, in, model.Change{All: true}), c.proxy) {
				if set.Version != before[i].Version {
					t.Errorf("an empty list changes %s", xds.Types[i])
				}
			}
			validateWithEnvoy(t, binary, mesh, c.proxy)
		})
	}
	if guarded < 10 {
		t.Errorf("%d chains look at the list: the cases show nothing", guarded)
	}
}

// TestDeniedPeers follows the filter for the bootstrap's listeners through a list that comes and
// goes. Only proxies that request it receive it, and it is never absent: Envoy would continue with
// the last one.
func TestDeniedPeers(t *testing.T) {
	t.Parallel()
	g, proxy, other := New(Config{}), proxyAt("127.1.0.2"), proxyAt("127.1.0.3")
	proxy.Denies = true
	var mesh *snapshot.Mesh
	for _, step := range []struct{ list, policies string }{
		{"# nobody\n", "[]"},
		{"spiffe://cluster.local/ns/evil/sa/mallory\nserial ab\n", "[identities serials]"},
		{"serial ab\n", "[serials]"},
		{"# nobody\n", "[]"},
	} {
		in := inputOf(nil, meshconfig.Default())
		in.Denied = denyList(t, step.list)
		mesh = snapshot.Build(mesh, in, model.Change{All: true})
		set := g.Generate(mesh, proxy, xds.TypeExtension)
		r := set.Get(node.DeniedPeers)
		if r == nil || len(set.Resources) != 1 {
			t.Fatalf("%q: %d resources", step.list, len(set.Resources))
		}
		filter := &httprbacv3.RBAC{}
		if err := unpack(t, r).(*corev3.TypedExtensionConfig).GetTypedConfig().UnmarshalTo(filter); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(slices.Sorted(maps.Keys(filter.GetRules().GetPolicies()))); got != step.policies || (filter.GetRules() == nil) != (step.policies == "[]") {
			t.Errorf("%q: the policies are %s, want %s; %v", step.list, got, step.policies, filter)
		}
		if n := len(g.Generate(mesh, other, xds.TypeExtension).Resources); n != 0 {
			t.Errorf("%q: a proxy that requests none has %d", step.list, n)
		}
	}
}

// serialsFrom is the first Envoy 1.x that checks serial numbers.
const serialsFrom = 37

// startsWith reports whether the first filters of a chain have these names and end with that of the
// deny list. Policies have filters of the same name.
func startsWith(t *testing.T, chain *listenerv3.FilterChain, names []string) bool {
	t.Helper()
	if len(chain.GetFilters()) <= len(names) {
		return false
	}
	for i, name := range names {
		if chain.GetFilters()[i].GetName() != name {
			return false
		}
	}
	rbac := &networkrbacv3.RBAC{}
	if err := chain.GetFilters()[len(names)-1].GetTypedConfig().UnmarshalTo(rbac); err != nil {
		t.Fatal(err)
	}
	return rbac.GetStatPrefix() == "denied."
}

// verified reports whether a chain requires or accepts client certificates.
func verified(t *testing.T, chain *listenerv3.FilterChain) bool {
	t.Helper()
	config, context, outer := chain.GetTransportSocket().GetTypedConfig(), &tlsv3.DownstreamTlsContext{}, &tcpstatsv3.Config{}
	if config.MessageIs(outer) {
		if err := config.UnmarshalTo(outer); err != nil {
			t.Fatal(err)
		}
		config = outer.GetTransportSocket().GetTypedConfig()
	}
	if !config.MessageIs(context) {
		return false
	}
	if err := config.UnmarshalTo(context); err != nil {
		t.Fatal(err)
	}
	return context.GetCommonTlsContext().GetCombinedValidationContext() != nil
}
