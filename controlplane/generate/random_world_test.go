// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// randomWorld is a mesh of a few namespaces whose objects, cluster services and settings change at
// random. It uses few names and ports, so that they collide.
type randomWorld struct {
	chaos
	objects  map[model.Key]*model.Config
	platform map[model.Key]*registry.PlatformService
	networks *meshv1alpha1.MeshNetworks
	settings *meshv1alpha1.MeshConfig
}

func newRandomWorld(seed uint64) *randomWorld {
	w := &randomWorld{
		chaos: chaos{rand.New(rand.NewPCG(seed, 63))}, objects: map[model.Key]*model.Config{},
		platform: map[model.Key]*registry.PlatformService{}, settings: meshconfig.Default(),
	}
	w.change(4 + w.IntN(40))
	return w
}

func (w *randomWorld) namespace() string { return w.one("a", "a", "b", "root") }

func (w *randomWorld) input() snapshot.Input {
	w.settings.RootNamespace = "root"
	in := inputOf(slices.SortedFunc(maps.Values(w.objects), model.Older), proto.Clone(w.settings).(*meshv1alpha1.MeshConfig))
	in.Platform, in.Networks = clusters(slices.Collect(maps.Values(w.platform))), w.networks
	return in
}

// change alters some objects, and returns the change.
func (w *randomWorld) change(n int) model.Change {
	change := model.NewChange()
	for range n {
		key := model.Key{Kind: w.kind(), Namespace: w.namespace(), Name: fmt.Sprint("o", w.IntN(4))}
		switch key.Kind {
		case model.MeshConfigKind:
			w.configure()
			change.All = true
		case model.KubernetesService:
			if w.platform[key] != nil && w.IntN(3) == 0 {
				delete(w.platform, key)
			} else {
				w.platform[key] = w.kubeService(key)
			}
			change.Keys[key] = struct{}{}
		case model.KubernetesEndpoints:
			key.Kind = model.KubernetesService
			if old := w.platform[key]; old != nil {
				next := *old
				next.Endpoints = w.endpoints(key, old.Service)
				w.platform[key] = &next
				key.Kind = model.KubernetesEndpoints
				change.Keys[key] = struct{}{}
			}
		default:
			if w.objects[key] != nil && w.IntN(3) == 0 {
				delete(w.objects, key)
			} else {
				created := time.Unix(int64(w.IntN(100)), 0)
				w.objects[key] = &model.Config{Key: key, Created: created, Spec: w.spec(key.Kind)}
			}
			change.Keys[key] = struct{}{}
		}
	}
	return change
}

func (w *randomWorld) kind() model.Kind {
	kinds := []model.Kind{
		model.ServiceEntry, model.ServiceEntry, model.WorkloadEntry, model.DestinationRule, model.VirtualService, model.VirtualService,
		model.Sidecar, model.PeerAuthentication, model.Gateway, model.KubernetesService, model.KubernetesService, model.KubernetesEndpoints, model.MeshConfigKind,
	}
	return kinds[w.IntN(len(kinds))]
}

func (w *randomWorld) configure() {
	c := meshconfig.Default()
	c.ProxyHttpPort = int32(w.IntN(2) * 15080)
	if w.IntN(3) == 0 {
		c.OutboundTrafficPolicy = &meshv1alpha1.MeshConfig_OutboundTrafficPolicy{}
	}
	if w.IntN(4) == 0 {
		c.ConnectTimeout = durationpb.New(3 * time.Second)
		c.LocalityLbSetting = &networkingv1alpha3.LocalityLoadBalancerSetting{FailoverPriority: w.some("app", "topology.kubernetes.io/region")}
	}
	if w.IntN(4) == 0 {
		c.DefaultServiceExportTo = []string{w.one(".", "*")}
		c.DefaultVirtualServiceExportTo = []string{w.one(".", "*")}
	}
	w.settings, w.networks = c, nil
	if w.IntN(2) == 0 {
		w.networks = &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{"n1": {
			Endpoints: []*meshv1alpha1.Network_NetworkEndpoints{{Ne: &meshv1alpha1.Network_NetworkEndpoints_FromRegistry{FromRegistry: "c2"}}},
			Gateways:  []*meshv1alpha1.Network_IstioNetworkGateway{{Gw: &meshv1alpha1.Network_IstioNetworkGateway_Address{Address: "192.0.2.9"}, Port: 15443}},
		}}}
	}
}

func (w *randomWorld) address() string {
	return w.rarely(w.one("fe80::1%eth0", "::ffff:10.0.0.1", "::", "0.0.0.0", "unix:///tmp/w", "unix://@w", ""), "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "fd00::1")
}

func (w *randomWorld) locality() string {
	return w.one("", "r1/z1", "r1/z2/s", "r2/z1")
}

func (w *randomWorld) endpoints(key model.Key, svc *model.Service) []*model.Endpoint {
	var out []*model.Endpoint
	for range 1 + w.IntN(3) { // at least one: a service that lost all endpoints remembers their identities
		base := model.Endpoint{
			Address: w.address(), Namespace: key.Namespace, ServiceAccount: w.one("", "x", "y"), Labels: w.labels(), Weight: 1, Cluster: w.one("c1", "c2"),
			Network: w.one("", "", "n1", "n2"), Node: w.one("", "node1", "node2"), Locality: w.locality(), MutualTLS: w.IntN(2) == 0,
			Draining: w.IntN(8) == 0, Hostname: w.one("", "pod-0.web"),
		}
		for _, p := range svc.Ports {
			ep := base
			ep.ServicePort, ep.Port = p.Number, w.port()
			out = append(out, &ep)
		}
	}
	return registry.SortOfClusters(out)
}

func (w *randomWorld) port() uint32 {
	return []uint32{80, 80, 80, 443, 443, 8080, 9000, 15001, 15006, 15021, 15080, 15090}[w.IntN(12)]
}

func (w *randomWorld) protocol() string {
	return w.one("HTTP", "HTTP", "GRPC", "TCP", "TCP", "TLS", "HTTPS", "MONGO", "", "")
}

func (w *randomWorld) kubeService(key model.Key) *registry.PlatformService {
	svc := &model.Service{
		ServiceKey: model.ServiceKey{Hostname: key.Name + "." + key.Namespace + ".svc.cluster.local", Namespace: key.Namespace},
		Registry:   model.RegistryKubernetes, Created: time.Unix(int64(w.IntN(100)), 0), Source: key, NodeLocal: w.IntN(6) == 0,
		Distribution: model.Distribution(w.one("", "", string(model.PreferSameNode), string(model.PreferSameZone))),
		ExportTo:     w.some(".", "*", "a"),
	}
	for range 1 + w.IntN(3) {
		number := w.port()
		if !slices.ContainsFunc(svc.Ports, func(p model.Port) bool { return p.Number == number }) {
			svc.Ports = append(svc.Ports, model.Port{Name: fmt.Sprint("p", number), Number: number, Protocol: model.ParseProtocol(w.protocol())})
		}
	}
	switch w.IntN(4) {
	case 0:
		svc.Headless, svc.Passthrough = true, true
	case 1:
		svc.ClusterAddresses = map[string][]string{"c1": {w.one("10.96.0.1", "10.96.0.2")}, "c2": {w.one("10.97.0.1", "fd96::1")}}
		svc.Addresses = svc.ClusterAddresses["c1"]
	default:
		svc.Addresses = []string{w.one("10.96.0.1", "10.96.0.2", "10.96.0.3"), w.one("fd96::1", "fd96::2")}
	}
	return &registry.PlatformService{Name: key.Name, Service: svc, Endpoints: w.endpoints(key, svc)}
}

func (w *randomWorld) labels() map[string]string {
	out := map[string]string{}
	for range w.IntN(3) {
		out[w.one("app", "app", "version", "tier")] = w.one("x", "y")
	}
	return out
}

func (w *randomWorld) selector() map[string]string {
	if w.IntN(2) == 0 {
		return nil
	}
	return w.labels()
}

func (w *randomWorld) host() string {
	return w.one("o0", "o1", "o2.a.svc.cluster.local", "o1.b.svc.cluster.local", "o0.root.svc.cluster.local", "one.test", "two.test", "x.two.test", "*.two.test")
}

func (w *randomWorld) spec(kind model.Kind) proto.Message {
	switch kind {
	case model.ServiceEntry:
		return w.serviceEntry()
	case model.WorkloadEntry:
		return w.workloadEntry()
	case model.DestinationRule:
		return w.destinationRule()
	case model.VirtualService:
		return w.sidecarRoutes()
	case model.Sidecar:
		return w.sidecar()
	case model.PeerAuthentication:
		return w.peerAuthentication()
	case model.Gateway:
		return w.gateway()
	}
	return nil
}

func (w *randomWorld) workloadEntry() *networkingv1alpha3.WorkloadEntry {
	return &networkingv1alpha3.WorkloadEntry{
		Address: w.address(), Labels: w.labels(), ServiceAccount: w.one("", "x", "y"), Network: w.one("", "n1", "n2"), Locality: w.locality(),
		Weight: uint32(w.IntN(3)), Ports: map[string]uint32{"p80": w.port()},
	}
}

func (w *randomWorld) serviceEntry() *networkingv1alpha3.ServiceEntry {
	se := &networkingv1alpha3.ServiceEntry{
		Hosts:      append(w.some("one.test", "two.test", "x.two.test", "*.two.test", w.rarely(w.one("*", "192.0.2.1", "UPPER.test", "a b", "x\ny", "fd00::9", strings.Repeat("l.", 110)+"test"), "one.test")), w.one("one.test", "two.test", "o2.a.svc.cluster.local")),
		Addresses:  w.some("10.96.0.1", "10.98.0.0/16", "10.96.0.9", "fd96::1", w.rarely(w.one("fe80::1%eth0", "0.0.0.0/0", "::ffff:10.96.0.1", "0.0.0.0", "fd96::/16"), "10.96.0.2")),
		Location:   networkingv1alpha3.ServiceEntry_Location(w.IntN(2)),
		Resolution: networkingv1alpha3.ServiceEntry_Resolution(w.IntN(4)),
		ExportTo:   w.some(".", "*", "b"),
	}
	for i := range 1 + w.IntN(2) {
		se.Ports = append(se.Ports, &networkingv1alpha3.ServicePort{Number: w.port(), Name: fmt.Sprint("p", i), Protocol: w.protocol()})
	}
	switch w.IntN(3) {
	case 0:
		if se.Resolution != networkingv1alpha3.ServiceEntry_NONE {
			se.WorkloadSelector = &networkingv1alpha3.WorkloadSelector{Labels: w.labels()}
		}
	case 1:
		for range w.IntN(3) {
			se.Endpoints = append(se.Endpoints, w.workloadEntry())
		}
	}
	return se
}

func (w *randomWorld) balancer() *networkingv1alpha3.LoadBalancerSettings {
	switch w.IntN(4) {
	case 0:
		return &networkingv1alpha3.LoadBalancerSettings{LocalityLbSetting: &networkingv1alpha3.LocalityLoadBalancerSetting{
			Enabled: wrapperspb.Bool(true), FailoverPriority: w.some("app", "version", "topology.kubernetes.io/zone"),
		}}
	case 1:
		return &networkingv1alpha3.LoadBalancerSettings{LbPolicy: &networkingv1alpha3.LoadBalancerSettings_ConsistentHash{
			ConsistentHash: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB{HashKey: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_UseSourceIp{UseSourceIp: true}},
		}}
	}
	return nil
}

func (w *randomWorld) destinationRule() *networkingv1alpha3.DestinationRule {
	rule := &networkingv1alpha3.DestinationRule{Host: w.host(), ExportTo: w.some(".", "*", "a"), TrafficPolicy: &networkingv1alpha3.TrafficPolicy{LoadBalancer: w.balancer()}}
	if labels := w.selector(); len(labels) > 0 {
		rule.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: labels}
	}
	if w.IntN(3) == 0 {
		rule.TrafficPolicy.OutlierDetection = &networkingv1alpha3.OutlierDetection{}
	}
	if w.IntN(3) == 0 {
		rule.TrafficPolicy.Tls = &networkingv1alpha3.ClientTLSSettings{Mode: networkingv1alpha3.ClientTLSSettings_TLSmode([]int32{0, 1, 3}[w.IntN(3)])}
	}
	for _, name := range w.some("v1", "v2") {
		rule.Subsets = append(rule.Subsets, &networkingv1alpha3.Subset{Name: name, Labels: w.labels()})
	}
	return rule
}

func (w *randomWorld) peerAuthentication() *securityv1beta1.PeerAuthentication {
	mode := func() *securityv1beta1.PeerAuthentication_MutualTLS {
		return &securityv1beta1.PeerAuthentication_MutualTLS{Mode: securityv1beta1.PeerAuthentication_MutualTLS_Mode(w.IntN(4))}
	}
	out := &securityv1beta1.PeerAuthentication{Mtls: mode()}
	if labels := w.selector(); len(labels) > 0 {
		out.Selector = &typev1beta1.WorkloadSelector{MatchLabels: labels}
		out.PortLevelMtls = map[uint32]*securityv1beta1.PeerAuthentication_MutualTLS{w.port(): mode(), 7000: mode()}
	}
	return out
}
