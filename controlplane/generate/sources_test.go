// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// shortTypes are the types whose resources have sources.
var shortTypes = map[string]string{
	xds.TypeCluster: "cds", xds.TypeEndpoint: "eds", xds.TypeListener: "lds", xds.TypeRoute: "rds", xds.TypeVirtualHost: "vhds", xds.TypeExtension: "ecds",
}

// madeOf returns all resources of a proxy, by short type and name.
func madeOf(c testCase, objects []*model.Config) map[string]*xds.Resource {
	out := map[string]*xds.Resource{}
	g, mesh := New(Config{}), snapshot.Build(nil, inputOf(objects, c.mesh), model.Change{All: true})
	for typeURL, short := range shortTypes {
		for _, r := range g.Generate(mesh, c.proxy, typeURL).Resources {
			out[short+" "+r.Name] = r
		}
	}
	return out
}

// mayBeIdle are the kinds and types for which a resource may name an object without effect on it.
var mayBeIdle = map[string]string{
	"ServiceEntry lds":       "requests to all services of a port have one listener",
	"ServiceEntry rds":       "with VHDS the routes of a port hold no hosts",
	"VirtualService lds":     "its route may say what holds without it",
	"Gateway lds":            "requests to all Gateways of a port have one listener",
	"Sidecar lds":            "its policy may be that of the mesh",
	"Sidecar rds":            "its policy may be that of the mesh",
	"DestinationRule cds":    "its policy may be the default",
	"DestinationRule eds":    "it may prefer no endpoints",
	"PeerAuthentication lds": "its mode may hold without it",
	"PeerAuthentication eds": "its mode may hold without it",
	"PeerAuthentication cds": "its mode may hold without it",
	"WorkloadEntry cds":      "another one may have the account, too",
	"Telemetry lds":          "there are no spans of connections whose requests are not read",
}

// TestSourcesAreWhatChanges removes each object of each case. A resource that changes or
// disappears must name the object, or what the object displaced.
func TestSourcesAreWhatChanges(t *testing.T) {
	t.Parallel()
	named, shown := 0, map[string]bool{}
	for _, c := range append(testCases(t), effectCases(t)...) {
		with := madeOf(c, c.objects)
		for i, o := range c.objects {
			without := madeOf(c, instead(c.objects, i))
			for _, name := range slices.Sorted(maps.Keys(with)) {
				r, before := with[name], without[name]
				short, _, _ := strings.Cut(name, " ")
				pair := string(o.Kind) + " " + short
				has, same := r.Sources.Has(o.Key), before != nil && bytes.Equal(before.Any, r.Any)
				if has {
					named++
				}
				switch {
				case has && same && mayBeIdle[pair] == "" && o.Kind != model.Sidecar:
					t.Errorf("%s: %s names %s, without which it is the same", c.name, name, o.Key)
				case !has && !same && (before == nil || !displaced(before, r)) && !ofConfiguration(with, name, o.Key):
					t.Errorf("%s: %s is another one without %s, and names %v", c.name, name, o.Key, r.Sources.Keys())
				case has && !same:
					shown[pair] = true
				}
			}
		}
	}
	if named == 0 {
		t.Error("no resource names an object")
	}
	for _, pair := range []string{
		"ServiceEntry cds", "ServiceEntry eds", "ServiceEntry lds", "ServiceEntry rds", "WorkloadEntry cds", "WorkloadEntry eds", "DestinationRule cds", "DestinationRule eds",
		"DestinationRule lds", "DestinationRule rds", "VirtualService lds", "VirtualService rds", "Sidecar cds", "Sidecar lds", "PeerAuthentication lds",
		"PeerAuthentication eds", "Gateway cds", "Gateway lds", "Gateway rds", "WasmPlugin lds", "WasmPlugin ecds", "TrafficExtension lds", "TrafficExtension ecds",
	} {
		if !shown[pair] {
			t.Errorf("no case shows a resource that changes: %s", pair)
		}
	}
}

// instead returns the objects without one. A Sidecar is replaced by one with the same imports and
// nothing else, because its resources do not contain what it hides.
func instead(objects []*model.Config, i int) []*model.Config {
	spec, ok := objects[i].Spec.(*networkingv1alpha3.Sidecar)
	if !ok {
		return slices.Delete(slices.Clone(objects), i, i+1)
	}
	imports := *objects[i]
	egress := &networkingv1alpha3.IstioEgressListener{}
	for _, l := range spec.GetEgress() {
		egress.Hosts = append(egress.Hosts, l.GetHosts()...)
	}
	next := &networkingv1alpha3.Sidecar{WorkloadSelector: spec.GetWorkloadSelector()}
	if len(egress.GetHosts()) > 0 {
		next.Egress = []*networkingv1alpha3.IstioEgressListener{egress}
	}
	imports.Spec = next
	out := slices.Clone(objects)
	out[i] = &imports
	return out
}

// displaced reports whether a resource names something that the later one does not.
func displaced(before, after *xds.Resource) bool {
	return slices.ContainsFunc(before.Sources.Keys(), func(k model.Key) bool { return !after.Sources.Has(k) })
}

// ofConfiguration reports whether a name is that of a virtual host whose route configuration names
// an object: one does not exist without the other.
func ofConfiguration(all map[string]*xds.Resource, name string, key model.Key) bool {
	host, ok := strings.CutPrefix(name, "vhds ")
	if !ok {
		return false
	}
	frame := all["rds "+host[:strings.Index(host, vhdsSuffix+"/")+len(vhdsSuffix)]]
	return frame != nil && frame.Sources.Has(key)
}

// TestSourcesFollowARename checks that an object that is replaced under another name results in
// the same resources, which name the new object.
func TestSourcesFollowARename(t *testing.T) {
	t.Parallel()
	for _, c := range testCases(t) {
		for i, o := range c.objects {
			if o.Kind == model.Gateway || o.Kind == model.WasmPlugin || o.Kind == model.TrafficExtension || o.Kind == model.WorkloadEntry {
				continue // their names are visible in resources or their order
			}
			g := New(Config{})
			mesh := snapshot.Build(nil, inputOf(c.objects, c.mesh), model.Change{All: true})
			before := map[string]*xds.Set{}
			for typeURL := range shortTypes {
				before[typeURL] = g.Generate(mesh, c.proxy, typeURL)
			}
			renamed := *o
			renamed.Name += "-again"
			objects := slices.Clone(c.objects)
			objects[i] = &renamed
			next := snapshot.Build(mesh, inputOf(objects, c.mesh), model.NewChange(o.Key, renamed.Key))
			for typeURL, set := range before {
				for _, r := range g.Generate(next, c.proxy, typeURL).Resources {
					was := set.Get(r.Name)
					if r.Sources.Has(o.Key) {
						t.Errorf("%s: %s names %s, which is gone", c.name, r.Name, o.Key)
					}
					if was != nil && bytes.Equal(was.Any, r.Any) && was.Sources.Has(o.Key) != r.Sources.Has(renamed.Key) {
						t.Errorf("%s: %s comes from %v, and then from %v", c.name, r.Name, was.Sources.Keys(), r.Sources.Keys())
					}
				}
			}
		}
	}
}

// TestSourcesOfAnExtendedService checks that a ServiceEntry that adds endpoints to a cluster's
// service is a source of its endpoints, and of the identities in its cluster.
func TestSourcesOfAnExtendedService(t *testing.T) {
	t.Parallel()
	service := model.Key{Kind: model.KubernetesService, Namespace: "default", Name: "web"}
	entry := &model.Config{Key: model.Key{Kind: model.ServiceEntry, Namespace: "default", Name: "more"}, Spec: &networkingv1alpha3.ServiceEntry{
		Hosts: []string{"web.default.svc.cluster.local"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC, Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL,
		Ports:     []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: "10.0.0.9", ServiceAccount: "other"}},
	}}
	in := inputOf([]*model.Config{entry}, meshconfig.Default())
	in.Platform = clusters{{Name: "web", Service: &model.Service{
		ServiceKey: model.ServiceKey{Hostname: "web.default.svc.cluster.local", Namespace: "default"}, Registry: model.RegistryKubernetes, Source: service,
		Ports: []model.Port{{Name: "http", Number: 80, Protocol: model.ProtocolHTTP}},
	}, Endpoints: registry.SortOfClusters([]*model.Endpoint{{Address: "10.0.0.1", Port: 80, ServicePort: 80, Weight: 1}})}}
	mesh, g := snapshot.Build(nil, in, model.Change{All: true}), New(Config{})
	for _, typeURL := range []string{xds.TypeCluster, xds.TypeEndpoint} {
		r := g.Generate(mesh, proxyAt("127.1.0.2"), typeURL).Get("outbound|80||web.default.svc.cluster.local")
		if r == nil || !slices.Equal(r.Sources.Keys(), []model.Key{service, entry.Key}) {
			t.Errorf("%s: got %+v", typeURL, r)
		}
	}
}
