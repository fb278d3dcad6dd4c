// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"errors"
	"sync"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// SecretsConfig says where secrets come from, and who gets them. They are given
// over TLS only, to proxies that have shown who they are.
type SecretsConfig struct {
	// Source gives what kubernetes:// means; nil serves no secrets.
	Source credentials.Source
	// Gateway gives what kubernetes-gateway:// means; nil stands for Source.
	Gateway credentials.Source
	// Granted reports whether a caller may have a Secret, of whatever namespace,
	// because an object of a snapshot assigns it to the caller's identity; nil
	// allows none. It must be quick.
	Granted func(*snapshot.Mesh, *authn.Caller, credentials.Reference) bool
	// Authorize decides whether a caller may read the Secrets of its namespace;
	// nil lets each of them. It may take its time, and should remember. It is
	// not asked for what Granted allows.
	Authorize func(ctx context.Context, caller *authn.Caller) error
}

// secrets are the credentials as resources, made once for all streams.
type secrets struct {
	cfg SecretsConfig

	mu   sync.Mutex // guards made
	made map[secretKey]madeSecret
}

// maxSecrets bounds how many secrets are remembered. When it is reached all are
// forgotten; each is made anew.
const maxSecrets = 4096

type secretKey struct {
	name string // as the proxy asks for it
	ref  credentials.Reference
}

// madeSecret is a resource and what it was made of: a *credentials.KeyPair or
// *credentials.Roots.
type madeSecret struct {
	from any
	res  *xds.Resource
}

func newSecrets(cfg SecretsConfig) *secrets {
	if cfg.Gateway == nil {
		cfg.Gateway = cfg.Source
	}
	return &secrets{cfg: cfg, made: map[secretKey]madeSecret{}}
}

// onChange has a function called for each Secret that changed.
func (s *secrets) onChange(f func(namespace, name string)) {
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
}

// forget drops what was made of a Secret: its key is of no use any more.
func (s *secrets) forget(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.made {
		if k.ref.Affects(namespace, name) {
			delete(s.made, k)
		}
	}
}

// errLoading says that not all Secrets were read yet.
var errLoading = errors.New("the Secrets are still being read")

// get gives the resource that a reference means.
func (s *secrets) get(name string, ref credentials.Reference) (*xds.Resource, error) {
	source := s.cfg.Source
	if ref.Scheme == credentials.SchemeGateway {
		source = s.cfg.Gateway
	}
	res, err := s.read(source, secretKey{name, ref})
	if errors.Is(err, credentials.ErrNotFound) {
		select {
		case <-source.Synced():
		default:
			return nil, errLoading
		}
	}
	return res, err
}

func (s *secrets) read(source credentials.Source, key secretKey) (*xds.Resource, error) {
	if key.ref.IsRoots() {
		roots, err := credentials.RootsOf(source, key.ref)
		if err != nil {
			return nil, err
		}
		return s.make(key, roots, func() (*xds.Resource, error) { return generate.Roots(key.name, roots) })
	}
	pair, err := credentials.KeyPairOf(source, key.ref)
	if err != nil {
		return nil, err
	}
	return s.make(key, pair, func() (*xds.Resource, error) { return generate.KeyPair(key.name, pair) })
}

func (s *secrets) make(key secretKey, from any, build func() (*xds.Resource, error)) (*xds.Resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, ok := s.made[key]; ok && m.from == from {
		return m.res, nil
	}
	res, err := build()
	if err != nil {
		return nil, err
	}
	if len(s.made) >= maxSecrets {
		clear(s.made)
	}
	s.made[key] = madeSecret{from, res}
	return res, nil
}

// docker gives the docker config that a reference means.
func (s *secrets) docker(ref credentials.Reference) (*credentials.Docker, error) {
	docker, err := credentials.DockerOf(s.cfg.Source, ref)
	if errors.Is(err, credentials.ErrNotFound) {
		select {
		case <-s.cfg.Source.Synced():
		default:
			return nil, errLoading
		}
	}
	return docker, err
}

// completedFrom is what a completed plugin was made of.
type completedFrom struct {
	res    *xds.Resource
	docker *credentials.Docker // nil for none
}

// completed gives the configuration of a plugin with its pull secret; docker is
// nil when there is none.
func (s *secrets) completed(res *xds.Resource, ref credentials.Reference, docker *credentials.Docker) (*xds.Resource, error) {
	return s.make(secretKey{"ecds " + res.Name, ref}, completedFrom{res, docker}, func() (*xds.Resource, error) {
		if docker == nil {
			return generate.WithPullSecret(res, nil)
		}
		return generate.WithPullSecret(res, docker.JSON)
	})
}
