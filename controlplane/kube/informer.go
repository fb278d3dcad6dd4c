// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
)

// selected are the objects of one kind that an informer follows.
type selected[T metaObject, L runtime.Object] struct {
	source         reader[T, L]
	kind           string // for errors and the log
	example        T
	fields, labels string              // selectors; empty means all objects
	strip          cache.TransformFunc // reduces an object to what is kept; nil keeps all of it
	set            func(T)             // called for each object that is new or changed
	gone           func(T)             // called with the last known state of a removed object
	fault          func(error)         // called for each failed watch; nil for nothing
	indexers       cache.Indexers
}

// informer is the cache of selected objects.
type informer[T any] struct{ cache.SharedIndexInformer }

// follow starts an informer, which runs in running until ctx is done.
func (s selected[T, L]) follow(ctx context.Context, running *sync.WaitGroup, log *slog.Logger) (informer[T], cache.InformerSynced, error) {
	choose := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector, o.LabelSelector = s.fields, s.labels
		return o
	}
	i := informer[T]{cache.NewSharedIndexInformerWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.source.List(ctx, choose(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.source.Watch(ctx, choose(o))
		},
	}, s.source), s.example, cache.SharedIndexInformerOptions{Indexers: s.indexers})}
	registration, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { call(s.set, o) },
		UpdateFunc: func(_, o any) { call(s.set, o) },
		DeleteFunc: func(o any) {
			if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = unknown.Obj
			}
			call(s.gone, o)
		},
	})
	err = errors.Join(err, i.SetTransform(s.strip), i.SetWatchErrorHandlerWithContext(s.watchFault(log)))
	if err != nil {
		return i, nil, fmt.Errorf("watch %s: %w", s.kind, err)
	}
	running.Go(func() { i.RunWithContext(ctx) })
	return i, registration.HasSynced, nil
}

func call[T any](f func(T), o any) {
	if object, ok := o.(T); ok {
		f(object)
	}
}

// get returns an object by its namespace, which may be empty, and name.
func (i informer[T]) get(namespace, name string) (object T, ok bool) {
	key := cache.ObjectName{Namespace: namespace, Name: name}.String()
	if o, there, err := i.GetStore().GetByKey(key); err == nil && there {
		object, ok = o.(T)
	}
	return object, ok
}

// all returns all objects, in no order.
func (i informer[T]) all() []T {
	var out []T
	for _, o := range i.GetStore().List() {
		call(func(object T) { out = append(out, object) }, o)
	}
	return out
}

// watchFault returns a handler that logs why objects cannot be watched. The library retries with
// increasing delays.
func (s selected[T, L]) watchFault(log *slog.Logger) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return // the end, or a new watch
		}
		log.Warn("objects cannot be watched; known objects stay in force", "kind", s.kind, "err", err)
		if s.fault != nil {
			s.fault(err)
		}
	}
}

// stripMeta returns only the metadata that is used.
func stripMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels}
}

func stripNamespace(o any) (any, error) {
	if n, ok := o.(*corev1.Namespace); ok {
		return &corev1.Namespace{ObjectMeta: stripMeta(n.ObjectMeta), Status: corev1.NamespaceStatus{Phase: n.Status.Phase}}, nil
	}
	return o, nil
}

func stripConfigMap(o any) (any, error) {
	if m, ok := o.(*corev1.ConfigMap); ok {
		return &corev1.ConfigMap{ObjectMeta: stripMeta(m.ObjectMeta), Data: m.Data}, nil
	}
	return o, nil
}

// stripSecret keeps only data that can be a credential, so that passwords of applications do not
// stay in memory.
func stripSecret(o any) (any, error) {
	s, ok := o.(*corev1.Secret)
	if !ok {
		return o, nil
	}
	out := &corev1.Secret{ObjectMeta: stripMeta(s.ObjectMeta)}
	out.Labels = nil
	if !credentials.Holds(s.Data) {
		return out, nil
	}
	out.Data = map[string][]byte{}
	for _, key := range credentials.DataKeys() {
		if value, ok := s.Data[key]; ok {
			out.Data[key] = value
		}
	}
	return out, nil
}
