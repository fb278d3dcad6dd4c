// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	rootsMap    = "istio-ca-root-cert"
	rootsKey    = "root-cert.pem"
	configLabel = "istio.io/config"
	rootsLease  = "istio-namespace-controller-election"
	rootWriters = 4
)

// withoutRoots returns the namespaces that need no roots because no workloads of a mesh run there.
func withoutRoots() []string {
	return []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, "local-path-storage"}
}

// RootsConfig is the configuration of Roots.
type RootsConfig struct {
	Client *Client
	// Bundle returns the roots as PEM. Changed returns a channel that is closed when they change;
	// it is called before Bundle.
	Bundle  func() []byte
	Changed func() <-chan struct{}
	// Lease elects the replica that writes. An empty Name means Istio's. An empty Identity means
	// that there is no election and this replica writes.
	Lease  Lease
	Ignore []string     // namespaces without roots, in addition to those of Kubernetes
	Logger *slog.Logger // nil means slog.Default()
}

// Roots maintains the ConfigMap istio-ca-root-cert in each namespace, from which agents read the
// roots of the mesh. It reverts changes by others. It requires permission to list and watch
// namespaces, to list, watch, create, patch and delete ConfigMaps in all of them, and the
// permissions of Client.Lead.
type Roots struct {
	cfg    RootsConfig
	log    *slog.Logger
	ignore []string
}

// NewRoots returns a Roots. It returns an error if the configuration is invalid.
func NewRoots(cfg RootsConfig) (*Roots, error) {
	if cfg.Client == nil || cfg.Bundle == nil || cfg.Changed == nil {
		return nil, errors.New("distribution of roots: it needs a cluster, the roots and notifications of their changes")
	}
	if cfg.Lease.Name == "" {
		cfg.Lease.Name = rootsLease
	}
	r := &Roots{cfg: cfg, log: cfg.Logger, ignore: append(withoutRoots(), cfg.Ignore...)}
	if r.log == nil {
		r.log = slog.Default()
	}
	return r, nil
}

// Run writes the roots while this replica is the leader, until ctx is done.
func (r *Roots) Run(ctx context.Context) error {
	if r.cfg.Lease.Identity == "" {
		return r.distribute(ctx)
	}
	return r.cfg.Client.Lead(ctx, r.cfg.Lease, r.distribute)
}

// rootWork is the state of one term as leader.
type rootWork struct {
	*Roots

	namespaces informer[*corev1.Namespace]
	maps       informer[*corev1.ConfigMap]
	// queue contains names of namespaces without duplicates; their number bounds it.
	queue workqueue.TypedRateLimitingInterface[string]
}

// distribute follows namespaces, ConfigMaps and the roots until ctx is done.
func (r *Roots) distribute(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &rootWork{Roots: r, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	defer w.queue.ShutDown()
	synced, err := w.watch(ctx, &running)
	if err != nil || !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for range rootWriters {
		g.Go(func() error { w.write(ctx); return nil })
	}
	g.Go(func() error { w.follow(ctx); return nil })
	return g.Wait()
}

// watch starts the two informers, which feed the queue.
func (w *rootWork) watch(ctx context.Context, running *sync.WaitGroup) (synced []cache.InformerSynced, err error) {
	synced = make([]cache.InformerSynced, 2)
	api := w.cfg.Client.api
	named := func(n *corev1.Namespace) { w.queue.Add(n.Name) }
	w.namespaces, synced[0], err = selected[*corev1.Namespace, *corev1.NamespaceList]{
		source: api.namespaces, kind: "Namespace", example: &corev1.Namespace{}, strip: stripNamespace, set: named, gone: named,
	}.follow(ctx, running, w.log)
	if err != nil {
		return nil, err
	}
	within := func(m *corev1.ConfigMap) { w.queue.Add(m.Namespace) }
	w.maps, synced[1], err = selected[*corev1.ConfigMap, *corev1.ConfigMapList]{
		source: api.configMaps(metav1.NamespaceAll), kind: "ConfigMap", example: &corev1.ConfigMap{}, strip: stripConfigMap,
		fields: fields.OneTermEqualSelector(metav1.ObjectNameField, rootsMap).String(), set: within, gone: within,
	}.follow(ctx, running, w.log)
	return synced, err
}

// follow adds all namespaces to the queue when the roots change.
func (w *rootWork) follow(ctx context.Context) {
	defer w.queue.ShutDown()
	for {
		changed := w.cfg.Changed()
		for _, n := range w.namespaces.all() {
			w.queue.Add(n.Name)
		}
		// Cases: ctx is done; the roots changed.
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// write processes the namespaces in the queue.
func (w *rootWork) write(ctx context.Context) {
	for {
		name, end := w.queue.Get()
		if end {
			return
		}
		err := w.bring(ctx, name)
		w.queue.Done(name)
		if err == nil || ctx.Err() != nil {
			w.queue.Forget(name)
			continue
		}
		if n := w.queue.NumRequeues(name); n == 0 || n == 5 { // a race with another writer is not worth more lines
			w.log.Warn("the roots cannot be written to a namespace; retrying", "namespace", name, "attempt", n+1, "err", err)
		}
		w.queue.AddRateLimited(name)
	}
}

// bring creates or updates the ConfigMap of a namespace.
func (w *rootWork) bring(ctx context.Context, name string) error {
	namespace, ok := w.namespaces.get("", name)
	if !ok || namespace.Status.Phase == corev1.NamespaceTerminating || slices.Contains(w.ignore, name) {
		return nil // the namespace is gone, terminating or ignored
	}
	bundle := w.cfg.Bundle()
	if _, err := certs.ParseChain(bundle); err != nil {
		return fmt.Errorf("the roots are not distributed: %w", err) // never distribute an empty bundle or a key
	}
	now, ok := w.maps.get(name, rootsMap)
	if ok && now.Labels[configLabel] == "true" && bytes.Equal([]byte(now.Data[rootsKey]), bundle) {
		return nil
	}
	write := w.create
	if ok {
		write = w.patch
	}
	err := write(ctx, name, bundle)
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // deleted meanwhile; if it was only the ConfigMap, an event follows
	}
	w.cfg.Client.metrics.wroteRoots(err)
	if err == nil {
		w.log.Debug("wrote the roots to a namespace", "namespace", name)
	}
	return err
}

func (w *rootWork) create(ctx context.Context, namespace string, bundle []byte) error {
	_, err := w.cfg.Client.api.configMaps(namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: rootsMap, Namespace: namespace, Labels: map[string]string{configLabel: "true"}},
		Data:       map[string]string{rootsKey: string(bundle)},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return w.patch(ctx, namespace, bundle)
	}
	return err
}

// patch sets our fields and keeps those of others. An immutable ConfigMap cannot be changed and is
// replaced.
func (w *rootWork) patch(ctx context.Context, namespace string, bundle []byte) error {
	maps := w.cfg.Client.api.configMaps(namespace)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": map[string]string{configLabel: "true"}},
		"data":     map[string]string{rootsKey: string(bundle)},
	})
	if err != nil {
		return err
	}
	_, err = maps.Patch(ctx, rootsMap, types.MergePatchType, patch, metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		return err
	}
	if err := maps.Delete(ctx, rootsMap, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return w.create(ctx, namespace, bundle)
}
