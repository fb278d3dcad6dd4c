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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// maxAnnotation is the maximum size in bytes of an annotation that is kept.
const maxAnnotation = 1024

// NamespacesConfig is the configuration of Namespaces.
type NamespacesConfig struct {
	Client *Client
	// OnChange is called for each namespace whose labels or annotations changed. It must not block.
	OnChange func(name string)
	// Annotations are the names of annotations that are kept.
	Annotations []string
	Logger      *slog.Logger // nil means slog.Default()
}

// Namespaces follows the labels and some annotations of the namespaces of a cluster. It requires permission to list and
// watch namespaces.
type Namespaces struct {
	cfg    NamespacesConfig
	synced chan struct{}

	mu          sync.RWMutex // guards the fields below
	labels      map[string]map[string]string
	annotations map[string]map[string]string // of the namespaces that have some
}

// NewNamespaces returns Namespaces that are empty until Run is called.
func NewNamespaces(cfg NamespacesConfig) (*Namespaces, error) {
	if cfg.Client == nil || cfg.OnChange == nil {
		return nil, errors.New("labels of namespaces: they need a cluster and a receiver of changes")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Namespaces{cfg: cfg, synced: make(chan struct{}), labels: map[string]map[string]string{}, annotations: map[string]map[string]string{}}, nil
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

// Annotations returns the annotations of a namespace that are kept. The caller must not modify them.
func (n *Namespaces) Annotations(name string) map[string]string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.annotations[name]
}

// Run follows the namespaces until ctx is done.
func (n *Namespaces) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, synced, err := selected[*corev1.Namespace, *corev1.NamespaceList]{
		source: n.cfg.Client.api.namespaces, kind: "Namespace", example: &corev1.Namespace{}, strip: n.strip,
		set:  n.set,
		gone: func(ns *corev1.Namespace) { n.put(ns.Name, nil, nil) },
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

// strip is like stripNamespace and keeps annotations.
func (n *Namespaces) strip(o any) (any, error) {
	stripped, err := stripNamespace(o)
	if in, ok := o.(*corev1.Namespace); ok && err == nil {
		kept := stripped.(*corev1.Namespace)
		for _, name := range n.cfg.Annotations {
			if value, ok := in.Annotations[name]; ok && len(value) <= maxAnnotation {
				metav1.SetMetaDataAnnotation(&kept.ObjectMeta, name, value)
			}
		}
	}
	return stripped, err
}

func (n *Namespaces) set(ns *corev1.Namespace) {
	labels := ns.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	n.put(ns.Name, labels, ns.Annotations)
}

func (n *Namespaces) put(name string, labels, annotations map[string]string) {
	n.mu.Lock()
	before, there := n.labels[name]
	changed := there != (labels != nil) || !maps.Equal(before, labels) || !maps.Equal(n.annotations[name], annotations)
	if labels == nil {
		delete(n.labels, name)
	} else {
		n.labels[name] = labels
	}
	if len(annotations) == 0 {
		delete(n.annotations, name)
	} else {
		n.annotations[name] = annotations
	}
	n.mu.Unlock()
	if changed {
		n.cfg.OnChange(name)
	}
}
