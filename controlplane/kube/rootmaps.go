// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
)

// maxRootMaps is the maximum number of ConfigMaps with roots that are followed.
const maxRootMaps = 1000

// RootMaps is the credentials.Source of roots in the ConfigMaps of a cluster. It reads only those
// that Follow names, each by a watch of its own, and requires permission to list and watch them.
type RootMaps struct {
	credentials.RootMaps

	client *Client
	most   int // that are followed
	log    *slog.Logger
	wake   chan struct{} // has room for one

	mu     sync.Mutex // guards wanted
	wanted []types.NamespacedName
}

// NewRootMaps returns a RootMaps that follows nothing. A nil logger means slog.Default(), a nil
// Registerer disables metrics.
func NewRootMaps(client *Client, log *slog.Logger, reg prometheus.Registerer) (*RootMaps, error) {
	if client == nil {
		return nil, errors.New("roots: there is no cluster to read them from")
	}
	if log == nil {
		log = slog.Default()
	}
	maps, err := credentials.NewRootMaps(false, log, reg)
	if err != nil {
		return nil, err
	}
	maps.SetSynced() // Get says of each ConfigMap whether it has been read
	return &RootMaps{RootMaps: maps, client: client, most: maxRootMaps, log: log, wake: make(chan struct{}, 1)}, nil
}

// Follow replaces the ConfigMaps that are followed. It does not block.
func (r *RootMaps) Follow(names []types.NamespacedName) {
	r.mu.Lock()
	r.wanted = names
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run follows the ConfigMaps until ctx is done.
func (r *RootMaps) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := map[types.NamespacedName]context.CancelFunc{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		r.mu.Lock()
		wanted := r.wanted
		r.mu.Unlock()
		held := make(map[types.NamespacedName]bool, len(wanted))
		for _, n := range wanted {
			held[n] = true
		}
		for n, end := range followed {
			if !held[n] {
				end()
				delete(followed, n)
				r.Delete(n.Namespace, n.Name)
			}
		}
		for _, n := range wanted {
			if _, ok := followed[n]; ok {
				continue
			}
			if len(followed) == r.most {
				r.Refuse(n.Namespace, n.Name, fmt.Errorf("the ConfigMap %s is not read: objects name more than %d ConfigMaps", n, r.most))
				continue
			}
			one, end := context.WithCancel(ctx)
			followed[n] = end
			r.Delete(n.Namespace, n.Name) // what a watch that has ended stored last
			running.Go(func() { r.follow(one, n) })
		}
	}
}

// follow follows one ConfigMap until ctx is done.
func (r *RootMaps) follow(ctx context.Context, n types.NamespacedName) {
	var running sync.WaitGroup
	defer running.Wait()
	maps, synced, err := selected[*corev1.ConfigMap, *corev1.ConfigMapList]{
		source: r.client.api.configMaps(n.Namespace), kind: "ConfigMap", example: &corev1.ConfigMap{}, strip: stripConfigMap,
		fields: fields.OneTermEqualSelector(metav1.ObjectNameField, n.Name).String(),
		set:    func(m *corev1.ConfigMap) { r.take(ctx, n, m) },
		gone:   func(*corev1.ConfigMap) { r.take(ctx, n, nil) },
		fault:  func(err error) { r.fault(n, err) },
	}.follow(ctx, &running, r.log)
	if err != nil {
		r.Refuse(n.Namespace, n.Name, err)
		return
	}
	if cache.WaitForCacheSync(ctx.Done(), synced) && len(maps.GetStore().ListKeys()) == 0 {
		r.take(ctx, n, nil)
	}
	<-ctx.Done()
}

// take stores a ConfigMap, or that it does not exist.
func (r *RootMaps) take(ctx context.Context, n types.NamespacedName, m *corev1.ConfigMap) {
	switch {
	case ctx.Err() != nil: // no longer followed
	case m == nil:
		r.Gone(n.Namespace, n.Name)
	case m.Name == n.Name:
		r.Set(n.Namespace, n.Name, m.Data)
	}
}

// fault records that a ConfigMap must not be read. Its known roots stay in force.
func (r *RootMaps) fault(n types.NamespacedName, err error) {
	if _, unknown := r.Get(n.Namespace, n.Name); unknown != nil && apierrors.IsForbidden(err) {
		r.Refuse(n.Namespace, n.Name, fmt.Errorf("the ConfigMap %s cannot be read: grant the service account of the control plane the rights to list and watch it", n))
	}
}

var _ credentials.Source = (*RootMaps)(nil)
