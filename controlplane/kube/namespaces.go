// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
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
		return nil, errors.New("labels of namespaces: they need a cluster and a receiver of changes")
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
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, synced, err := selected[*corev1.Namespace, *corev1.NamespaceList]{
		source: n.cfg.Client.api.namespaces, kind: "Namespace", example: &corev1.Namespace{}, strip: stripNamespace,
		set:  n.set,
		gone: func(ns *corev1.Namespace) { n.put(ns.Name, nil) },
	}.follow(ctx, &running, n.cfg.Logger)
	if err != nil {
		return err
	}
	if cache.WaitForCacheSync(ctx.Done(), synced) {
		close(n.synced)
	}
	<-ctx.Done()
	return nil
}

func (n *Namespaces) set(ns *corev1.Namespace) {
	labels := ns.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	n.put(ns.Name, labels)
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
