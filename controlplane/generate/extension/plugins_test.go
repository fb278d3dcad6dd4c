// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package extension

import (
	"strings"
	"testing"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

func build(specs map[string]*extensionsv1alpha1.WasmPlugin) *snapshot.Mesh {
	return snapshot.Build(nil, snapshot.Input{List: func(kind model.Kind) (out []*model.Config) {
		for name, spec := range specs {
			if kind == model.WasmPlugin {
				out = append(out, &model.Config{Key: model.Key{Kind: kind, Namespace: "default", Name: name}, Spec: spec})
			}
		}
		return out
	}}, model.Change{All: true})
}

func TestMatch(t *testing.T) {
	t.Parallel()
	type selector = extensionsv1alpha1.WasmPlugin_TrafficSelector
	ports := func(numbers ...uint32) (out []*typev1beta1.PortSelector) {
		for _, n := range numbers {
			out = append(out, &typev1beta1.PortSelector{Number: n})
		}
		return out
	}
	const client, server, both = typev1beta1.WorkloadMode_CLIENT, typev1beta1.WorkloadMode_SERVER, typev1beta1.WorkloadMode_CLIENT_AND_SERVER
	tests := []struct {
		name  string
		match []*selector
		want  string // for client 80, client unknown, server 80, server 81
	}{
		{"none", nil, "yes yes yes yes"},
		{"anything", []*selector{{}}, "yes yes yes yes"},
		{"client", []*selector{{Mode: client}}, "yes yes no no"},
		{"server", []*selector{{Mode: server}}, "no no yes yes"},
		{"both", []*selector{{Mode: both}}, "yes yes yes yes"},
		{"a port", []*selector{{Ports: ports(80)}}, "yes no yes no"},
		{"ports", []*selector{{Ports: ports(7, 80, 81)}}, "yes no yes yes"},
		{"a port of the server", []*selector{{Mode: server, Ports: ports(80)}}, "no no yes no"},
		{"one of two", []*selector{{Mode: server, Ports: ports(81)}, {Mode: client}}, "yes yes no yes"},
		{"no port", []*selector{{Ports: ports(0)}}, "no no no no"},
	}
	for _, tc := range tests {
		mesh := build(map[string]*extensionsv1alpha1.WasmPlugin{"p": {Url: "r.example/p", Match: tc.match, Phase: extensionsv1alpha1.PluginPhase_AUTHN}})
		p := Of(mesh, &model.Proxy{Namespace: "default"})
		var got []string
		var from xds.Sources
		for _, at := range []struct {
			side Side
			port uint32
		}{{Client, 80}, {Client, 0}, {Server, 80}, {Server, 81}} {
			word := "no"
			if len(p.HTTP(at.side, at.port, &from)[extensionsv1alpha1.PluginPhase_AUTHN]) == 1 {
				word = "yes"
			}
			got = append(got, word)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: got %v, want %s", tc.name, got, tc.want)
		}
		if want := strings.Count(tc.want, "yes"); len(from) != want {
			t.Errorf("%s: the sources are %v, want one for each of %d filters", tc.name, from.Keys(), want)
		}
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	proxy := &model.Proxy{Namespace: "default"}
	key := func(specs map[string]*extensionsv1alpha1.WasmPlugin) string { return Of(build(specs), proxy).Key }
	one := key(map[string]*extensionsv1alpha1.WasmPlugin{"p": {Url: "r.example/p:v1"}})
	if none := key(nil); none != "" || one == "" {
		t.Errorf("without plugins %q, with one %q", none, one)
	}
	if module := key(map[string]*extensionsv1alpha1.WasmPlugin{"p": {Url: "r.example/p:v2"}}); module != one {
		t.Errorf("another module: %q and %q", one, module)
	}
	if phase := key(map[string]*extensionsv1alpha1.WasmPlugin{"p": {Url: "r.example/p:v1", Phase: extensionsv1alpha1.PluginPhase_STATS}}); phase == one {
		t.Errorf("another phase has the same key %q", one)
	}
}

func TestIsOld(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"1.32.9": true, "1.9": true, "1.33.0": false, "1.39.3": false, "": false, "2.1": false, "1.x": false, "1": false} {
		if got := IsOld(version); got != want {
			t.Errorf("%q: %t, want %t", version, got, want)
		}
	}
}
