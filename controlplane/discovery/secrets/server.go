// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package secrets

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/lru"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/extension"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Config configures a [Server].
type Config struct {
	// Source resolves kubernetes:// names; nil disables secrets.
	Source credentials.Source
	// Gateway resolves kubernetes-gateway:// names; nil means Source.
	Gateway credentials.Source
	// ConfigMaps resolves configmap:// names, to any proven caller that Granted allows; nil
	// disables them.
	ConfigMaps credentials.Source
	// Granted reports whether a caller may read a Secret of any namespace because an object of a
	// snapshot assigns it to the caller's identity. A nil function grants nothing. It must not
	// block.
	Granted func(*snapshot.Mesh, *authn.Caller, credentials.Reference) bool
	// Authorize returns an error if a caller may not read the Secrets of its namespace. A nil
	// function allows all callers. It may block, and should cache its results. It is not called
	// for Secrets that Granted allows.
	Authorize func(ctx context.Context, caller *authn.Caller) error
	// Retry is the delay after which a refused proxy is checked again; 0 means 10 s.
	Retry time.Duration
}

// Server builds resources from credentials and shares them among all streams. Its methods are safe
// for concurrent use.
type Server struct {
	cfg Config
	// refused counts refusals by reason.
	refused *prometheus.CounterVec
	// recovered converts a recovered panic to an error.
	recovered func(any) error

	mu sync.Mutex // guards made
	// made caches resources, evicted in the order of their last use.
	made *lru.Map[secretKey, madeSecret]
}

const (
	// maxSecrets is the maximum number of cached resources.
	maxSecrets = 4096
	// defaultRetry is the default of Config.Retry.
	defaultRetry = 10 * time.Second
)

type secretKey struct {
	name string // as requested by the proxy
	ref  credentials.Reference
}

// madeSecret is a resource and its input, a *credentials.KeyPair or *credentials.Roots.
type madeSecret struct {
	from any
	res  *xds.Resource
}

// New returns a Server. The registerer registers its metrics; nil disables them. The function
// recovered converts a panic of Config.Authorize to an error.
func New(cfg Config, reg prometheus.Registerer, recovered func(any) error) *Server {
	if cfg.Gateway == nil {
		cfg.Gateway = cfg.Source
	}
	if cfg.Retry == 0 {
		cfg.Retry = defaultRetry
	}
	s := &Server{cfg: cfg, recovered: recovered, refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_control_sds_refused_total", Help: "Secrets that a proxy requested but did not receive, by reason.",
	}, []string{"reason"})}
	s.made = lru.New[secretKey, madeSecret](maxSecrets)
	if reg != nil {
		reg.MustRegister(s.refused)
	}
	return s
}

// OnChange registers a function that is called for each changed Secret.
func (s *Server) OnChange(f func(namespace, name string)) {
	if s.cfg.Source == nil {
		return
	}
	changed := func(namespace, name string) {
		s.forget(namespace, name)
		f(namespace, name)
	}
	s.cfg.Source.OnChange(changed)
	if s.cfg.Gateway != s.cfg.Source {
		s.cfg.Gateway.OnChange(changed)
	}
	if s.cfg.ConfigMaps != nil {
		s.cfg.ConfigMaps.OnChange(changed)
	}
}

// forget drops the resources of a Secret, so that its key does not stay in memory.
func (s *Server) forget(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.made.Oldest() {
		if k.ref.Affects(namespace, name) {
			s.made.Delete(k)
		}
	}
}

// source returns the source that resolves a reference.
func (s *Server) source(ref credentials.Reference) credentials.Source {
	switch ref.Scheme {
	case credentials.SchemeGateway:
		return s.cfg.Gateway
	case credentials.SchemeConfigMap:
		return s.cfg.ConfigMaps
	}
	return s.cfg.Source
}

// get returns the resource of a reference.
func (s *Server) get(name string, ref credentials.Reference) (*xds.Resource, error) {
	source := s.source(ref)
	if source == nil {
		return nil, fmt.Errorf("%w: this control plane reads no ConfigMaps", credentials.ErrNotFound)
	}
	res, err := s.read(source, secretKey{name, ref})
	if errors.Is(err, credentials.ErrNotFound) {
		select {
		case <-source.Synced():
		default:
			return nil, credentials.ErrLoading
		}
	}
	return res, err
}

func (s *Server) read(source credentials.Source, key secretKey) (*xds.Resource, error) {
	if key.ref.IsRoots() {
		roots, err := credentials.RootsOf(source, key.ref)
		if err != nil {
			return nil, err
		}
		return s.make(key, roots, func() (*xds.Resource, error) { return rootsResource(key.name, roots) })
	}
	pair, err := credentials.KeyPairOf(source, key.ref)
	if err != nil {
		return nil, err
	}
	return s.make(key, pair, func() (*xds.Resource, error) { return keyPairResource(key.name, pair) })
}

func (s *Server) make(key secretKey, from any, build func() (*xds.Resource, error)) (*xds.Resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, ok := s.made.Get(key); ok && m.from == from {
		return m.res, nil
	}
	res, err := build()
	if err != nil {
		return nil, err
	}
	s.made.Put(key, madeSecret{from, res})
	return res, nil
}

// docker returns the docker config of a reference.
func (s *Server) docker(ref credentials.Reference) (*credentials.Docker, error) {
	docker, err := credentials.DockerOf(s.cfg.Source, ref)
	if errors.Is(err, credentials.ErrNotFound) {
		select {
		case <-s.cfg.Source.Synced():
		default:
			return nil, credentials.ErrLoading
		}
	}
	return docker, err
}

// completedFrom is the input of a completed plugin.
type completedFrom struct {
	res    *xds.Resource
	docker *credentials.Docker // nil for none
}

// completed returns the configuration of a plugin with its pull secret. docker is nil if there is
// none.
func (s *Server) completed(res *xds.Resource, ref credentials.Reference, docker *credentials.Docker) (*xds.Resource, error) {
	return s.make(secretKey{"ecds " + res.Name, ref}, completedFrom{res, docker}, func() (*xds.Resource, error) {
		if docker == nil {
			return extension.WithPullSecret(res, nil)
		}
		return extension.WithPullSecret(res, docker.JSON)
	})
}
