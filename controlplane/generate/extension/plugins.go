// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package extension

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// The types that a configuration may have: the plugin, and what an agent puts in
// the place of one that fails open and cannot be had.
const (
	typeWasm = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
	typeRBAC = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
)

// Side says whose requests a listener serves.
type Side int

const (
	// Client is of those that the workload sends, and of all of a gateway.
	Client Side = iota
	// Server is of those that are sent to the workload.
	Server
)

// Plugins are the plugins of a proxy. The zero value has none.
type Plugins struct {
	// List is in the order in which a request meets those of a phase.
	List []*snapshot.WasmPlugin
	// Key is equal for proxies whose listeners have the same plugins at the same
	// places; empty without plugins.
	Key string
}

// Of returns the plugins of a proxy.
func Of(mesh *snapshot.Mesh, proxy *model.Proxy) Plugins {
	p := Plugins{List: mesh.WasmPlugins.For(proxy.Namespace, proxy.Labels)}
	var key strings.Builder
	for _, plugin := range p.List {
		key.WriteString(plugin.Stands)
		key.WriteByte(',')
	}
	p.Key = key.String()
	return p
}

// HTTP returns the filters for the requests that come to a port; 0 is one that is
// not known. Their objects are added to from.
func (p Plugins) HTTP(side Side, port uint32, from *xds.Sources) envoyconf.Plugins {
	var out envoyconf.Plugins
	for _, plugin := range p.List {
		if !takes(plugin, side, port) {
			continue
		}
		if out == nil {
			out = envoyconf.Plugins{}
		}
		from.AddConfigs(plugin.Config)
		phase := plugin.Spec.GetPhase()
		out[phase] = append(out[phase], discovered(plugin))
	}
	return out
}

// takes reports whether a plugin is for the requests of a listener.
func takes(plugin *snapshot.WasmPlugin, side Side, port uint32) bool {
	if len(plugin.Spec.GetMatch()) == 0 {
		return true
	}
	for _, m := range plugin.Spec.GetMatch() {
		switch m.GetMode() {
		case typev1beta1.WorkloadMode_CLIENT:
			if side != Client {
				continue
			}
		case typev1beta1.WorkloadMode_SERVER:
			if side != Server {
				continue
			}
		case typev1beta1.WorkloadMode_CLIENT_AND_SERVER, typev1beta1.WorkloadMode_UNDEFINED:
		}
		if len(m.GetPorts()) == 0 || slices.ContainsFunc(m.GetPorts(), func(s *typev1beta1.PortSelector) bool {
			return s.GetNumber() != 0 && s.GetNumber() == port
		}) {
			return true
		}
	}
	return false
}

// discovered is a filter whose configuration Envoy asks for. The listener waits
// for it: without the plugin it might let pass what it must not. One that fails
// open lets requests pass while Envoy has no configuration of it that it can use:
// Envoy rejects a broken module whatever the failure policy says.
func discovered(plugin *snapshot.WasmPlugin) *hcmv3.HttpFilter {
	source := &corev3.ExtensionConfigSource{ConfigSource: envoyconf.OverADS(), TypeUrls: []string{typeWasm, typeRBAC}}
	if plugin.Spec.GetFailStrategy() == extensionsv1alpha1.FailStrategy_FAIL_OPEN {
		source.DefaultConfig = envoyconf.Pack(&rbacv3.RBAC{}) // without rules everything passes
	}
	return &hcmv3.HttpFilter{Name: plugin.Name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: source}}
}
