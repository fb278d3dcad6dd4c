// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
)

func everything() labels.Selector { return labels.Everything() }

// watchFault returns a handler that logs why objects cannot be watched. The library retries with
// increasing delays.
func watchFault(log *slog.Logger, kind string) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return // the end, or a new watch
		}
		log.Warn("objects cannot be watched; what was read before stays in force", "kind", kind, "err", err)
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
