// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// builtInGroup is the API group of kinds that need no definition.
const builtInGroup = "networking.k8s.io"

// definitions is the resource of the definitions of custom resources.
var definitions = kubeschema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

type (
	runtimeObject  = runtime.Object
	watchInterface = watch.Interface
)

// listerWatcher is the read-only part of a dynamic client.
type listerWatcher interface {
	List(ctx context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// expired reports whether the reflector recovers from an error by listing again.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

func compareKeys(a, b model.Key) int {
	return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// followDefinitions follows the CustomResourceDefinitions until ctx is done.
func (s *ConfigStore) followDefinitions(ctx context.Context, running *sync.WaitGroup) {
	sink := &definitionSink{store: s, versions: map[string]string{}, follow: func(k schema.Schema, version string) {
		s.follow(ctx, running, k, version)
	}}
	said := "" // only accessed by one reflector, one call at a time
	lw := observed(s.cfg.Client.objects.Resource(definitions), func(err error) {
		if err == nil {
			said = ""
			return
		}
		if said != err.Error() {
			said = err.Error()
			s.log.Warn("the definitions of custom resources cannot be read", "source", s.cfg.Name, "err", err)
		}
		s.WatchError(fmt.Errorf("%s: customresourcedefinitions.apiextensions.k8s.io: %w", s.cfg.Name, err))
	})
	expected := &unstructured.Unstructured{}
	expected.SetAPIVersion("apiextensions.k8s.io/v1")
	expected.SetKind("CustomResourceDefinition")
	cache.NewReflectorWithOptions(lw, expected, sink, cache.ReflectorOptions{Name: definitions.Resource}).RunWithContext(ctx)
}

// definitionSink receives the definitions. Only one reflector calls it.
type definitionSink struct {
	store  *ConfigStore
	follow func(schema.Schema, string)
	// versions are the followed versions, by the name of the definition.
	versions map[string]string
}

func (d *definitionSink) Add(o any) error    { return d.set(o) }
func (d *definitionSink) Update(o any) error { return d.set(o) }
func (d *definitionSink) Resync() error      { return nil }

// set follows the kind of a definition in the preferred version that is served.
func (d *definitionSink) set(o any) error {
	crd, ok := o.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("a definition came as %T", o)
	}
	sch, ok := schemaNamed(crd.GetName())
	if !ok || !d.store.Serves(sch.Kind) {
		return nil
	}
	version := servedVersion(crd, sch)
	before := d.versions[crd.GetName()]
	switch {
	case version == before:
	case version == "":
		d.drop(crd.GetName(), "its definition serves none of the versions "+strings.Join(sch.Versions, ", "))
	default:
		if before != "" {
			d.store.mu.Lock()
			d.store.kinds[sch.Kind].stop()
			d.store.mu.Unlock()
		}
		d.versions[crd.GetName()] = version
		d.follow(sch, version)
	}
	return nil
}

// servedVersion returns the first version of the kind that the API server currently serves, or ""
// if there is none.
func servedVersion(crd *unstructured.Unstructured, k schema.Schema) string {
	if crd.GetDeletionTimestamp() != nil || !established(crd) {
		return ""
	}
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		return ""
	}
	served := map[string]bool{}
	for _, v := range versions {
		if m, ok := v.(map[string]any); ok {
			name, _, _ := unstructured.NestedString(m, "name") // a name that is not a string matches no version
			served[name], _, _ = unstructured.NestedBool(m, "served")
		}
	}
	for _, version := range slices.Concat(k.Versions, k.Aliases) {
		if served[version] {
			return version
		}
	}
	return ""
}

// established reports whether the API server already serves the resource.
func established(crd *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
	return err == nil && slices.ContainsFunc(conditions, func(c any) bool {
		m, ok := c.(map[string]any)
		return ok && m["type"] == "Established" && m["status"] == "True"
	})
}

func (d *definitionSink) Delete(o any) error {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	if crd, ok := o.(*unstructured.Unstructured); ok {
		d.drop(crd.GetName(), "its definition was deleted")
	}
	return nil
}

func (d *definitionSink) drop(name, why string) {
	if d.versions[name] == "" {
		return
	}
	delete(d.versions, name)
	if sch, ok := schemaNamed(name); ok {
		d.store.log.Info("a kind is no longer served", "kind", sch.Kind, "source", d.store.cfg.Name, "reason", why)
		d.store.unfollow(sch.Kind)
	}
}

// Replace processes a complete list of definitions.
func (d *definitionSink) Replace(list []any, _ string) error {
	there := map[string]bool{}
	var errs []error
	for _, o := range list {
		if crd, ok := o.(*unstructured.Unstructured); ok {
			there[crd.GetName()] = true
		}
		errs = append(errs, d.set(o))
	}
	for name := range d.versions {
		if !there[name] {
			d.drop(name, "its definition was deleted")
		}
	}
	d.store.mu.Lock()
	d.store.listed = true
	d.store.settle()
	d.store.mu.Unlock()
	return errors.Join(errs...)
}

// schemaNamed returns the kind for the name of a definition, plural.group.
func schemaNamed(name string) (schema.Schema, bool) {
	for _, s := range schema.All() {
		if s.Plural+"."+s.Group == name {
			return s, true
		}
	}
	return schema.Schema{}, false
}

// kindSink receives the objects of one kind, in one namespace or in all. Only one reflector calls
// it.
type kindSink struct {
	store     *ConfigStore
	schema    schema.Schema
	version   string
	namespace string
	followed  *followed
}

func (k *kindSink) Add(o any) error    { return k.set(o) }
func (k *kindSink) Update(o any) error { return k.set(o) }
func (k *kindSink) Resync() error      { return nil }

func (k *kindSink) set(o any) error {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("a %s came as %T", k.schema.Name, o)
	}
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	if k.stale() {
		return nil
	}
	key := keyOf(k.schema, u)
	k.store.Apply(map[model.Key]*model.Config{key: k.store.read(k.schema, u)})
	return nil
}

func (k *kindSink) Delete(o any) error {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("a %s came as %T", k.schema.Name, o)
	}
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	if k.stale() {
		return nil
	}
	key := keyOf(k.schema, u)
	delete(k.store.problems, key)
	delete(k.store.tagged, key)
	k.store.Apply(map[model.Key]*model.Config{key: nil})
	return nil
}

// Replace processes a complete list of objects.
func (k *kindSink) Replace(list []any, _ string) error {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	if k.stale() {
		return nil
	}
	next := map[model.Key]*model.Config{}
	for _, c := range k.store.List(k.schema.Kind, k.namespace) {
		next[c.Key] = nil
	}
	there := map[model.Key]bool{}
	for _, o := range list {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("a %s came as %T", k.schema.Name, o)
		}
		key := keyOf(k.schema, u)
		there[key] = true
		next[key] = k.store.read(k.schema, u)
	}
	for key := range k.store.problems {
		if key.Kind == k.schema.Kind && (k.namespace == "" || key.Namespace == k.namespace) && !there[key] {
			delete(k.store.problems, key)
		}
	}
	maps.DeleteFunc(k.store.tagged, func(key model.Key, _ tagged) bool {
		return key.Kind == k.schema.Kind && (k.namespace == "" || key.Namespace == k.namespace) && !there[key]
	})
	k.store.Apply(next)
	delete(k.followed.missing, k.namespace)
	k.store.settle()
	return nil
}

// stale reports whether another reflector has replaced this one. The caller holds the mutex of the
// store.
func (k *kindSink) stale() bool { return k.store.kinds[k.schema.Kind] != k.followed }
