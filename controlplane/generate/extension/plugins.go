// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package extension

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// The types that a configuration may have: the plugin, and its replacement if it is not available.
const (
	typeWasm = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
	typeLua  = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"
	typeRBAC = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
)

// Side is the traffic direction of a listener.
type Side int

const (
	// Client is for requests that the workload sends, and for all requests of a gateway.
	Client Side = iota
	// Server is for requests that the workload receives.
	Server
)

// Plugins are the plugins of a proxy. The zero value has none.
type Plugins struct {
	// List is sorted by the order in which the plugins of a phase process a request.
	List []*snapshot.WasmPlugin
	// Key is equal for proxies whose listeners have the same plugins at the same positions. It is
	// empty without plugins.
	Key string
}

// Of returns the plugins of a proxy.
func Of(mesh *snapshot.Mesh, proxy *model.Proxy) Plugins {
	p := Plugins{List: mesh.WasmPlugins.For(proxy.Namespace, proxy.Labels)}
	var key strings.Builder
	for _, plugin := range p.List {
		key.WriteString(plugin.ListenerKey)
		key.WriteByte(',')
	}
	p.Key = key.String()
	return p
}

// HTTP returns the filters for requests to a port; 0 means an unknown port. It adds the objects of
// the filters to from.
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

// takes reports whether a plugin applies to the requests of a listener.
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

// discovered returns a filter whose configuration Envoy requests. The listener waits for it,
// because without the plugin it might admit requests that the plugin would reject. A plugin that
// fails open admits requests until Envoy has a valid configuration: Envoy rejects a broken module
// regardless of the failure policy.
func discovered(plugin *snapshot.WasmPlugin) *hcmv3.HttpFilter {
	source := &corev3.ExtensionConfigSource{ConfigSource: envoyconf.OverADS(), TypeUrls: []string{typeWasm, typeRBAC}}
	if plugin.Lua != "" {
		source.TypeUrls[0] = typeLua
	}
	if plugin.Spec.GetFailStrategy() == extensionsv1alpha1.FailStrategy_FAIL_OPEN {
		source.DefaultConfig = envoyconf.Pack(&rbacv3.RBAC{}) // without rules, all requests pass
	}
	return &hcmv3.HttpFilter{Name: plugin.Name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: source}}
}

// Replacement returns the configuration that a proxy receives instead of a plugin that it rejected
// and of which it has no accepted version: a filter that admits all requests if the plugin fails
// open, and denies them otherwise. Without it, Envoy would reject every listener that refers to the
// plugin.
func Replacement(plugin *snapshot.WasmPlugin) (*xds.Resource, error) {
	filter := &rbacv3.RBAC{} // without rules, all requests pass
	if plugin.Spec.GetFailStrategy() != extensionsv1alpha1.FailStrategy_FAIL_OPEN {
		filter.Rules = &rbacconfigv3.RBAC{} // allows what its policies match: nothing
	}
	r, err := xds.New(xds.TypeExtension, plugin.Name, &corev3.TypedExtensionConfig{Name: plugin.Name, TypedConfig: envoyconf.Pack(filter)})
	if err == nil {
		r.Sources.AddConfigs(plugin.Config)
	}
	return r, err
}

// IsScript reports whether an ECDS resource is a script.
func IsScript(r *xds.Resource) bool {
	config, err := configOf(r)
	return err == nil && config.GetTypedConfig().GetTypeUrl() == typeLua
}

// IsReplacement reports whether an ECDS resource was returned by [Replacement].
func IsReplacement(r *xds.Resource) bool {
	config, err := configOf(r)
	return err == nil && config.GetTypedConfig().GetTypeUrl() == typeRBAC
}
