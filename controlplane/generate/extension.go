// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/extension"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// extensionSource is what the configuration of a plugin is made of.
type extensionSource struct {
	plugin *snapshot.WasmPlugin
	old    bool
}

// extensions gives the ECDS resources of a proxy: the configurations of its
// plugins, also of those that no listener of its has a place for. Where a secret
// belongs there is its reference: see [PullSecret].
func (g *Generator) extensions(s *scope) *xds.Set {
	if len(s.plugins.List) == 0 {
		return g.empty
	}
	old := extension.IsOld(s.proxy.Envoy)
	key := setKey{typeURL: xds.TypeExtension, plugins: s.plugins.Key}
	if old {
		key.plugins += "old"
	}
	return g.sets.get(key, s.mesh.Sequence, sources{s.mesh.WasmPlugins}, func(prev *xds.Set) *xds.Set {
		p := &part{}
		for _, plugin := range s.plugins.List {
			config, problems := extension.Config(plugin, old)
			p.problems = append(p.problems, problems...)
			r, err := g.table.Get(extensionSource{plugin, old}, xds.TypeExtension, plugin.Name, func() proto.Message { return config })
			if err != nil {
				left := parts.Left(plugin.Config.Key, err)
				left.Source = plugin.Config.Source
				p.problems = append(p.problems, left)
				continue
			}
			p.resources = append(p.resources, r)
		}
		return xds.NewSet(prev, p.resources, p.problems)
	})
}

// PullSecret gives the reference to the secret that an ECDS resource has to be
// completed with, kubernetes://namespace/name; empty for none.
func PullSecret(r *xds.Resource) (string, error) {
	config, err := extensionOf(r)
	if err != nil {
		return "", err
	}
	return extension.PullSecret(config)
}

// WithPullSecret completes an ECDS resource with a docker config. Its bytes hold
// the secret: they go to the proxy, and nowhere else. An empty one says that there
// is none.
func WithPullSecret(r *xds.Resource, docker []byte) (*xds.Resource, error) {
	config, err := extensionOf(r)
	if err != nil {
		return nil, err
	}
	text := extension.NoPullSecret
	if len(docker) > 0 {
		text = string(docker)
	}
	if err := extension.WithPullSecret(config, text); err != nil {
		return nil, err
	}
	return xds.New(xds.TypeExtension, r.Name, config)
}

func extensionOf(r *xds.Resource) (*corev3.TypedExtensionConfig, error) {
	packed, config := &anypb.Any{}, &corev3.TypedExtensionConfig{}
	if err := proto.Unmarshal(r.Any, packed); err != nil {
		return nil, fmt.Errorf("read resource %s: %w", r.Name, err)
	}
	if err := packed.UnmarshalTo(config); err != nil {
		return nil, fmt.Errorf("read resource %s: %w", r.Name, err)
	}
	return config, nil
}
