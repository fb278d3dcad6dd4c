// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Input is the data that services are derived from.
type Input struct {
	// List returns the ServiceEntry and the WorkloadEntry objects in canonical order
	// ([model.Older]). Get returns one object, or nil if it does not exist.
	List func(model.Kind) []*model.Config
	Get  func(model.Key) *model.Config
	// Unhealthy are the WorkloadEntry objects whose endpoints are marked unhealthy.
	Unhealthy map[model.Key]struct{}
	// Platform may be nil.
	Platform Platform
	// Networks defines which endpoints belong to which network, and the gateways of networks; may
	// be nil.
	Networks *meshv1alpha1.MeshNetworks
}

// Services are the services of the mesh and their endpoints. The value is immutable.
type Services struct {
	ByKey map[model.ServiceKey]*model.Service
	// Endpoints are sorted by service port, address and port.
	Endpoints map[model.ServiceKey][]*model.Endpoint
	// Sorted are the services, sorted by key.
	Sorted []*model.Service
	// Networks are the networks that can be reached through gateways.
	Networks *Networks
	// Problems are the problems of the objects, to be reported to their authors.
	Problems []model.Problem

	shape *shape
	// made are the endpoints and problems of each definition of the shape.
	made      []made
	workloads workloads
}

// shape is the part of Services that changes only with the definitions.
type shape struct {
	definitions []*definition
	// behind are the indexes of the definitions of each service, in the order of their endpoints.
	behind map[model.ServiceKey][]int
	// platform are the indexes of the platform's definitions.
	platform map[objectName]int
	// selecting are the indexes of the definitions with a selector, by one label pair of the
	// selector. An empty selector is stored under the empty pair.
	selecting map[namespacePair][]int
	// keys are the label keys that selectors use, by namespace.
	keys map[string]map[string]bool
	// pods are the namespaces in which a selector applies to pods.
	pods map[string]bool
	// networks returns the network of an endpoint that does not name one.
	networks *networkFinder
	// problems are the problems that do not depend on endpoints.
	problems []model.Problem
}

type objectName struct{ namespace, name string }

type namespacePair struct {
	namespace string
	pair
}

// definition is an object that defines services.
type definition struct {
	// config and entry are nil for a service of the platform.
	config *model.Config
	entry  *networkingv1alpha3.ServiceEntry
	name   objectName
	// ports are the supported ports of entry.
	ports []*networkingv1alpha3.ServicePort
	// keys are the services that it has endpoints for.
	keys []model.ServiceKey
	// selector is valid only if selects is true; pods is true if it applies to pods too.
	selector      map[string]string
	selects, pods bool
}

// made are the endpoints and problems of a definition.
type made struct {
	endpoints []*model.Endpoint
	problems  []model.Problem
}

// Build derives services from ServiceEntry objects, with the workloads that they select, and from
// the platform. If two objects of a namespace define the same host, the older one wins. A service
// of the platform wins over both and includes their endpoints in addition to its own.
func Build(in Input) *Services {
	b := &builder{in: in, out: &Services{
		ByKey: map[model.ServiceKey]*model.Service{}, Endpoints: map[model.ServiceKey][]*model.Endpoint{}, workloads: workloads{},
		shape: &shape{
			behind: map[model.ServiceKey][]int{}, platform: map[objectName]int{}, selecting: map[namespacePair][]int{},
			keys: map[string]map[string]bool{}, pods: map[string]bool{}, networks: newNetworkFinder(in.Networks),
		},
	}}
	services := b.platform()
	for _, c := range in.List(model.ServiceEntry) {
		if c == nil {
			continue
		}
		if se, ok := c.Spec.(*networkingv1alpha3.ServiceEntry); ok && se != nil {
			b.entry(c, se)
		}
	}
	b.readWorkloads()
	out := b.out
	for i, s := range out.Sorted {
		out.Sorted[i] = out.ByKey[s.ServiceKey]
	}
	out.made = make([]made, len(out.shape.definitions))
	for i, d := range out.shape.definitions {
		var p *PlatformService
		if d.entry == nil {
			p = services[i]
		}
		out.made[i] = b.make(d, p)
	}
	for key := range out.ByKey {
		out.Endpoints[key] = out.combine(key)
	}
	slices.SortFunc(out.Sorted, func(a, b *model.Service) int { return a.Compare(b.ServiceKey) })
	b.allocate()
	b.gateways(services)
	out.Problems = out.problems()
	return out
}

type builder struct {
	in  Input
	out *Services
}

// platform adds the services of the platform and returns them in the order of their definitions.
func (b *builder) platform() []*PlatformService {
	if b.in.Platform == nil {
		return nil
	}
	services := slices.Clone(b.in.Platform.Services())
	slices.SortFunc(services, func(a, b *PlatformService) int { return a.Service.Compare(b.Service.ServiceKey) })
	for _, p := range services {
		s := p.Service
		d := &definition{
			name: objectName{s.Namespace, p.Name}, keys: []model.ServiceKey{s.ServiceKey},
			selector: p.Selector, selects: len(p.Selector) > 0,
		}
		b.out.shape.platform[d.name] = b.define(d)
		b.out.ByKey[s.ServiceKey] = s
		b.out.Sorted = append(b.out.Sorted, s)
		b.out.shape.problems = append(b.out.shape.problems, p.Problems...)
	}
	return services
}

// define adds a definition to the shape and returns its index.
func (b *builder) define(d *definition) int {
	sh := b.out.shape
	at := len(sh.definitions)
	sh.definitions = append(sh.definitions, d)
	for _, key := range d.keys {
		sh.behind[key] = append(sh.behind[key], at)
	}
	if !d.selects {
		return at
	}
	in := d.name.namespace
	if sh.keys[in] == nil {
		sh.keys[in] = map[string]bool{}
	}
	place := namespacePair{namespace: in}
	if len(d.selector) > 0 {
		place.pair = pairOf(d.selector)
		sh.keys[in][place.key] = true
	}
	sh.selecting[place] = append(sh.selecting[place], at)
	sh.pods[in] = sh.pods[in] || d.pods
	return at
}

// readWorkloads indexes the workloads that selectors can match.
func (b *builder) readWorkloads() {
	sh, w := b.out.shape, b.out.workloads
	for _, c := range b.in.List(model.WorkloadEntry) {
		if wl := workloadOf(c); wl != nil {
			w.of(wl.Namespace, sh.keys[wl.Namespace]).add(wl)
		}
	}
	if b.in.Platform == nil {
		return
	}
	for namespace, taken := range sh.pods {
		if !taken {
			continue
		}
		for _, pod := range b.in.Platform.Pods(namespace, "") {
			w.of(namespace, sh.keys[namespace]).add(pod)
		}
	}
}

// combine returns the endpoints of a service, merged from those of its definitions.
func (s *Services) combine(key model.ServiceKey) []*model.Endpoint {
	behind := s.shape.behind[key]
	if len(behind) == 1 {
		return s.endpointsOf(behind[0], key)
	}
	var all []*model.Endpoint
	for _, i := range behind {
		all = append(all, s.endpointsOf(i, key)...)
	}
	return SortEndpoints(all)
}

func (s *Services) endpointsOf(i int, key model.ServiceKey) []*model.Endpoint {
	if d := s.shape.definitions[i]; d.hostIsEndpoint() {
		return hostEndpoints(key, d.ports)
	}
	return s.made[i].endpoints
}

func (s *Services) problems() []model.Problem {
	all := slices.Clip(s.shape.problems)
	for i := range s.made {
		all = append(all, s.made[i].problems...)
	}
	return all
}

// Update returns the services after a change, and the services whose endpoints may have changed. If
// whole is true, everything may have changed, because the definitions changed. The input must be as
// for Build; Update reads only the objects that the change names.
func (s *Services) Update(in Input, change model.Change) (next *Services, endpoints []model.ServiceKey, whole bool) {
	if change.Touches(model.ServiceEntry, model.KubernetesService) || !proto.Equal(in.Networks, s.shape.networks.from) {
		return Build(in), nil, true
	}
	u := &update{builder: builder{in: in}, from: s, affected: map[int]*PlatformService{}, copied: map[string]bool{}}
	for key := range change.Keys {
		u.take(key)
	}
	if len(u.affected) == 0 && u.workloads == nil {
		return s, nil, false
	}
	return u.finish()
}

// update recomputes the parts that a change of endpoints and workloads affects.
type update struct {
	builder
	from      *Services
	workloads workloads // nil until one of them changes
	copied    map[string]bool
	// affected are the indexes of the affected definitions, with the service of the platform if it
	// is already known.
	affected map[int]*PlatformService
}

// take processes one key of the change.
func (u *update) take(key model.Key) {
	switch key.Kind {
	case model.KubernetesEndpoints:
		if i, ok := u.from.shape.platform[objectName{key.Namespace, key.Name}]; ok {
			u.affected[i] = nil
		}
	case model.WorkloadEntry:
		u.workload(key, workloadOf(u.in.Get(key)))
	case model.KubernetesPod:
		if u.in.Platform == nil || !u.from.shape.pods[key.Namespace] {
			return
		}
		var pod *Workload
		if found := u.in.Platform.Pods(key.Namespace, key.Name); len(found) > 0 {
			pod = found[0]
		}
		u.workload(key, pod)
	}
}

// workload replaces a workload; a nil w removes it.
func (u *update) workload(key model.Key, w *Workload) {
	if u.workloads == nil {
		u.workloads = maps.Clone(u.from.workloads)
	}
	n := u.workloads.of(key.Namespace, u.from.shape.keys[key.Namespace])
	if !u.copied[key.Namespace] {
		u.copied[key.Namespace] = true
		n = n.clone()
		u.workloads[key.Namespace] = n
	}
	u.selecting(key, n.all[key])
	u.selecting(key, w)
	n.set(key, w)
}

// selecting marks the definitions that select a workload as affected. w may be nil.
func (u *update) selecting(key model.Key, w *Workload) {
	if w == nil {
		return
	}
	sh := u.from.shape
	mark := func(p pair) {
		for _, i := range sh.selecting[namespacePair{key.Namespace, p}] {
			d := sh.definitions[i]
			if model.Selects(d.selector, w.Labels) && (d.pods || key.Kind != model.KubernetesPod) {
				u.affected[i] = nil
			}
		}
	}
	mark(pair{})
	for k, v := range w.Labels {
		if sh.keys[key.Namespace][k] {
			mark(pair{k, v})
		}
	}
}

// finish recomputes the endpoints of the affected definitions and of their services.
func (u *update) finish() (*Services, []model.ServiceKey, bool) {
	next := *u.from
	if u.workloads != nil {
		next.workloads = u.workloads
	}
	u.out = &next
	next.made = slices.Clone(u.from.made)
	keys := map[model.ServiceKey]bool{}
	for i := range u.affected {
		d := next.shape.definitions[i]
		var p *PlatformService
		if d.entry == nil {
			if p = u.in.Platform.Service(d.name.namespace, d.name.name); p == nil {
				continue // the service was removed; a change of the definition will follow
			}
		}
		next.made[i] = u.make(d, p)
		for _, key := range d.keys {
			keys[key] = true
		}
	}
	next.Endpoints = maps.Clone(u.from.Endpoints)
	for key := range keys {
		next.Endpoints[key] = next.combine(key)
	}
	next.Problems = next.problems()
	return &next, slices.Collect(maps.Keys(keys)), false
}
