// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestPoliciesInEveryChain adds a policy of the mesh to each case. Every filter chain through which
// others reach a workload or a gateway must decide by it before it forwards anything: at declared and
// undeclared ports, with and without interception, of streams, requests and connections that are
// passed through. No other chain may.
func TestPoliciesInEveryChain(t *testing.T) {
	t.Parallel()
	decides, kinds := map[string]int{}, map[string]int{}
	for _, c := range testCases(t) {
		in := inputOf(append(c.objects, decode(t, `
kind: AuthorizationPolicy
metadata: {name: everywhere, namespace: `+c.mesh.GetRootNamespace()+`}
spec: {action: DENY, rules: [{from: [{source: {ipBlocks: [0.0.0.0/0, "::/0"]}}]}]}
`)...), c.mesh)
		mesh := snapshot.Build(nil, in, model.Change{All: true})
		for _, r := range New(Config{}).Generate(mesh, c.proxy, xds.TypeListener).Resources {
			l := unpack(t, r).(*listenerv3.Listener)
			inbound := c.proxy.Role == "router" || l.GetTrafficDirection() == corev3.TrafficDirection_INBOUND
			for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
				if chain == nil || leadsNowhere(t, chain) {
					continue
				}
				if got := refusedIn(t, chain.GetFilters()); got != inbound {
					t.Errorf("%s, listener %s, chain %q: decides by the policy: %t, want %t", c.name, l.GetName(), chain.GetName(), got, inbound)
				}
				if inbound {
					decides[c.name]++
					kinds[c.proxy.Role+" "+chain.GetFilters()[len(chain.GetFilters())-1].GetName()]++
				}
			}
		}
	}
	if len(decides) < 20 || len(kinds) < 4 {
		t.Errorf("the cases show nothing: %v, %v", decides, kinds)
	}
}

// leadsNowhere reports whether a chain closes all connections.
func leadsNowhere(t *testing.T, chain *listenerv3.FilterChain) bool {
	t.Helper()
	to := &tcpproxyv3.TcpProxy{}
	return len(chain.GetFilters()) == 1 && decodeAs(t, chain.GetFilters()[0].GetTypedConfig(), to) && to.GetCluster() == envoyconf.BlackHoleCluster
}

// refusedIn reports whether the policy refuses what a filter chain would forward.
func refusedIn(t *testing.T, filters []*listenerv3.Filter) bool {
	t.Helper()
	last := filters[len(filters)-1]
	if !strings.HasSuffix(last.GetName(), "http_connection_manager") {
		return slices.ContainsFunc(filters[:len(filters)-1], func(f *listenerv3.Filter) bool {
			rbac := &networkrbacv3.RBAC{}
			return decodeAs(t, f.GetTypedConfig(), rbac) && refuses(rbac.GetRules())
		})
	}
	hcm := &hcmv3.HttpConnectionManager{}
	if !decodeAs(t, last.GetTypedConfig(), hcm) {
		t.Fatalf("%s is no connection manager", last.GetName())
	}
	return slices.ContainsFunc(hcm.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool {
		rbac := &httprbacv3.RBAC{}
		return decodeAs(t, f.GetTypedConfig(), rbac) && !f.GetDisabled() && refuses(rbac.GetRules())
	})
}

func refuses(rules *rbacv3.RBAC) bool {
	return rules.GetAction() == rbacv3.RBAC_DENY && slices.ContainsFunc(slices.Collect(maps.Keys(rules.GetPolicies())), func(name string) bool {
		return strings.Contains(name, "policy[everywhere]")
	})
}

// decodeAs decodes a configuration of the type of the message, and reports whether it is one.
func decodeAs(t *testing.T, config *anypb.Any, to proto.Message) bool {
	t.Helper()
	if !config.MessageIs(to) {
		return false
	}
	if err := config.UnmarshalTo(to); err != nil {
		t.Fatal(err)
	}
	return true
}
