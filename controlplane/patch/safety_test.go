// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"fmt"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// tlsTo is a patch that merges a transport socket with a server name into all clusters.
const tlsTo = `
- applyTo: CLUSTER
  patch: {operation: MERGE, value: {transport_socket: {name: envoy.transport_sockets.tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, sni: %s}}}}
`

// TestFiltersAreNotShared checks that merging one EnvoyFilter into the values of another does not
// affect proxies that only the other selects.
func TestFiltersAreNotShared(t *testing.T) {
	t.Parallel()
	a, _ := parse(t, "a", fmt.Sprintf(tlsTo, "a.example.com"))
	b, _ := parse(t, "b", fmt.Sprintf(tlsTo, "b.example.com"))
	c := &clusterv3.Cluster{Name: "outbound|80||x", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}}
	patched := func(filters ...*Filter) *clusterv3.Cluster {
		return Of(filters, "istio-system", &model.Proxy{}).Cluster(c, Place{}).Message
	}
	before := proto.CloneOf(patched(a))
	if both := patched(a, b); proto.Equal(both, before) {
		t.Fatal("the second EnvoyFilter has no effect")
	}
	if after := patched(a); !proto.Equal(after, before) {
		t.Errorf("with the first EnvoyFilter only: got %v, before %v", after, before)
	}
}

// TestManyInvalidPatches checks that an EnvoyFilter whose patches are all invalid causes a bounded
// number of problems and attempts, and that another EnvoyFilter stays in force.
func TestManyInvalidPatches(t *testing.T) {
	t.Parallel()
	wrong := strings.Repeat("- {applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 0s}}}\n", 500)
	bad, problems := parse(t, "bad", wrong)
	if len(problems) > 0 || len(bad.Patches) != 500 {
		t.Fatalf("got %d patches, problems %v; want 500 patches", len(bad.Patches), problems)
	}
	good, _ := parse(t, "good", "- {applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: good}}}\n")
	patches, search := Of([]*Filter{bad, good}, "istio-system", &model.Proxy{}), NewSearch(1_000)
	for i := range 100 {
		c := &clusterv3.Cluster{Name: fmt.Sprintf("outbound|80||%d", i), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}}
		out := patches.Cluster(c, Place{Context: networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND, Search: search})
		if len(out.Problems) == 0 || len(out.Problems) > maxRefused+2 {
			t.Fatalf("cluster %d: %d problems, want 1 to %d", i, len(out.Problems), maxRefused+2)
		}
		if out.Message.GetAltStatName() != "good" {
			t.Errorf("cluster %d: the valid EnvoyFilter has no effect", i)
		}
	}
	if search.attempts > 0 {
		t.Errorf("%d attempts remain, want none", search.attempts)
	}
}

// TestDisabledFeatures checks that a disabled feature is detected at every position.
func TestDisabledFeatures(t *testing.T) {
	t.Parallel()
	const typed = `"@type": type.googleapis.com/`
	for _, c := range []struct {
		limits Limits
		value  string
	}{
		{Limits{NoLua: true}, `{name: x, typed_config: {` + anyHTTP + `lua.v3.Lua, default_source_code: {inline_string: a}}}`},
		{Limits{NoLua: true}, `{name: x, typed_config: {` + typed + `xds.type.v3.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, value: {}}}`},
		{Limits{NoLua: true}, `{name: x, typed_config: {` + typed + `udpa.type.v1.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.composite.v3.ExecuteFilterAction, value: {typed_config: {name: y, typed_config: {` + anyHTTP + `lua.v3.Lua}}}}}`},
		{Limits{NoFiles: true}, `{name: x, typed_config: {` + typed + `xds.type.v3.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, value: {default_source_code: {filename: /etc/passwd}}}}`},
		{Limits{NoFiles: true}, `{name: x, typed_config: {` + typed + `xds.type.v3.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, value: {none: 1}}}`},
	} {
		spec := message(t, &networkingv1alpha3.EnvoyFilter{}, "configPatches: [{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: "+c.value+"}}]")
		key := model.Key{Kind: model.EnvoyFilter, Namespace: "default", Name: "a"}
		if f, problems := Parse(&model.Config{Key: key, Spec: spec}, spec, c.limits, nil); len(f.Patches) > 0 || len(problems) != 1 {
			t.Errorf("%s: disabled: got %d patches, problems %v; want one problem", c.value, len(f.Patches), problems)
		}
		if f, problems := Parse(&model.Config{Key: key, Spec: spec}, spec, Limits{}, nil); len(f.Patches) != 1 || len(problems) > 0 {
			t.Errorf("%s: enabled: got %d patches, problems %v; want one patch", c.value, len(f.Patches), problems)
		}
	}
}

// TestMaglevTables checks that no patch sets the size of a table to a number that is not prime. Envoy
// refuses most of them, and crashes with 1.
func TestMaglevTables(t *testing.T) {
	t.Parallel()
	c := &clusterv3.Cluster{Name: "outbound|80||x", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}}
	for _, form := range []string{
		"{lb_policy: MAGLEV, maglev_lb_config: {table_size: %d}}",
		`{load_balancing_policy: {policies: [{typed_extension_config: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.maglev.v3.Maglev, table_size: %d}}}]}}`,
	} {
		for size, want := range map[int]bool{1: false, 4: false, 65537: true} {
			f, problems := parse(t, "a", "- {applyTo: CLUSTER, patch: {operation: MERGE, value: "+fmt.Sprintf(form, size)+"}}\n")
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			out := Of([]*Filter{f}, "istio-system", &model.Proxy{}).Cluster(c, Place{})
			if got := len(out.Problems) == 0; got != want || proto.Equal(out.Message, c) == want {
				t.Errorf(form+": problems %v, message %v", size, out.Problems, out.Message)
			}
		}
	}
}

// TestTypedStructs checks that a TypedStruct is used as the message that it describes: it merges with
// one, its values are checked, and one that cannot be read is no transport socket.
func TestTypedStructs(t *testing.T) {
	t.Parallel()
	const of, kind = `"@type": type.googleapis.com/`, `TypedStruct, type_url: type.googleapis.com/envoy.extensions.`
	cluster := message(t, &clusterv3.Cluster{}, `{name: a, connect_timeout: 1s, transport_socket: {name: tls, typed_config: {`+of+`envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, max_session_keys: 3}}}`)
	for value, want := range map[string]string{
		`xds.type.v3.` + kind + `transport_sockets.tls.v3.UpstreamTlsContext, value: {sni: new}`:          `"sni":"new","maxSessionKeys":3`,
		`udpa.type.v1.` + kind + `transport_sockets.tls.v3.UpstreamTlsContext, value: {sni: new}`:         `"sni":"new","maxSessionKeys":3`,
		`xds.type.v3.` + kind + `transport_sockets.tls.v3.UpstreamTlsContext, value: {none: 1}`:           "is not the configuration of a transport socket",
		`xds.type.v3.` + kind + `transport_sockets.tls.v3.UpstreamTlsContext, value: {sni: ` + long + `}`: "value length must be at most 255",
		`xds.type.v3.` + kind + `none.v3.None, value: {sni: new}`:                                         "is not one of a stock Envoy",
	} {
		filter, problems := parse(t, "a", "- {applyTo: CLUSTER, patch: {operation: MERGE, value: {transport_socket: {name: tls, typed_config: {"+of+value+"}}}}}")
		o := Of([]*Filter{filter}, "istio-system", &model.Proxy{}).Cluster(cluster, Place{})
		got := strings.ReplaceAll(protojson.MarshalOptions{}.Format(o.Message), ": ", ":") + fmt.Sprint(problems, o.Problems)
		if !strings.Contains(strings.ReplaceAll(got, ", ", ","), want) && !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s in it", value, got, want)
		}
	}
	// Filters, also inside others.
	inner := `{` + of + `udpa.type.v1.` + kind + `filters.http.buffer.v3.Buffer, value: {max_request_bytes: 7}}`
	outer := `{` + of + `xds.type.v3.` + kind + `filters.http.composite.v3.ExecuteFilterAction, value: {typed_config: {name: own, typed_config: ` + inner + `}}}`
	for _, config := range []string{inner, outer} {
		filter, problems := parse(t, "a", "- {applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: x, typed_config: "+config+"}}}")
		if len(problems) > 0 || len(filter.Patches) != 1 {
			t.Fatalf("%s: problems %v", config, problems)
		}
		got := protojson.MarshalOptions{}.Format(filter.Patches[0].value)
		if strings.Contains(got, "TypedStruct") || !strings.Contains(got, "maxRequestBytes") {
			t.Errorf("%s: got %s", config, got)
		}
	}
}

var long = strings.Repeat("a", 256)
