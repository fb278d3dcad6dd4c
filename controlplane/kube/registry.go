// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// RegistryConfig is the configuration of a Registry.
type RegistryConfig struct {
	Client *Client
	// Cluster is the name of the client's cluster, Domain the DNS domain of the mesh ("" means
	// cluster.local), and Namespace the namespace of the control plane.
	Cluster, Domain, Namespace string
	// OnChange is called with each relevant change after the registry has synced. It must not
	// block.
	OnChange func(model.Change)
	// SelectsPods reports whether any object selects pods of a namespace by their labels; nil means
	// that none does.
	SelectsPods func(namespace string) bool
	// Remote configures the Secrets of other clusters.
	Remote     RemoteConfig
	MCS        MCSConfig
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil means no metrics
}

// Registry is the [registry.Platform] of a cluster and of the clusters whose kubeconfigs are in its
// Secrets: their Services, EndpointSlices and Pods. A service that exists in several clusters is
// merged into one with the endpoints of all.
//
// It requires permission to list and watch Services, EndpointSlices, Pods, Nodes and Namespaces.
// The registry does not sync while a kind cannot be read, so that a missing permission never
// removes endpoints from proxies.
type Registry struct {
	cfg     RegistryConfig
	log     *slog.Logger
	metrics *registryMetrics
	synced  chan struct{}
	remotes remotes

	mu sync.Mutex // guards the fields below, and wanted and known of remotes
	// members are the clusters by name.
	members map[string]*member
	// merged caches the merged services until they change.
	merged map[types.NamespacedName]*registry.PlatformService
	// pending are the changes made under the mutex that were not reported yet.
	pending map[model.Key]struct{}
	// selects reports whether a namespace is included, by its labels; nil means all.
	selects func(labels map[string]string) bool
}

var _ registry.Platform = (*Registry)(nil)

// NewRegistry returns a Registry that is empty until Run is called.
func NewRegistry(cfg RegistryConfig) (*Registry, error) {
	if cfg.Client == nil {
		return nil, errors.New("services of Kubernetes: there is no cluster to read them from")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Domain = cmp.Or(cfg.Domain, "cluster.local")
	r := &Registry{
		cfg: cfg, log: cfg.Logger, synced: make(chan struct{}),
		remotes: remotes{wake: make(chan struct{}, 1), wanted: map[types.NamespacedName]*secretRecord{}, known: map[string]knownCluster{}, running: map[string]*remote{}},
		members: map[string]*member{}, merged: map[types.NamespacedName]*registry.PlatformService{}, pending: map[model.Key]struct{}{},
	}
	var err error
	r.metrics, err = newRegistryMetrics(cfg.Registerer, r.awaited)
	return r, err
}

// Synced returns a channel that is closed once everything was listed.
func (r *Registry) Synced() <-chan struct{} { return r.synced }

// Run follows the clusters until ctx is done.
func (r *Registry) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	local := r.join(r.cfg.Cluster)
	local.secrets = r.cfg.Remote.On
	r.mu.Lock()
	r.remotes.known[r.cfg.Cluster] = knownCluster{following: local}
	r.mu.Unlock()
	opened := make(chan struct{})
	g.Go(func() error { r.follow(ctx, local, r.cfg.Client); return nil }) // reads the cluster, feeds the change handler
	g.Go(func() error { return r.followRemotes(ctx, local, opened) })     // reads Secrets, starts and stops other clusters
	g.Go(func() error {                                                   // reads the first lists, closes synced
		select {
		case <-ctx.Done():
		case <-opened:
			close(r.synced)
		}
		return nil
	})
	return g.Wait()
}

// join creates a cluster. It takes effect once everything in it was listed; until then, an earlier
// cluster with the same name remains in use.
func (r *Registry) join(id string) *following {
	m := newMember(id)
	m.mcs = r.cfg.MCS
	m.service = func(n types.NamespacedName) { r.mark(m, model.KubernetesService, n) }
	m.endpoints = func(n types.NamespacedName) { r.mark(m, model.KubernetesEndpoints, n) }
	m.pod = func(n types.NamespacedName) bool {
		selected := m.selected(n.Namespace) && r.cfg.SelectsPods != nil && r.cfg.SelectsPods(n.Namespace)
		if selected {
			r.mark(m, model.KubernetesPod, n)
		}
		return selected
	}
	return &following{registry: r, member: m, missing: map[string]bool{}, faults: map[string]string{}, synced: make(chan struct{})}
}

// mark records a change. The caller holds the mutex.
func (r *Registry) mark(m *member, kind model.Kind, n types.NamespacedName) {
	if kind != model.KubernetesPod {
		delete(r.merged, n)
	}
	counts := m.ready && m.selected(n.Namespace)
	if counts {
		r.pending[model.Key{Kind: kind, Namespace: n.Namespace, Name: n.Name}] = struct{}{}
	}
	if kind == model.KubernetesPod || !r.cfg.MCS.setHost() {
		return
	}
	set := setName(n)
	if delete(r.merged, set); counts && kind == model.KubernetesEndpoints {
		r.pending[model.Key{Kind: kind, Namespace: set.Namespace, Name: set.Name}] = struct{}{}
	}
}

// alter modifies the state and reports the resulting changes.
func (r *Registry) alter(change func()) {
	r.mu.Lock()
	change()
	var changed map[model.Key]struct{}
	if len(r.pending) > 0 {
		changed, r.pending = r.pending, map[model.Key]struct{}{}
	}
	r.mu.Unlock()
	if len(changed) > 0 {
		r.cfg.OnChange(model.Change{Keys: changed})
	}
}

// awaited returns the number of pods that endpoints refer to and that are not known yet.
func (r *Registry) awaited() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, m := range r.members {
		n += m.awaited()
	}
	return float64(n)
}

// Services implements [registry.Platform].
func (r *Registry) Services() []*registry.PlatformService {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := map[types.NamespacedName]bool{}
	for _, m := range r.members {
		if m.ready {
			for n := range m.services {
				if m.selected(n.Namespace) {
					names[n] = true
				}
			}
		}
	}
	out := make([]*registry.PlatformService, 0, len(names))
	for n := range names {
		out = append(out, r.merge(n))
		if !r.cfg.MCS.setHost() {
			continue
		}
		if set := r.mergeSet(n); set != nil {
			out = append(out, set)
		}
	}
	return out
}

// Service implements [registry.Platform].
func (r *Registry) Service(namespace, name string) *registry.PlatformService {
	r.mu.Lock()
	defer r.mu.Unlock()
	if of, ok := strings.CutSuffix(name, model.ClusterSetSuffix); ok {
		return r.mergeSet(types.NamespacedName{Namespace: namespace, Name: of})
	}
	return r.merge(types.NamespacedName{Namespace: namespace, Name: name})
}

// Pods implements [registry.Platform].
func (r *Registry) Pods(namespace, name string) []*registry.Workload {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*registry.Workload
	for _, m := range r.order() {
		if !m.selected(namespace) {
			continue
		}
		if name != "" {
			if w := m.workload(types.NamespacedName{Namespace: namespace, Name: name}); w != nil {
				out = append(out, w)
			}
			continue
		}
		for n := range m.pods {
			if n.Namespace == namespace {
				if w := m.workload(n); w != nil {
					out = append(out, w)
				}
			}
		}
	}
	return out
}

// PodLabels returns the labels of a pod with the given service account in any cluster, or nil if
// there is none. It includes pods of excluded namespaces and pods that are not ready. An empty
// account matches any pod.
func (r *Registry) PodLabels(namespace, name, account string) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.order() {
		pod := m.pods[types.NamespacedName{Namespace: namespace, Name: name}]
		if pod != nil && (account == "" || pod.account == account) {
			return maps.Clone(m.localityOf(pod).labels)
		}
	}
	return nil
}

// order returns the clusters that are ready: the local one first, then the others by name. The
// caller holds the mutex.
func (r *Registry) order() []*member {
	return slices.SortedFunc(func(yield func(*member) bool) {
		for _, m := range r.members {
			if m.ready && !yield(m) {
				return
			}
		}
	}, func(a, b *member) int {
		if own := r.cfg.Cluster; a.id == own || b.id == own {
			if a.id == own {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.id, b.id)
	})
}

// merge returns a service merged from all clusters, or nil if none has it. The definition comes
// from the local cluster, otherwise from the oldest Service. The caller holds the mutex.
func (r *Registry) merge(n types.NamespacedName) *registry.PlatformService {
	if known := r.merged[n]; known != nil {
		return known
	}
	var first *serviceRecord
	var all []*model.Endpoint
	var in []*member
	var gateways []model.NetworkGateway
	for _, m := range r.order() {
		record := m.services[n]
		if record == nil || !m.selected(n.Namespace) {
			continue
		}
		if first == nil || m.id != r.cfg.Cluster && r.own(n) == nil && record.service.Created.Before(first.service.Created) {
			first = record
		}
		in = append(in, m)
		gateways = append(gateways, m.gateways(record)...)
		shards := m.shards[n]
		for _, slice := range slices.SortedFunc(maps.Keys(shards), compareNames) {
			all = append(all, shards[slice]...)
		}
	}
	if first == nil {
		return nil
	}
	if first.external() {
		all = nil
		for _, p := range first.service.Ports {
			if first.externalName == "" {
				break
			}
			all = append(all, &model.Endpoint{Address: first.externalName, Port: p.Number, ServicePort: p.Number, Namespace: n.Namespace, Weight: 1})
		}
	}
	out := &registry.PlatformService{
		Name: n.Name, Service: withClusters(first.service, n, in), Gateways: gateways, Targets: first.targets, Selector: first.selector,
		Endpoints: registry.SortOfClusters(all), Problems: first.problems,
	}
	r.merged[n] = out
	return out
}

// own returns the service in the local cluster, or nil if it does not exist.
func (r *Registry) own(n types.NamespacedName) *serviceRecord {
	if m := r.members[r.cfg.Cluster]; m != nil && m.ready && m.selected(n.Namespace) {
		return m.services[n]
	}
	return nil
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
