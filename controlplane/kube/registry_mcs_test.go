// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// clusterSet returns the registry of the clusters "own" and "far", which have the Service catalog with
// an endpoint each. It passes the names of changed objects to changed.
func clusterSet(t *testing.T, mcs MCSConfig, changed func(string)) (r *Registry, own, far *member) {
	t.Helper()
	r, _ = inCluster(t, func(c model.Change) {
		for key := range c.Keys {
			changed(string(key.Kind) + " " + key.Name)
		}
	})
	r.cfg.MCS, r.cfg.Cluster = mcs, "own"
	name := types.NamespacedName{Namespace: "shop", Name: "catalog"}
	for i, id := range []string{"own", "far"} {
		m := r.join(id).member
		r.members[id], m.ready = m, true
		r.alter(func() {
			m.setService(name, readService("test", parse[corev1.Service](t, fmt.Sprintf(`{metadata: {name: catalog, namespace: shop}, spec: {clusterIP: 10.96.%d.1, ports: [{name: http, port: 80}]}}`, i))))
			m.setSlice(types.NamespacedName{Namespace: "shop", Name: "catalog-x"}, readSlice(parse[discoveryv1.EndpointSlice](t, fmt.Sprintf(
				`{metadata: {labels: {kubernetes.io/service-name: catalog}}, addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.%d.0.1]}]}`, i))))
		})
	}
	return r, r.members["own"], r.members["far"]
}

func showPlatform(r *Registry) string {
	services := r.Services()
	slices.SortFunc(services, func(a, b *registry.PlatformService) int { return strings.Compare(a.Name, b.Name) })
	var lines []string
	for _, s := range services {
		line := fmt.Sprintf("%s %s %v %v:", s.Name, s.Service.Hostname, s.Service.Addresses, s.Service.ClusterAddresses)
		for _, ep := range s.Endpoints {
			line += " " + ep.Address
			if ep.Unexported {
				line += " in " + ep.Cluster
			}
		}
		lines = append(lines, line)
		if again := r.Service(s.Service.Namespace, s.Name); again != s {
			lines = append(lines, "the service "+s.Name+" is not found by its name")
		}
	}
	return strings.Join(lines, "\n")
}

// TestClusterSet checks the services of a cluster set, and which of their endpoints other clusters
// discover, with each setting of the control plane.
func TestClusterSet(t *testing.T) {
	t.Parallel()
	const local, set = "catalog catalog.shop.svc.test [10.96.0.1] map[far:[10.96.1.1] own:[10.96.0.1]]:", "catalog.clusterset catalog.shop.svc.clusterset.local [10.100.0.1 fd00::1] map[own:[10.100.0.1 fd00::1]]:"
	for name, tc := range map[string]struct {
		mcs  MCSConfig
		want string
	}{
		"off":           {MCSConfig{Host: true, ClusterLocal: true}, local + " 10.0.0.1 10.1.0.1"},
		"discovery":     {MCSConfig{Discovery: true, ClusterLocal: true}, local + " 10.0.0.1 in own 10.1.0.1"},
		"host":          {MCSConfig{Discovery: true, Host: true}, local + " 10.0.0.1 in own 10.1.0.1\n" + set + " 10.0.0.1 in own 10.1.0.1"},
		"cluster local": {MCSConfig{Discovery: true, Host: true, ClusterLocal: true}, local + " 10.0.0.1 in own 10.1.0.1 in far\n" + set + " 10.0.0.1 in own 10.1.0.1"},
	} {
		r, own, far := clusterSet(t, tc.mcs, func(string) {})
		name0 := types.NamespacedName{Namespace: "shop", Name: "catalog"}
		imported := readImport(parse[unstructured.Unstructured](t, `{apiVersion: v1, kind: I, spec: {ips: ["fd00:0::1", 10.100.0.1, none, 10.100.0.1, 7]}}`))
		r.alter(func() { far.setExport(name0, &exportRecord{}); own.setImport(name0, imported) })
		if got := showPlatform(r); got != tc.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, tc.want)
		}
	}
}

// TestClusterSetChanges checks that changes of exports and imports are reported, and take effect.
func TestClusterSetChanges(t *testing.T) {
	t.Parallel()
	var told []string
	r, own, far := clusterSet(t, MCSConfig{Discovery: true, Host: true}, func(change string) { told = append(told, change) })
	n := types.NamespacedName{Namespace: "shop", Name: "catalog"}
	const local = "catalog catalog.shop.svc.test [10.96.0.1] map[far:[10.96.1.1] own:[10.96.0.1]]: "
	const both = "Endpoints catalog,Endpoints catalog.clusterset"
	for _, step := range []struct {
		what    string
		change  func()
		reports string
		want    string
	}{
		{"export", func() { far.setExport(n, &exportRecord{}) }, both, local + "10.0.0.1 in own 10.1.0.1"},
		{"import without addresses", func() { own.setImport(n, &importRecord{}) }, "Service catalog", local + "10.0.0.1 in own 10.1.0.1"},
		{"import", func() { own.setImport(n, &importRecord{[]string{"10.100.0.1"}}) }, "Service catalog", local + "10.0.0.1 in own 10.1.0.1\ncatalog.clusterset catalog.shop.svc.clusterset.local [10.100.0.1] map[own:[10.100.0.1]]: 10.0.0.1 in own 10.1.0.1"},
		{"import in the other cluster", func() { far.setImport(n, &importRecord{[]string{"10.101.0.1"}}) }, "Service catalog", local + "10.0.0.1 in own 10.1.0.1\ncatalog.clusterset catalog.shop.svc.clusterset.local [10.100.0.1] map[far:[10.101.0.1] own:[10.100.0.1]]: 10.0.0.1 in own 10.1.0.1"},
		{"no export", func() { far.setExport(n, nil) }, both, local + "10.0.0.1 in own 10.1.0.1 in far\ncatalog.clusterset catalog.shop.svc.clusterset.local [10.100.0.1] map[far:[10.101.0.1] own:[10.100.0.1]]: 10.0.0.1 in own 10.1.0.1 in far"},
		{"no import", func() { own.setImport(n, nil); far.setImport(n, nil) }, "Service catalog", local + "10.0.0.1 in own 10.1.0.1 in far"},
		{"export of nothing", func() { far.setExport(types.NamespacedName{Namespace: "shop", Name: "other"}, &exportRecord{}) }, "", local + "10.0.0.1 in own 10.1.0.1 in far"},
	} {
		told = nil
		r.alter(step.change)
		slices.Sort(told)
		if got := strings.Join(told, ","); got != step.reports {
			t.Errorf("%s: reported %q, want %q", step.what, got, step.reports)
		}
		if got := showPlatform(r); got != step.want {
			t.Errorf("%s: got\n%s\nwant\n%s", step.what, got, step.want)
		}
	}
}

// undefined is an API server that may not have a kind.
type undefined struct{ err error }

func (u *undefined) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return &unstructured.UnstructuredList{Items: make([]unstructured.Unstructured, 1)}, u.err
}

func (u *undefined) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	if u.err != nil {
		return nil, u.err
	}
	return watch.NewEmptyWatch(), nil
}

// TestOptionalKind checks that a kind without a definition has no objects, that its definition is looked
// for, and that other errors are returned.
func TestOptionalKind(t *testing.T) {
	t.Parallel()
	missing := apierrors.NewNotFound(kubeschema.GroupResource{Resource: "serviceimports"}, "")
	synctest.Test(t, func(t *testing.T) {
		list, watches := optional(&undefined{missing})
		if found, err := list(t.Context(), metav1.ListOptions{}); err != nil || len(found.(*unstructured.UnstructuredList).Items) != 0 {
			t.Errorf("list: %v, %v", found, err)
		}
		for _, version := range []string{"", "0"} {
			w, err := watches(t.Context(), metav1.ListOptions{ResourceVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			if event, open := <-w.ResultChan(); open { // after a while
				t.Errorf("event %v", event)
			}
		}
		if _, err := watches(t.Context(), metav1.ListOptions{ResourceVersion: "7"}); !expired(err) {
			t.Errorf("after a list: got error %v, want one that leads to another list", err)
		}
		if _, err := watches(t.Context(), metav1.ListOptions{SendInitialEvents: new(bool)}); !apierrors.IsNotFound(err) {
			t.Errorf("instead of a list: got error %v, want that of the API server", err)
		}
	})
	for _, err := range []error{nil, errors.New("refused")} {
		list, watches := optional(&undefined{err})
		if found, got := list(t.Context(), metav1.ListOptions{}); !errors.Is(got, err) || err == nil && len(found.(*unstructured.UnstructuredList).Items) != 1 {
			t.Errorf("list: %v, %v", found, got)
		}
		if _, got := watches(t.Context(), metav1.ListOptions{ResourceVersion: "7"}); !errors.Is(got, err) {
			t.Errorf("watch: %v", got)
		}
	}
}
