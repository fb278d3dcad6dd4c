// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// defaultDomain is the DNS domain of meshes that name none.
const defaultDomain = "cluster.local"

// Build sets the Mesh, Status and Origin of an input from its objects and manifests. A nil mesh config
// means the defaults.
func (in *Input) Build(mesh *meshv1alpha1.MeshConfig) {
	if mesh == nil {
		mesh = meshconfig.Default()
	}
	kinds := map[model.Kind][]*model.Config{}
	for _, c := range in.Objects {
		kinds[c.Kind] = append(kinds[c.Kind], c)
	}
	var p *platform
	state := snapshot.Input{Mesh: mesh, Domain: defaultDomain}
	if m := in.Manifests; m != nil && len(m.services)+len(m.pods) > 0 {
		p = newPlatform(m)
		state.Platform = p
	}
	converted := convert(kinds, in.Manifests, p, mesh)
	in.Status, in.Origin = converted.Status, converted.Origin
	state.List = func(kind model.Kind) []*model.Config { return slices.Concat(kinds[kind], converted.Objects[kind]) }
	in.Mesh = snapshot.Build(nil, state, model.Change{All: true})
}

// platform are the Services and pods of manifests. Each template of a pod is one pod.
type platform struct {
	services []*registry.PlatformService
	byName   map[objectName]*registry.PlatformService
	pods     map[string][]*registry.Workload
}

func newPlatform(m *Manifests) *platform {
	p := &platform{byName: map[objectName]*registry.PlatformService{}, pods: map[string][]*registry.Workload{}}
	pods, places := map[string]*labelIndex{}, map[*Workload]*pod{}
	addresses := map[*pod]string{}
	for i, one := range m.pods {
		w := &Workload{Namespace: one.namespace, Name: one.name, Labels: one.labels}
		if pods[w.Namespace] == nil {
			pods[w.Namespace] = &labelIndex{}
		}
		pods[w.Namespace].add(w)
		// The range of documentation: no pod of a manifest has an address.
		places[w], addresses[one] = one, fmt.Sprintf("2001:db8::%x:%x", i>>16, i&0xffff+1)
		p.pods[w.Namespace] = append(p.pods[w.Namespace], &registry.Workload{
			Object: model.Key{Kind: model.KubernetesPod, Namespace: w.Namespace, Name: w.Name}, Source: one.source, Address: addresses[one],
			Ports: one.ports(), Labels: w.Labels, Namespace: w.Namespace, ServiceAccount: one.account(), Weight: 1,
		})
	}
	for _, s := range m.services {
		if p.byName[objectName{s.Object.Namespace, s.Object.Name}] != nil {
			continue
		}
		ps := platformService(s)
		for _, w := range pods[s.Object.Namespace].candidates(s.Spec.Selector) {
			if len(s.Spec.Selector) > 0 && model.Selects(s.Spec.Selector, w.Labels) {
				ps.Endpoints = append(ps.Endpoints, endpointsOf(ps, places[w], addresses[places[w]])...)
			}
		}
		ps.Endpoints = registry.SortOfClusters(ps.Endpoints)
		p.services = append(p.services, ps)
		p.byName[objectName{s.Object.Namespace, s.Object.Name}] = ps
	}
	return p
}

// platformService returns the service of a manifest, without endpoints.
func platformService(s *service) *registry.PlatformService {
	out := &registry.PlatformService{Name: s.Object.Name, Selector: s.Spec.Selector, Service: &model.Service{
		ServiceKey: model.ServiceKey{Hostname: strings.ToLower(s.Object.Name + "." + s.Object.Namespace + ".svc." + defaultDomain), Namespace: s.Object.Namespace},
		Labels:     s.Labels, Registry: model.RegistryKubernetes,
		Source:   model.Key{Kind: model.KubernetesService, Namespace: s.Object.Namespace, Name: s.Object.Name},
		Headless: s.Spec.ClusterIP == corev1.ClusterIPNone, Passthrough: s.Spec.ClusterIP == corev1.ClusterIPNone,
	}}
	if text := s.Annotations["networking.istio.io/exportTo"]; text != "" {
		for _, to := range strings.Split(text, ",") {
			out.Service.ExportTo = append(out.Service.ExportTo, strings.TrimSpace(to))
		}
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		out.Service.Resolution, out.Service.External, out.Selector = model.ResolutionDNS, true, nil
	}
	for _, port := range s.Spec.Ports {
		if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP || port.Port <= 0 {
			continue
		}
		number := uint32(port.Port)
		out.Service.Ports = append(out.Service.Ports, model.Port{Name: port.Name, Number: number, Protocol: model.ParseKubernetesPort(port.Name, port.AppProtocol, number)})
		target := registry.TargetPort{Name: port.TargetPort.StrVal}
		if target.Name == "" {
			target.Number = uint32(cmp.Or(max(port.TargetPort.IntVal, 0), port.Port))
		}
		out.Targets = append(out.Targets, target)
		if out.Service.Resolution == model.ResolutionDNS && s.Spec.ExternalName != "" {
			out.Endpoints = append(out.Endpoints, &model.Endpoint{Address: s.Spec.ExternalName, Port: number, ServicePort: number, Namespace: s.Object.Namespace, Weight: 1})
		}
	}
	return out
}

// endpointsOf returns the endpoints of a service that a pod is.
func endpointsOf(s *registry.PlatformService, p *pod, address string) (out []*model.Endpoint) {
	ports := p.ports()
	for i, port := range s.Service.Ports {
		target := s.Targets[i].Number
		if target == 0 {
			target = ports[s.Targets[i].Name]
		}
		if target == 0 {
			continue
		}
		out = append(out, &model.Endpoint{
			Address: address, Port: target, ServicePort: port.Number, Labels: p.labels, Namespace: p.namespace,
			ServiceAccount: p.account(), Workload: p.name, Weight: 1,
		})
	}
	return out
}

// ports returns the named ports of a pod.
func (p *pod) ports() map[string]uint32 {
	out := map[string]uint32{}
	for _, c := range p.containers() {
		for _, port := range c.Ports {
			if port.Name != "" && port.ContainerPort > 0 {
				out[port.Name] = uint32(port.ContainerPort)
			}
		}
	}
	return out
}

func (p *pod) account() string { return cmp.Or(p.spec.ServiceAccountName, "default") }

func (p *platform) Services() []*registry.PlatformService { return p.services }

func (p *platform) Service(namespace, name string) *registry.PlatformService {
	return p.byName[objectName{namespace, name}]
}

func (p *platform) Pods(namespace, name string) []*registry.Workload {
	if name == "" {
		return p.pods[namespace]
	}
	for _, w := range p.pods[namespace] {
		if w.Object.Name == name {
			return []*registry.Workload{w}
		}
	}
	return nil
}
