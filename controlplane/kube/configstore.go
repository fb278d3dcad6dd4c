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

// ConfigStoreConfig is the configuration of a ConfigStore.
type ConfigStoreConfig struct {
	Client *Client
	// Name is the URL of the store, for messages; empty means "k8s://".
	Name string
	// Revision is the revision of the control plane. Objects with another value of the label
	// istio.io/rev are ignored, except Gateways of the Gateway API that name one of its tags. Empty
	// means "default".
	Revision string
	// Namespaces are the namespaces whose objects are read; empty means all.
	Namespaces []string
	// Kinds are the kinds that are read and written; empty means all.
	Kinds  []model.Kind
	Logger *slog.Logger // nil means slog.Default()
}

// ConfigStore is the [config.Store] of a cluster: the custom resources of Istio and of the Gateway
// API, and Ingresses. One reflector follows each kind. The store adapts when the definition of a
// kind is added, changes its version or is removed.
//
// It requires permission to list and watch CustomResourceDefinitions and the kinds, to get and
// update the objects that are written, and to update the status subresource. The store does not
// sync while a kind cannot be read, so that a missing permission never removes configuration from
// proxies.
type ConfigStore struct {
	*config.Cache
	cfg ConfigStoreConfig
	log *slog.Logger

	mu sync.Mutex // guards the fields below
	// kinds are the kinds that are followed or whose first list is pending.
	kinds map[model.Kind]*followed
	// problems are the problems of objects and kinds.
	problems map[model.Key]model.Problem
	// listed is true once all definitions were listed.
	listed bool
	// tags are those of this revision, tagged the objects that may name one.
	tags      map[string]string
	tagged    map[model.Key]tagged
	tagsKnown bool
}

// followed is the state of a kind that a reflector follows.
type followed struct {
	version string
	stop    context.CancelFunc
	// missing are the namespaces whose objects were not listed yet.
	missing map[string]bool
	// fault is the reason why the objects cannot be read at the moment; nil if they can.
	fault error
}

var _ config.Store = (*ConfigStore)(nil)

// NewConfigStore returns the store of a cluster. It returns an error if the configuration is
// invalid.
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
		kinds: map[model.Kind]*followed{}, problems: map[model.Key]model.Problem{}, tags: map[string]string{}, tagged: map[model.Key]tagged{},
	}, nil
}

// Name returns the URL of the store.
func (s *ConfigStore) Name() string { return s.cfg.Name }

// Problems returns the invalid objects and the kinds that cannot be read.
func (s *ConfigStore) Problems() []model.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Collect(maps.Values(s.problems))
	for kind, f := range s.kinds {
		if f.fault != nil {
			list = append(list, model.Problem{
				Object: model.Key{Kind: kind}, Source: s.cfg.Name,
				Reason: fmt.Sprintf("objects of this kind cannot be read; known objects stay in force: %v", f.fault),
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
		if s.Serves(model.KubernetesGateway) {
			reflectors.Go(func() { s.followTags(ctx) })
		}
		s.followBuiltIn(ctx, &reflectors)
		s.followDefinitions(ctx, &reflectors)
		reflectors.Wait()
		return nil
	})
	return g.Wait()
}

// followBuiltIn follows the kinds that every API server has.
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

// unfollow stops following a kind whose definition was removed.
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
	maps.DeleteFunc(s.tagged, func(key model.Key, _ tagged) bool { return key.Kind == kind })
	s.Replace(nil, kind)
	s.settle()
	s.mu.Unlock()
}

// fault records the last error of a reflector of the kind; nil means that it works.
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
		s.log.Warn("objects of the cluster cannot be read; known objects stay in force", "kind", k.Kind, "source", s.cfg.Name, "err", err)
	}
	if err != nil {
		s.WatchError(fmt.Errorf("%s: %s.%s: %w", s.cfg.Name, k.Plural, k.Group, err))
	}
}

// settle marks the cache as synced once everything was listed. The caller holds mu.
func (s *ConfigStore) settle() {
	if !s.listed || !s.tagsKnown && s.Serves(model.KubernetesGateway) {
		return
	}
	for _, f := range s.kinds {
		if len(f.missing) > 0 {
			return
		}
	}
	s.Loaded()
}

// observed returns a ListerWatcher for a resource that calls tell with the result of each request.
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
