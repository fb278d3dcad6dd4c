// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package extension

import (
	"errors"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// noPullSecret is the value for a secret that the proxy may not read or that does not exist. The
// agent then does not pull the image.
const noPullSecret = "null"

// PullSecret returns the reference to the Secret that an ECDS resource needs,
// kubernetes://namespace/name, or "" if it needs none.
func PullSecret(r *xds.Resource) (string, error) {
	config, err := configOf(r)
	if err != nil {
		return "", err
	}
	return pullSecret(config)
}

// WithPullSecret replaces the reference in an ECDS resource by a docker config. An empty config
// means that there is none. The resulting bytes contain the secret and must be sent to the proxy
// only.
func WithPullSecret(r *xds.Resource, docker []byte) (*xds.Resource, error) {
	config, err := configOf(r)
	if err != nil {
		return nil, err
	}
	text := noPullSecret
	if len(docker) > 0 {
		text = string(docker)
	}
	if err := withPullSecret(config, text); err != nil {
		return nil, err
	}
	return xds.New(xds.TypeExtension, r.Name, config)
}

func configOf(r *xds.Resource) (*corev3.TypedExtensionConfig, error) {
	packed, config := &anypb.Any{}, &corev3.TypedExtensionConfig{}
	if err := proto.Unmarshal(r.Any, packed); err != nil {
		return nil, fmt.Errorf("read resource %s: %w", r.Name, err)
	}
	if err := packed.UnmarshalTo(config); err != nil {
		return nil, fmt.Errorf("read resource %s: %w", r.Name, err)
	}
	return config, nil
}

// pullSecret returns the reference in a configuration of [Config].
func pullSecret(config *corev3.TypedExtensionConfig) (reference string, err error) {
	plugin, err := opened(config)
	if err != nil {
		return "", err
	}
	switch ref := plugin.GetConfig().GetVmConfig().GetEnvironmentVariables().GetKeyValues()[hintPullSecret]; ref {
	case noPullSecret:
		return "", nil
	default:
		return ref, nil
	}
}

// withPullSecret replaces the reference by a docker config or [noPullSecret].
func withPullSecret(config *corev3.TypedExtensionConfig, docker string) error {
	plugin, err := opened(config)
	if err != nil {
		return err
	}
	env := plugin.GetConfig().GetVmConfig().GetEnvironmentVariables()
	if env.GetKeyValues()[hintPullSecret] == "" {
		return errors.New("the configuration names no pull secret")
	}
	env.KeyValues[hintPullSecret] = docker
	config.TypedConfig = envoyconf.Pack(plugin)
	return nil
}

func opened(config *corev3.TypedExtensionConfig) (*httpwasmv3.Wasm, error) {
	plugin := &httpwasmv3.Wasm{}
	if err := config.GetTypedConfig().UnmarshalTo(plugin); err != nil {
		return nil, fmt.Errorf("read the plugin %s: %w", config.GetName(), err)
	}
	return plugin, nil
}
