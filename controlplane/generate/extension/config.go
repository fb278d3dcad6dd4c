// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package extension

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// Variables that the agent reads and removes before Envoy sees the configuration. The agent
// removes every variable with the prefix.
const (
	hintPrefix     = "ISTIO_META_"
	hintPullSecret = hintPrefix + "WASM_IMAGE_PULL_SECRET"
	hintPullPolicy = hintPrefix + "WASM_IMAGE_PULL_POLICY"
	hintVersion    = hintPrefix + "WASM_PLUGIN_RESOURCE_VERSION"
)

const (
	runtime = "envoy.wasm.runtime.v8"
	// fetchTimeout is the time limit of the agent for fetching a module. The cluster is a required
	// field that is not used.
	fetchTimeout = 30 * time.Second
	noCluster    = "_"
)

// Config builds the configuration of a plugin. The problems describe the parts of the object that
// are omitted. Old Envoys support only FAIL_OPEN and FAIL_CLOSE.
func Config(p *snapshot.WasmPlugin, old bool) (*corev3.TypedExtensionConfig, []model.Problem) {
	if p.Lua != "" {
		code := &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: Mark(p.Name) + p.Lua}}
		return &corev3.TypedExtensionConfig{Name: p.Name, TypedConfig: envoyconf.Pack(&luav3.Lua{DefaultSourceCode: code})}, nil
	}
	vm := &wasmv3.VmConfig{Runtime: runtime, Code: code(p), EnvironmentVariables: &wasmv3.EnvironmentVariables{KeyValues: map[string]string{}}}
	problems := environment(p, vm.GetEnvironmentVariables())
	config := &wasmv3.PluginConfig{
		Name: p.Name, RootId: p.Spec.GetPluginName(), Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: vm},
	}
	if p.Settings != "" {
		config.Configuration = envoyconf.Pack(wrapperspb.String(p.Settings))
	}
	failStrategy(p, config, old)
	return &corev3.TypedExtensionConfig{Name: p.Name, TypedConfig: envoyconf.Pack(&httpwasmv3.Wasm{Config: config})}, problems
}

// Mark returns the comment before the script of a filter. Messages of Lua name a script by the first
// 45 bytes of its first line, and Envoy adds nothing to them.
func Mark(name string) string {
	const most = 45 - len("--[[]]")
	if len(name) > most {
		name = strconv.FormatUint(xxhash.Sum64String(name), 16)
	}
	return "--[[" + name + "]]"
}

// code returns the source of the module.
func code(p *snapshot.WasmPlugin) *corev3.AsyncDataSource {
	if path, ok := strings.CutPrefix(p.URL, "file://"); ok {
		return &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
			Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}},
		}}
	}
	return &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
		HttpUri: &corev3.HttpUri{
			Uri: p.URL, Timeout: durationpb.New(fetchTimeout), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: noCluster},
		},
		Sha256: p.Spec.GetSha256(),
	}}}
}

// environment sets the variables of the plugin and those for the agent. Users cannot set the
// agent's variables, because one of them is a reference to a secret that is filled in later.
func environment(p *snapshot.WasmPlugin, env *wasmv3.EnvironmentVariables) []model.Problem {
	var problems []model.Problem
	report := func(format string, args ...any) {
		problems = append(problems, model.Problem{Object: p.Config.Key, Source: p.Config.Source, Reason: fmt.Sprintf(format, args...)})
	}
	for i, v := range p.Spec.GetVmConfig().GetEnv() {
		switch {
		case strings.HasPrefix(v.GetName(), hintPrefix):
			report("%s.vmConfig.env[%d].name: %q has no effect: names that begin with %s are for the agent; choose another name", p.At, i, v.GetName(), hintPrefix)
		case v.GetValueFrom() == extensionsv1alpha1.EnvValueSource_HOST:
			env.HostEnvKeys = append(env.HostEnvKeys, v.GetName())
		default:
			env.KeyValues[v.GetName()] = v.GetValue()
		}
	}
	env.KeyValues[hintVersion] = p.Version
	if policy := p.Spec.GetImagePullPolicy(); policy != extensionsv1alpha1.PullPolicy_UNSPECIFIED_POLICY {
		env.KeyValues[hintPullPolicy] = policy.String()
	}
	switch name := p.Spec.GetImagePullSecret(); {
	case name == "":
	case !strings.HasPrefix(p.URL, "oci://"):
		report("%s.imagePullSecret has no effect: the module is not an image; remove it, or write oci:// in %[1]s.url", p.At)
	default:
		env.KeyValues[hintPullSecret] = noPullSecret
		ref, err := credentials.ParseReference(name, p.Config.Namespace)
		if err != nil {
			report("%s.imagePullSecret: %s: the image cannot be pulled; name a Secret of the namespace %s", p.At, err, p.Config.Namespace)
			break
		}
		// The namespace is always that of the object, whatever the reference contains.
		env.KeyValues[hintPullSecret] = credentials.SchemeKubernetes + "://" + p.Config.Namespace + "/" + ref.Name
	}
	return problems
}

// failStrategy sets how requests are handled when the plugin fails.
func failStrategy(p *snapshot.WasmPlugin, config *wasmv3.PluginConfig, old bool) {
	switch p.Spec.GetFailStrategy() {
	case extensionsv1alpha1.FailStrategy_FAIL_CLOSE:
		if !old {
			config.FailurePolicy = wasmv3.FailurePolicy_FAIL_CLOSED
		}
	case extensionsv1alpha1.FailStrategy_FAIL_OPEN:
		if old {
			//lint:ignore SA1019 the only field that an old Envoy knows
			config.FailOpen = true
		} else {
			config.FailurePolicy = wasmv3.FailurePolicy_FAIL_OPEN
		}
	case extensionsv1alpha1.FailStrategy_FAIL_RELOAD:
		if !old { // old Envoys fail closed
			config.FailurePolicy = wasmv3.FailurePolicy_FAIL_RELOAD
		}
	}
}

// IsOld reports whether an Envoy version lacks failure policies, which were added in 1.33. An
// unknown version counts as new.
func IsOld(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	return major == "1" && err == nil && n < 33
}
