// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// member is the state of one cluster in the registry. It does not use the API: the registry calls
// it with its mutex held. It reports changes through the mark functions.
type member struct {
	id string
	// mark functions
	service   func(types.NamespacedName) // the definition changed
	endpoints func(types.NamespacedName) // endpoints of the service changed
	// pod is called if the workload of a pod changed; it reports whether a selector of an object
	// may match it.
	pod func(types.NamespacedName) bool

	// ready is true once every kind was listed; until then nothing is derived.
	ready    bool
	services map[types.NamespacedName]*serviceRecord
	slices   map[types.NamespacedName]*sliceRecord
	pods     map[types.NamespacedName]*podRecord
	nodes    map[string]*nodeRecord
	network  string
	// namespaces are the labels of namespaces. selects reports whether a namespace is included, by
	// its labels; nil means all.
	namespaces map[string]*namespaceRecord
	selects    func(labels map[string]string) bool
	// shards are the endpoints of each slice, by service.
	shards map[types.NamespacedName]map[types.NamespacedName][]*model.Endpoint
	// users are the slices that depend on a pod, by the name of the pod or, if a slice does not
	// name it, by its address.
	users     map[user]map[types.NamespacedName]bool
	byAddress map[string][]types.NamespacedName
	// exports and imports are empty unless mcs reads them.
	mcs     MCSConfig
	exports map[types.NamespacedName]*exportRecord
	imports map[types.NamespacedName]*importRecord
}

// user identifies a pod by name or by address.
type user struct {
	pod     types.NamespacedName
	address string
}

// place is the locality and network of a pod, and the labels of its endpoints.
type place struct {
	locality, network string
	labels            map[string]string
}

func newMember(id string) *member {
	return &member{
		id: id, services: map[types.NamespacedName]*serviceRecord{}, slices: map[types.NamespacedName]*sliceRecord{},
		pods: map[types.NamespacedName]*podRecord{}, nodes: map[string]*nodeRecord{}, namespaces: map[string]*namespaceRecord{},
		shards: map[types.NamespacedName]map[types.NamespacedName][]*model.Endpoint{},
		users:  map[user]map[types.NamespacedName]bool{}, byAddress: map[string][]types.NamespacedName{},
		exports: map[types.NamespacedName]*exportRecord{}, imports: map[types.NamespacedName]*importRecord{},
	}
}

// start derives everything from the listed objects.
func (m *member) start() {
	m.ready = true
	for name := range m.slices {
		m.derive(name)
	}
}

// setService sets a Service; nil removes it. It reports whether the change is relevant.
func (m *member) setService(name types.NamespacedName, r *serviceRecord) bool {
	if r == nil {
		delete(m.services, name)
	} else {
		m.services[name] = r
	}
	for slice := range m.shards[name] {
		m.derive(slice)
	}
	m.service(name)
	return m.selected(name.Namespace)
}

// setSlice sets an EndpointSlice; nil removes it. It reports whether endpoints changed.
func (m *member) setSlice(name types.NamespacedName, r *sliceRecord) bool {
	before := m.slices[name]
	if r != nil {
		m.slices[name] = r
	} else {
		delete(m.slices, name)
	}
	m.use(name, before, r)
	changed := false
	if before != nil && (r == nil || r.service != before.service) {
		changed = m.removeShard(types.NamespacedName{Namespace: name.Namespace, Name: before.service}, name)
	}
	if r == nil {
		return changed
	}
	of := types.NamespacedName{Namespace: name.Namespace, Name: r.service}
	if m.shards[of] == nil {
		m.shards[of] = map[types.NamespacedName][]*model.Endpoint{}
	}
	if _, known := m.shards[of][name]; !known {
		m.shards[of][name] = nil
	}
	return m.derive(name) || changed
}

// use adds a slice to the users of its pods, and removes it from those that only its previous
// version had.
func (m *member) use(name types.NamespacedName, before, r *sliceRecord) {
	used := map[user]bool{}
	if r != nil {
		for i := range r.endpoints {
			u := userOf(name.Namespace, &r.endpoints[i])
			used[u] = true
			if m.users[u] == nil {
				m.users[u] = map[types.NamespacedName]bool{}
			}
			m.users[u][name] = true
		}
	}
	if before == nil {
		return
	}
	for i := range before.endpoints {
		u := userOf(name.Namespace, &before.endpoints[i])
		if used[u] {
			continue
		}
		if delete(m.users[u], name); len(m.users[u]) == 0 {
			delete(m.users, u)
		}
	}
}

// removeShard removes the endpoints of a slice from a service. It reports whether there were any.
func (m *member) removeShard(of, slice types.NamespacedName) bool {
	had := len(m.shards[of][slice]) > 0
	if delete(m.shards[of], slice); len(m.shards[of]) == 0 {
		delete(m.shards, of)
	}
	if had {
		m.endpoints(of)
	}
	return had
}

func userOf(namespace string, e *sliceEndpoint) user {
	if e.pod == "" {
		return user{address: e.address}
	}
	return user{pod: types.NamespacedName{Namespace: namespace, Name: e.pod}}
}

// setPod sets a Pod; nil removes it. It reports whether the change is relevant.
func (m *member) setPod(name types.NamespacedName, r *podRecord) bool {
	before := m.pods[name]
	workload := m.workload(name)
	if before != nil {
		for _, address := range before.addresses {
			left := slices.DeleteFunc(slices.Clone(m.byAddress[address]), func(o types.NamespacedName) bool { return o == name })
			if m.byAddress[address] = left; len(left) == 0 {
				delete(m.byAddress, address)
			}
		}
	}
	if r == nil {
		delete(m.pods, name)
	} else {
		m.pods[name] = r
		for _, address := range r.addresses {
			m.byAddress[address] = append(slices.Clip(m.byAddress[address]), name)
		}
	}
	changed := m.deriveUsers(user{pod: name})
	for _, record := range []*podRecord{before, r} {
		if record == nil {
			continue
		}
		for _, address := range record.addresses {
			changed = m.deriveUsers(user{address: address}) || changed
		}
	}
	if m.ready && !sameWorkload(workload, m.workload(name)) {
		changed = m.pod(name) || changed
	}
	return changed
}

func (m *member) deriveUsers(u user) (changed bool) {
	for slice := range m.users[u] {
		changed = m.derive(slice) || changed
	}
	return changed
}

// setNode sets a Node; nil removes it. The addresses of a node affect services that are reached
// through nodes; its locality affects endpoints.
func (m *member) setNode(name string, r *nodeRecord) (changed bool) {
	before := m.nodes[name]
	if r == nil {
		delete(m.nodes, name)
	} else {
		m.nodes[name] = r
	}
	for n, s := range m.services {
		if was, is := s.outside.chooses(before), s.outside.chooses(r); was || is {
			if was != is || !slices.Equal(before.external, r.external) {
				m.service(n)
				changed = m.selected(n.Namespace) || changed
			}
		}
	}
	if before != nil && r != nil && before.locality == r.locality {
		return changed
	}
	return m.replace(func(node string) bool { return node == name }) || changed
}

// setNetwork sets the network of all pods that do not name one.
func (m *member) setNetwork(network string) (changed bool) {
	if network == m.network {
		return false
	}
	m.network = network
	return m.replace(func(string) bool { return true })
}

// replace recomputes the places of the pods on the nodes for which moved returns true.
func (m *member) replace(moved func(node string) bool) (changed bool) {
	affected := map[types.NamespacedName]bool{}
	for name, pod := range m.pods {
		if !moved(pod.node) || pod.place == nil {
			continue
		}
		pod.place = nil
		changed = m.pod(name) || changed
		maps.Copy(affected, m.users[user{pod: name}])
		for _, address := range pod.addresses {
			maps.Copy(affected, m.users[user{address: address}])
		}
	}
	for name, slice := range m.slices {
		if slices.ContainsFunc(slice.endpoints, func(e sliceEndpoint) bool { return moved(e.node) }) {
			affected[name] = true
		}
	}
	for name := range affected {
		changed = m.derive(name) || changed
	}
	return changed
}

// derive computes the endpoints of a slice and reports whether they changed.
func (m *member) derive(name types.NamespacedName) bool {
	slice := m.slices[name]
	if !m.ready || slice == nil {
		return false
	}
	of := types.NamespacedName{Namespace: name.Namespace, Name: slice.service}
	var shard []*model.Endpoint
	if service := m.services[of]; service != nil {
		shard = m.shard(of, service, slice)
	}
	if slices.EqualFunc(m.shards[of][name], shard, sameEndpoint) {
		return false
	}
	m.shards[of][name] = shard
	m.endpoints(of)
	return true
}

// shard returns the endpoints of a slice of a service.
func (m *member) shard(of types.NamespacedName, service *serviceRecord, slice *sliceRecord) []*model.Endpoint {
	if service.external() {
		return nil
	}
	persistent, unexported := service.service.Persistent(), m.mcs.clusterLocal() || m.unexported(of)
	type servedPort struct{ service, number uint32 }
	var ports []servedPort
	for _, p := range service.service.Ports {
		for _, sp := range slice.ports {
			if sp.name == p.Name {
				ports = append(ports, servedPort{p.Number, sp.number})
			}
		}
	}
	made := make([]model.Endpoint, 0, len(ports)*len(slice.endpoints))
	for i := range slice.endpoints {
		e := &slice.endpoints[i]
		base, ok := m.endpoint(of.Namespace, e)
		base.Draining = e.draining || base.Labels[model.DrainingLabel] != ""
		if !ok || base.Draining && !persistent {
			continue
		}
		base.Unexported = unexported
		if e.hostname != "" && service.service.Headless {
			base.Hostname = e.hostname + "." + of.Name
		}
		for _, p := range ports {
			base.ServicePort, base.Port = p.service, p.number
			made = append(made, base)
		}
	}
	out := make([]*model.Endpoint, len(made))
	for i := range made {
		out[i] = &made[i]
	}
	return out
}

// endpoint returns the fields that all endpoints of an address have in common. It returns false if
// the pod of the address is unknown: pods arrive on another watch, and without the pod it is
// unknown whether the address accepts mutual TLS.
func (m *member) endpoint(namespace string, e *sliceEndpoint) (model.Endpoint, bool) {
	out := model.Endpoint{Address: e.address, Cluster: m.id, Network: m.network, Node: e.node, Namespace: namespace, Weight: 1}
	name, pod := m.podOf(namespace, e)
	if pod == nil {
		if e.pod != "" {
			return out, false
		}
		out.Locality = m.locality(e.node, nil)
		if out.Locality == "" && e.zone != "" {
			out.Locality = "/" + e.zone
		}
		return out, true
	}
	at := m.localityOf(pod)
	out.Labels, out.Locality, out.Network = at.labels, at.locality, at.network
	out.Namespace, out.ServiceAccount, out.Workload, out.Node = name.Namespace, pod.account, name.Name, pod.node
	out.MutualTLS = pod.labels[tlsModeLabel] == "istio"
	return out, true
}

// podOf returns the pod of an address, or nil if it is unknown.
func (m *member) podOf(namespace string, e *sliceEndpoint) (types.NamespacedName, *podRecord) {
	if e.pod != "" {
		name := types.NamespacedName{Namespace: namespace, Name: e.pod}
		// A slice may still refer to an earlier pod of the same name.
		if pod := m.pods[name]; pod != nil && (e.uid == "" || pod.uid == e.uid) {
			return name, pod
		}
		return name, nil
	}
	// Pods on the host network share the address of their node, so it does not identify a pod.
	if names := m.byAddress[e.address]; len(names) == 1 && !m.pods[names[0]].hostNet {
		return names[0], m.pods[names[0]]
	}
	return types.NamespacedName{}, nil
}

// awaited returns the number of pods that slices name and that are unknown.
func (m *member) awaited() (n int) {
	for u := range m.users {
		if u.address == "" && m.pods[u.pod] == nil {
			n++
		}
	}
	return n
}

// localityOf returns the place of a pod.
func (m *member) localityOf(pod *podRecord) *place {
	if pod.place != nil {
		return pod.place
	}
	at := &place{
		network:  cmp.Or(pod.labels[networkLabel], m.network),
		locality: m.locality(pod.node, pod.labels),
		labels:   make(map[string]string, len(pod.labels)+6),
	}
	maps.Copy(at.labels, pod.labels)
	region, rest, _ := strings.Cut(at.locality, "/")
	zone, subzone, _ := strings.Cut(rest, "/")
	for label, value := range map[string]string{
		"topology.kubernetes.io/region": region, "topology.kubernetes.io/zone": zone, subzoneLabel: subzone,
		clusterLabel: m.id, networkLabel: at.network, "kubernetes.io/hostname": pod.node,
	} {
		if value != "" {
			at.labels[label] = value
		}
	}
	pod.place = at
	return at
}

// locality returns the locality in the label of a pod, otherwise that of its node.
func (m *member) locality(node string, labels map[string]string) string {
	if l := labels[localityLabel]; l != "" {
		return strings.ReplaceAll(l, ".", "/") // label values cannot contain slashes
	}
	if n := m.nodes[node]; n != nil {
		return n.locality
	}
	return ""
}

// workload returns a pod as a workload for selectors of ServiceEntry objects, or nil if it does not
// receive requests.
func (m *member) workload(name types.NamespacedName) *registry.Workload {
	pod := m.pods[name]
	if pod == nil || !pod.ready || len(pod.addresses) == 0 {
		return nil
	}
	at := m.localityOf(pod)
	return &registry.Workload{
		Object:  model.Key{Kind: model.KubernetesPod, Namespace: name.Namespace, Name: name.Name},
		Created: pod.created, Address: pod.addresses[0], Labels: at.labels, Namespace: name.Namespace, ServiceAccount: pod.account,
		Locality: at.locality, Network: at.network, Cluster: m.id, Node: pod.node, Weight: 1, MutualTLS: pod.labels[tlsModeLabel] == "istio",
	}
}

func sameWorkload(a, b *registry.Workload) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Created.Equal(b.Created) && a.Address == b.Address && maps.Equal(a.Labels, b.Labels) && a.ServiceAccount == b.ServiceAccount &&
		a.Locality == b.Locality && a.Network == b.Network && a.Node == b.Node
}

func sameEndpoint(a, b *model.Endpoint) bool {
	return a.Address == b.Address && a.Port == b.Port && a.ServicePort == b.ServicePort && a.Namespace == b.Namespace &&
		a.ServiceAccount == b.ServiceAccount && a.Workload == b.Workload && a.Hostname == b.Hostname && a.Locality == b.Locality &&
		a.Cluster == b.Cluster && a.Network == b.Network && a.Node == b.Node && a.Weight == b.Weight && a.MutualTLS == b.MutualTLS && a.Draining == b.Draining &&
		a.Unexported == b.Unexported && maps.Equal(a.Labels, b.Labels)
}
