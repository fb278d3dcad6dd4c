// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// following is a cluster that reflectors follow.
type following struct {
	registry *Registry
	member   *member
	synced   chan struct{} // closed once every kind was listed
	secrets  bool          // its Secrets name other clusters
	// reflectors follow one kind each.
	reflectors []*cache.Reflector

	// The mutex of the registry guards the fields below.
	missing map[string]bool   // kinds that were not listed yet
	faults  map[string]string // why a kind cannot be read at the moment
}

// record is the retained part of an object.
type record[R any] interface {
	*R
	equal(R2 *R) bool
}

// kind defines how the objects of one kind are followed.
type kind[O runtime.Object, R any, P record[R]] struct {
	name string
	// optional is true if the definition of the kind may be missing.
	optional bool

	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	trim  func(O)
	// read returns the retained part of an object; nil means that the object is ignored.
	read func(O) *R
	// set applies a change to the member; it reports whether the change is relevant.
	set func(types.NamespacedName, *R) bool

	following *following
	held      map[types.NamespacedName]*R
}

// follow follows a cluster until ctx is done.
func (r *Registry) follow(ctx context.Context, f *following, client *Client) {
	m, api := f.member, client.api
	services := api.services(metav1.NamespaceAll)
	follow(f, &kind[*corev1.Service, serviceRecord, *serviceRecord]{
		name: serviceKind, list: anyList(services.List), watch: services.Watch, trim: trimService,
		read: func(o *corev1.Service) *serviceRecord { return readService(r.cfg.Domain, o) },
		set:  m.setService,
	}, &corev1.Service{})
	endpointSlices := api.slices(metav1.NamespaceAll)
	follow(f, &kind[*discoveryv1.EndpointSlice, sliceRecord, *sliceRecord]{
		name: slicesKind, list: anyList(endpointSlices.List), watch: endpointSlices.Watch, trim: trimSlice,
		read: readSlice, set: m.setSlice,
	}, &discoveryv1.EndpointSlice{})
	pods := api.pods(metav1.NamespaceAll)
	follow(f, &kind[*corev1.Pod, podRecord, *podRecord]{
		name: podsKind, list: anyList(pods.List), watch: pods.Watch, trim: trimPod,
		read: readPod, set: m.setPod,
	}, &corev1.Pod{})
	nodes := api.nodes
	follow(f, &kind[*corev1.Node, nodeRecord, *nodeRecord]{
		name: nodesKind, list: anyList(nodes.List), watch: nodes.Watch, trim: trimNode,
		read: readNode, set: func(n types.NamespacedName, o *nodeRecord) bool { return m.setNode(n.Name, o) },
	}, &corev1.Node{})
	namespaces := api.namespaces
	follow(f, &kind[*corev1.Namespace, namespaceRecord, *namespaceRecord]{
		name: namespacesKind, list: anyList(namespaces.List), watch: namespaces.Watch, trim: trimNamespace,
		read: readNamespace, set: func(n types.NamespacedName, o *namespaceRecord) bool {
			return m.setNamespace(n.Name, o, r.cfg.Namespace)
		},
	}, &corev1.Namespace{})
	if f.secrets {
		r.followSecrets(f, client)
	}
	r.followMCS(f, client)
	var running sync.WaitGroup
	for _, reflector := range f.reflectors {
		running.Go(func() { reflector.RunWithContext(ctx) })
	}
	running.Wait()
}

// anyList converts a typed list function to an untyped one.
func anyList[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) }
}

// follow creates the reflector of a kind.
func follow[O runtime.Object, R any, P record[R]](f *following, k *kind[O, R, P], expected O) {
	k.following, k.held = f, map[types.NamespacedName]*R{}
	f.missing[k.name] = true
	report := func(ctx context.Context, err error) {
		if ctx.Err() == nil && !expired(err) && !(k.optional && apierrors.IsNotFound(err)) {
			f.fault(k.name, err)
		}
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := k.list(ctx, o)
			report(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := k.watch(ctx, o)
			report(ctx, err)
			return w, err
		},
	}
	f.reflectors = append(f.reflectors, cache.NewReflectorWithOptions(lw, expected, k, cache.ReflectorOptions{Name: f.member.id + "/" + k.name}))
}

// fault records the last error of a reflector; nil means that it works.
func (f *following) fault(kind string, err error) {
	reason := ""
	if err != nil {
		// Lists and watches fail in turn with different messages.
		reason = cmp.Or(string(apierrors.ReasonForError(err)), "unreachable")
	}
	f.registry.mu.Lock()
	before := f.faults[kind]
	f.faults[kind] = reason
	f.registry.mu.Unlock()
	switch {
	case reason == before:
	case reason == "":
		f.registry.log.Info("objects of the cluster can be read again", "kind", kind, "source", f.member.id)
	default:
		f.registry.log.Warn("objects of the cluster cannot be read; known objects stay in force", "kind", kind, "source", f.member.id, "err", err)
	}
}

// seen records that all objects of a kind were listed. The caller holds the mutex.
func (f *following) seen(kind string) {
	if !f.missing[kind] {
		return
	}
	if delete(f.missing, kind); len(f.missing) == 0 {
		f.registry.members[f.member.id] = f.member
		f.member.selects = f.registry.selects
		f.member.start()
		clear(f.registry.pending) // the goroutine that waits for synced reports everything as new
		clear(f.registry.merged)
		close(f.synced)
	}
}

// Transformer implements cache.TransformingStore: the reflector trims each object that it receives.
func (k *kind[O, R, P]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if object, ok := o.(O); ok {
			k.trim(object)
		}
		return o, nil
	}
}

func (k *kind[O, R, P]) Add(o any) error    { return k.take(o, "add") }
func (k *kind[O, R, P]) Update(o any) error { return k.take(o, "update") }
func (k *kind[O, R, P]) Resync() error      { return nil }

func (k *kind[O, R, P]) take(o any, event string) error {
	object, ok := o.(O)
	if !ok {
		return fmt.Errorf("%s: an object came as %T", k.name, o)
	}
	name, err := nameOfObject(o)
	if err != nil {
		return err
	}
	k.following.registry.alter(func() { k.put(name, k.read(object), event) })
	return nil
}

// put sets the latest record of an object; nil removes it. The caller holds the mutex.
func (k *kind[O, R, P]) put(name types.NamespacedName, next *R, event string) {
	m, before := k.following.registry.metrics, k.held[name]
	same := before == nil && next == nil || before != nil && next != nil && P(before).equal(next)
	if same && event == "update" {
		event = "updatesame"
	}
	m.events.WithLabelValues(k.name, event).Inc()
	if !same {
		if next == nil {
			delete(k.held, name)
		} else {
			k.held[name] = next
		}
		if k.set(name, next) {
			return
		}
	}
	m.skipped.WithLabelValues(k.name).Inc()
}

func (k *kind[O, R, P]) Delete(o any) error {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	name, err := nameOfObject(o)
	if err != nil {
		return err
	}
	k.following.registry.alter(func() { k.put(name, nil, "delete") })
	return nil
}

// Replace processes a complete list of objects.
func (k *kind[O, R, P]) Replace(list []any, _ string) error {
	next := make(map[types.NamespacedName]*R, len(list))
	var errs []error
	for _, o := range list {
		object, ok := o.(O)
		name, err := nameOfObject(o)
		if !ok || err != nil {
			errs = append(errs, fmt.Errorf("%s: an object came as %T", k.name, o))
			continue
		}
		next[name] = k.read(object)
	}
	k.following.registry.alter(func() {
		for name := range k.held {
			if next[name] == nil {
				k.put(name, nil, "delete")
			}
		}
		for name, record := range next {
			event := "update"
			if k.held[name] == nil {
				event = "add"
			}
			k.put(name, record, event)
		}
		k.following.seen(k.name)
	})
	return errors.Join(errs...)
}

func nameOfObject(o any) (types.NamespacedName, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return types.NamespacedName{}, err
	}
	return types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}, nil
}
