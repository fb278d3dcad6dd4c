// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// MCSConfig configures the Multi-Cluster Services API of Kubernetes. The zero value turns it off.
type MCSConfig struct {
	// Discovery makes the endpoints of a cluster discoverable in other clusters only if a
	// ServiceExport of their cluster has the name of the service.
	Discovery bool
	// Host adds a service <name>.<namespace>.svc.clusterset.local for each ServiceImport with
	// addresses. ClusterLocal keeps requests for the name in cluster.local in the cluster of the
	// client. Both need Discovery.
	Host, ClusterLocal bool
	// Group and Version are those of the API; empty means multicluster.x-k8s.io and v1alpha1.
	Group, Version string
}

const (
	exportsKind, importsKind = "ServiceExports", "ServiceImports"
	// definitionPoll is how often the definition of an optional kind is looked for.
	definitionPoll = 5 * time.Second
)

// exportRecord is the retained part of a ServiceExport: that it exists.
type exportRecord struct{}

func (*exportRecord) equal(*exportRecord) bool { return true }

// importRecord is the retained part of a ServiceImport: its addresses, sorted.
type importRecord struct{ addresses []string }

func (r *importRecord) equal(o *importRecord) bool { return slices.Equal(r.addresses, o.addresses) }

func readImport(o *unstructured.Unstructured) *importRecord {
	r := &importRecord{}
	list, _, _ := unstructured.NestedSlice(o.Object, "spec", "ips") // another type has no addresses
	for _, text := range list {
		if text, ok := text.(string); ok {
			if ip, err := netip.ParseAddr(text); err == nil && !slices.Contains(r.addresses, ip.String()) {
				r.addresses = append(r.addresses, ip.String())
			}
		}
	}
	slices.Sort(r.addresses)
	return r
}

// trimUntyped removes everything but the name and the addresses of an import.
func trimUntyped(o *unstructured.Unstructured) {
	kept := map[string]any{"apiVersion": o.Object["apiVersion"], "kind": o.Object["kind"], "metadata": map[string]any{
		"name": o.GetName(), "namespace": o.GetNamespace(), "resourceVersion": o.GetResourceVersion(),
	}}
	if ips, found, err := unstructured.NestedSlice(o.Object, "spec", "ips"); found && err == nil {
		kept["spec"] = map[string]any{"ips": ips}
	}
	o.Object = kept
}

// followMCS creates the reflectors of the kinds that are read.
func (r *Registry) followMCS(f *following, client *Client) {
	group := kubeschema.GroupVersion{Group: cmp.Or(r.cfg.MCS.Group, "multicluster.x-k8s.io"), Version: cmp.Or(r.cfg.MCS.Version, "v1alpha1")}
	expected := func(kind string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(group.WithKind(kind))
		return o
	}
	m := f.member
	if r.cfg.MCS.Discovery {
		list, watch := optional(client.objects.Resource(group.WithResource("serviceexports")))
		follow(f, &kind[*unstructured.Unstructured, exportRecord, *exportRecord]{
			name: exportsKind, optional: true, list: list, watch: watch, trim: trimUntyped,
			read: func(*unstructured.Unstructured) *exportRecord { return &exportRecord{} }, set: m.setExport,
		}, expected("ServiceExport"))
	}
	if r.cfg.MCS.setHost() {
		list, watch := optional(client.objects.Resource(group.WithResource("serviceimports")))
		follow(f, &kind[*unstructured.Unstructured, importRecord, *importRecord]{
			name: importsKind, optional: true, list: list, watch: watch, trim: trimUntyped, read: readImport, set: m.setImport,
		}, expected("ServiceImport"))
	}
}

func (c MCSConfig) setHost() bool { return c.Discovery && c.Host }

func (c MCSConfig) clusterLocal() bool { return c.setHost() && c.ClusterLocal }

// optional returns the list and watch functions of a kind whose definition may be missing, and may
// come and go. Without it there are no objects.
func optional(objects listerWatcher) (list func(context.Context, metav1.ListOptions) (runtime.Object, error), watches func(context.Context, metav1.ListOptions) (watch.Interface, error)) {
	list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		found, err := objects.List(ctx, o)
		if apierrors.IsNotFound(err) {
			return &unstructured.UnstructuredList{}, nil
		}
		if err != nil {
			return nil, err
		}
		return found, nil
	}
	watches = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := objects.Watch(ctx, o)
		switch {
		case !apierrors.IsNotFound(err) || o.SendInitialEvents != nil: // the reflector lists instead
			return w, err
		case o.ResourceVersion != "" && o.ResourceVersion != "0":
			return nil, apierrors.NewResourceExpired("the definition was deleted") // the reflector lists again
		}
		idle := watch.NewFake()
		time.AfterFunc(definitionPoll, idle.Stop) // then the reflector tries to watch again
		return idle, nil
	}
	return list, watches
}

// setExport sets a ServiceExport; nil removes it. It reports whether endpoints changed.
func (m *member) setExport(name types.NamespacedName, r *exportRecord) bool {
	if r == nil {
		delete(m.exports, name)
	} else {
		m.exports[name] = r
	}
	for slice := range m.shards[name] {
		m.derive(slice)
	}
	if m.services[name] == nil {
		return false
	}
	m.endpoints(name) // also those of the cluster set, which are not in shards
	return m.selected(name.Namespace)
}

// setImport sets a ServiceImport; nil removes it. It reports whether the change is relevant.
func (m *member) setImport(name types.NamespacedName, r *importRecord) bool {
	if r == nil {
		delete(m.imports, name)
	} else {
		m.imports[name] = r
	}
	m.service(name)
	return m.selected(name.Namespace)
}

// unexported reports whether other clusters do not discover the endpoints of a service in this one.
func (m *member) unexported(name types.NamespacedName) bool {
	return m.mcs.Discovery && m.exports[name] == nil
}

// setName returns the name of the service of the cluster set that belongs to a Service.
func setName(n types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: n.Namespace, Name: n.Name + model.ClusterSetSuffix}
}

// imported reports whether a cluster has an address for a service of the cluster set. The caller holds
// the mutex.
func (r *Registry) imported(n types.NamespacedName) bool {
	return slices.ContainsFunc(r.order(), func(m *member) bool {
		return m.selected(n.Namespace) && m.imports[n] != nil && len(m.imports[n].addresses) > 0
	})
}

// mergeSet returns the service of the cluster set with the name of a Service, or nil if it does not
// exist. It is the Service with another host and the addresses of its ServiceImports. The caller holds
// the mutex.
func (r *Registry) mergeSet(n types.NamespacedName) *registry.PlatformService {
	name := setName(n)
	if known := r.merged[name]; known != nil {
		return known
	}
	of := r.merge(n)
	if of == nil || !r.imported(n) {
		return nil
	}
	service := *of.Service
	service.Hostname = strings.ToLower(n.Name + "." + n.Namespace + ".svc" + model.ClusterSetSuffix + ".local")
	service.Addresses, service.ClusterAddresses = nil, map[string][]string{}
	out := &registry.PlatformService{Name: name.Name, Service: &service, Targets: of.Targets, Selector: of.Selector}
	exported := map[string]bool{}
	for _, m := range r.order() {
		exported[m.id] = !m.unexported(n)
		if record := m.imports[n]; record != nil && len(record.addresses) > 0 && m.selected(n.Namespace) {
			service.ClusterAddresses[m.id] = record.addresses
			if len(service.Addresses) == 0 {
				service.Addresses = record.addresses
			}
		}
	}
	for _, ep := range of.Endpoints {
		if ep.Unexported && exported[ep.Cluster] {
			all := *ep
			all.Unexported = false // it is only for the other host
			ep = &all
		}
		out.Endpoints = append(out.Endpoints, ep)
	}
	r.merged[name] = out
	return out
}
