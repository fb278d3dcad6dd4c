// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/extension"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// extensionSource is the input of the configuration of a plugin.
type extensionSource struct {
	plugin *snapshot.WasmPlugin
	old    bool
}

// extensions returns the ECDS resources of a proxy: the filter that refuses denied peers, if
// listeners of its bootstrap request it, and the configurations of its plugins, including those that
// none of its listeners can use. They contain references instead of secrets; see
// [extension.PullSecret].
func (g *Generator) extensions(s *target) *xds.Set {
	if len(s.plugins.List) == 0 && !s.proxy.Denies {
		return g.empty
	}
	old := extension.IsOld(s.proxy.Envoy)
	key := setKey{typeURL: xds.TypeExtension, plugins: s.plugins.Key, denies: s.proxy.Denies}
	if old {
		key.plugins += "old"
	}
	return g.sets.get(key, s.mesh.Sequence, inputs{s.mesh.WasmPlugins, s.mesh.Denied, s.mesh.Config}, func(prev *xds.Set) *xds.Set {
		p := &part{}
		if s.proxy.Denies {
			g.putOrKeep(p, prev, xds.TypeExtension, envoyconf.DeniedPeers(s.mesh.Denied, s.mesh.Config), nil)
		}
		for _, plugin := range s.plugins.List {
			config, problems := extension.Config(plugin, old)
			p.problems = append(p.problems, problems...)
			r, err := g.table.Get(extensionSource{plugin, old}, xds.TypeExtension, plugin.Name, func() (proto.Message, xds.Sources) {
				var from xds.Sources
				from.AddConfigs(plugin.Config)
				return config, from
			})
			if err != nil {
				left := envoyconf.Left(plugin.Config.Key, err)
				left.Source = plugin.Config.Source
				p.problems = append(p.problems, left)
				continue
			}
			p.resources = append(p.resources, r)
		}
		return xds.NewSet(prev, p.resources, p.problems)
	})
}
