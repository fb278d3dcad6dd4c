// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Names of stats end with a semicolon for proxies that split them there, and only for these: the
// regular expressions of Istio's older agents would cut the names at a dot. Nothing else differs.
func TestDelimitedStats(t *testing.T) {
	t.Parallel()
	clusters, managers := 0, 0
	for _, c := range testCases(t) {
		// EnvoyFilters can change the names.
		c.objects = slices.DeleteFunc(c.objects, func(o *model.Config) bool { return o.Kind == model.EnvoyFilter })
		mesh, g := c.build(), New(Config{})
		delimited := *c.proxy
		delimited.Settings = model.ProxySettings{DelimitedStats: true}.Keyed()
		for _, typeURL := range xds.Types {
			with, without := g.Generate(mesh, &delimited, typeURL), g.Generate(mesh, c.proxy, typeURL)
			if len(with.Resources) != len(without.Resources) {
				t.Fatalf("%s: %d resources of %s, %d without", c.name, len(with.Resources), typeURL, len(without.Resources))
			}
			for i, r := range with.Resources {
				got, want := unpack(t, r), unpack(t, without.Resources[i])
				switch m := got.(type) {
				case *clusterv3.Cluster:
					named := want.(*clusterv3.Cluster).GetAltStatName() // by the mesh config
					if counted := m.GetAltStatName(); counted != m.GetName()+";" && (named == "" || counted != named+";") {
						t.Errorf("%s: cluster %s counts as %q", c.name, m.GetName(), m.GetAltStatName())
					}
					m.AltStatName = named
					clusters++
				case *listenerv3.Listener:
					n, named := undelimit(t, m)
					if named > 0 && c.proxy.Role != "router" { // the name of a server of a Gateway counts instead
						t.Errorf("%s: %d connection managers of listener %s have no semicolon", c.name, named, m.GetName())
					}
					managers += n
				}
				if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
					t.Errorf("%s: %s differs otherwise:\n%s", c.name, r.Name, diff)
				}
			}
		}
	}
	if clusters < 100 || managers < 50 {
		t.Errorf("only %d clusters and %d connection managers were compared", clusters, managers)
	}
}

// undelimit removes the semicolons of the stat prefixes in a listener, and counts the connection
// managers with and without one.
func undelimit(t *testing.T, l *listenerv3.Listener) (with, without int) {
	t.Helper()
	for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		for _, f := range chain.GetFilters() {
			hcm := &hcmv3.HttpConnectionManager{}
			if !f.GetTypedConfig().MessageIs(hcm) {
				continue
			}
			if err := f.GetTypedConfig().UnmarshalTo(hcm); err != nil {
				t.Fatal(err)
			}
			var found bool
			if hcm.StatPrefix, found = strings.CutSuffix(hcm.GetStatPrefix(), ";"); !found {
				without++
				continue
			}
			with++
			packed := &anypb.Any{}
			if err := packed.MarshalFrom(hcm); err != nil {
				t.Fatal(err)
			}
			f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
		}
	}
	return with, without
}
