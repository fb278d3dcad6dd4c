// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// NamespacesConfig is the configuration of Namespaces.
type NamespacesConfig struct {
	Client *Client
	// OnChange is called for each namespace whose labels changed. It must not block.
	OnChange func(name string)
	Logger   *slog.Logger // nil means slog.Default()
}

// Namespaces follows the labels of the namespaces of a cluster. It requires permission to list and
// watch namespaces.
type Namespaces struct {
	cfg    NamespacesConfig
	synced chan struct{}

	mu     sync.RWMutex // guards labels
	labels map[string]map[string]string
}

// NewNamespaces returns Namespaces that are empty until Run is called.
func NewNamespaces(cfg NamespacesConfig) (*Namespaces, error) {
	if cfg.Client == nil || cfg.OnChange == nil {
		return nil, errors.New("labels of namespaces: they need a cluster, and who hears of changes")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Namespaces{cfg: cfg, synced: make(chan struct{}), labels: map[string]map[string]string{}}, nil
}

// Synced returns a channel that is closed once all namespaces were read.
func (n *Namespaces) Synced() <-chan struct{} { return n.synced }

// Labels returns the labels of a namespace, or nil if it does not exist. The caller must not modify
// them.
func (n *Namespaces) Labels(name string) map[string]string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.labels[name]
}

// Run follows the namespaces until ctx is done.
func (n *Namespaces) Run(ctx context.Context) error {
	all := informers.NewSharedInformerFactoryWithOptions(n.cfg.Client.api, 0, informers.WithTransform(stripNamespace))
	defer all.Shutdown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer := all.Core().V1().Namespaces().Informer()
	if err := informer.SetWatchErrorHandlerWithContext(watchFault(n.cfg.Logger, "Namespace")); err != nil {
		return fmt.Errorf("watch namespaces: %w", err)
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    n.set,
		UpdateFunc: func(_, o any) { n.set(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if ns, ok := o.(*corev1.Namespace); ok {
				n.put(ns.Name, nil)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch namespaces: %w", err)
	}
	all.StartWithContext(ctx)
	if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		close(n.synced)
	}
	<-ctx.Done()
	return nil
}

func (n *Namespaces) set(o any) {
	if ns, ok := o.(*corev1.Namespace); ok {
		labels := ns.Labels
		if labels == nil {
			labels = map[string]string{}
		}
		n.put(ns.Name, labels)
	}
}

func (n *Namespaces) put(name string, labels map[string]string) {
	n.mu.Lock()
	before, there := n.labels[name]
	if labels == nil {
		delete(n.labels, name)
	} else {
		n.labels[name] = labels
	}
	n.mu.Unlock()
	if there != (labels != nil) || !maps.Equal(before, labels) {
		n.cfg.OnChange(name)
	}
}
