// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// ConfigStoreConfig describes a ConfigStore.
type ConfigStoreConfig struct {
	Client *Client
	// Name is the URL of the store, for messages; empty means "k8s://".
	Name string
	// Revision is that of the control plane: an object with another value of
	// the label istio.io/rev is left out. Empty means "default".
	Revision string
	// Namespaces is whose objects are read; empty means all.
	Namespaces []string
	// Kinds are those that are read and written; empty means all.
	Kinds  []model.Kind
	Logger *slog.Logger // nil means slog.Default()
}

// ConfigStore is the [config.Store] of a cluster: its custom resources of Istio
// and of the Gateway API, and its Ingresses. One reflector follows each kind; a
// kind whose definition appears, changes version or goes later is followed from
// then on.
//
// It needs the rights to list and watch CustomResourceDefinitions and the kinds,
// to get and update what is written, and, for the status, to update the
// subresource. A kind that may not be read keeps the store from syncing, so that
// a missing right never takes the configuration from the proxies.
type ConfigStore struct {
	*config.Cache
	cfg ConfigStoreConfig
	log *slog.Logger

	mu sync.Mutex // guards what follows
	// kinds are those that are followed or waited for.
	kinds map[model.Kind]*followed
	// problems are what is wrong with objects and kinds.
	problems map[model.Key]model.Problem
	// listed means that all definitions were seen once.
	listed bool
}

// followed is a kind that a reflector follows.
type followed struct {
	version string
	stop    context.CancelFunc
	// missing are the namespaces whose objects were not seen yet.
	missing map[string]bool
	// fault is why they cannot be read now; nil means that they can.
	fault error
}

var _ config.Store = (*ConfigStore)(nil)

// NewConfigStore returns the store of a cluster.
func NewConfigStore(cfg ConfigStoreConfig) (*ConfigStore, error) {
	if cfg.Client == nil {
		return nil, errors.New("config source k8s://: there is no cluster to read it from")
	}
	if cfg.Name == "" {
		cfg.Name = "k8s://"
	}
	if cfg.Revision == "" {
		cfg.Revision = "default"
	}
	if len(cfg.Namespaces) == 0 {
		cfg.Namespaces = []string{metav1.NamespaceAll}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	schemas := slices.Clone(schema.All())
	if len(cfg.Kinds) > 0 {
		schemas = slices.DeleteFunc(schemas, func(s schema.Schema) bool { return !slices.Contains(cfg.Kinds, s.Kind) })
	}
	return &ConfigStore{
		Cache: config.NewCache(schemas), cfg: cfg, log: cfg.Logger,
		kinds: map[model.Kind]*followed{}, problems: map[model.Key]model.Problem{},
	}, nil
}

// Name returns the URL of the store.
func (s *ConfigStore) Name() string { return s.cfg.Name }

// Problems lists the objects that are not valid, and the kinds that cannot be
// read.
func (s *ConfigStore) Problems() []model.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Collect(maps.Values(s.problems))
	for kind, f := range s.kinds {
		if f.fault != nil {
			list = append(list, model.Problem{
				Object: model.Key{Kind: kind}, Source: s.cfg.Name,
				Reason: fmt.Sprintf("objects of this kind cannot be read; what was read before stays in force: %v", f.fault),
			})
		}
	}
	slices.SortFunc(list, func(a, b model.Problem) int { return compareKeys(a.Object, b.Object) })
	return list
}

// Run follows the cluster until ctx is done.
func (s *ConfigStore) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	var reflectors sync.WaitGroup
	g.Go(func() error { return s.Deliver(ctx) }) // reads the cache, calls the handlers
	g.Go(func() error {                          // reads the definitions, starts and stops reflectors
		s.followBuiltIn(ctx, &reflectors)
		s.followDefinitions(ctx, &reflectors)
		reflectors.Wait()
		return nil
	})
	return g.Wait()
}

// followBuiltIn starts with the kinds that every API server has.
func (s *ConfigStore) followBuiltIn(ctx context.Context, running *sync.WaitGroup) {
	for _, k := range s.Schemas() {
		if k.Group == builtInGroup {
			s.follow(ctx, running, k, k.Versions[0])
		}
	}
}

// follow starts the reflectors of a kind.
func (s *ConfigStore) follow(ctx context.Context, running *sync.WaitGroup, k schema.Schema, version string) {
	ctx, cancel := context.WithCancel(ctx)
	namespaces := s.cfg.Namespaces
	if k.Cluster {
		namespaces = []string{metav1.NamespaceAll}
	}
	f := &followed{version: version, stop: cancel, missing: map[string]bool{}}
	for _, namespace := range namespaces {
		f.missing[namespace] = true
	}
	s.mu.Lock()
	s.kinds[k.Kind] = f
	s.mu.Unlock()
	resource := s.cfg.Client.objects.Resource(kubeschema.GroupVersionResource{Group: k.Group, Version: version, Resource: k.Plural})
	for _, namespace := range namespaces {
		sink := &kindSink{store: s, schema: k, version: version, namespace: namespace, followed: f}
		lw := observed(resource.Namespace(namespace), func(err error) { s.fault(k, f, err) })
		expected := &unstructured.Unstructured{}
		expected.SetAPIVersion(k.Group + "/" + version)
		expected.SetKind(k.Name)
		reflector := cache.NewReflectorWithOptions(lw, expected, sink, cache.ReflectorOptions{Name: k.Plural + "." + k.Group})
		running.Go(func() { reflector.RunWithContext(ctx) })
	}
}

// unfollow forgets a kind whose definition is gone.
func (s *ConfigStore) unfollow(kind model.Kind) {
	s.mu.Lock()
	if f := s.kinds[kind]; f != nil {
		f.stop()
		delete(s.kinds, kind)
	}
	for key := range s.problems {
		if key.Kind == kind {
			delete(s.problems, key)
		}
	}
	s.Replace(nil, kind)
	s.settle()
	s.mu.Unlock()
}

// fault takes what a reflector of the kind last failed with; nil means that it
// works.
func (s *ConfigStore) fault(k schema.Schema, f *followed, err error) {
	s.mu.Lock()
	if s.kinds[k.Kind] != f {
		s.mu.Unlock()
		return
	}
	before := f.fault
	f.fault = err
	s.mu.Unlock()
	switch {
	case err == nil && before != nil:
		s.log.Info("objects of the cluster can be read again", "kind", k.Kind, "source", s.cfg.Name)
	case err != nil && (before == nil || before.Error() != err.Error()):
		s.log.Warn("objects of the cluster cannot be read; what was read before stays in force", "kind", k.Kind, "source", s.cfg.Name, "err", err)
	}
	if err != nil {
		s.WatchError(fmt.Errorf("%s: %s.%s: %w", s.cfg.Name, k.Plural, k.Group, err))
	}
}

// settle tells the cache when everything was seen once. The caller holds mu.
func (s *ConfigStore) settle() {
	if !s.listed {
		return
	}
	for _, f := range s.kinds {
		if len(f.missing) > 0 {
			return
		}
	}
	s.Loaded()
}

// observed follows a resource and tells how each attempt ended.
func observed(resource listerWatcher, tell func(error)) cache.ListerWatcher {
	report := func(ctx context.Context, err error) {
		if ctx.Err() == nil && !expired(err) {
			tell(err)
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (list runtimeObject, err error) {
			list, err = resource.List(ctx, o)
			report(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (w watchInterface, err error) {
			w, err = resource.Watch(ctx, o)
			report(ctx, err)
			return w, err
		},
	}
}
