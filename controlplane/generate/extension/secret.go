// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package extension

import (
	"errors"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
)

// NoPullSecret stands for a secret that is named and cannot be given: the agent
// does not pull the image without it.
const NoPullSecret = "null"

// PullSecret gives the reference to the secret, kubernetes://namespace/name, that
// a configuration of [Config] needs; empty for none.
func PullSecret(config *corev3.TypedExtensionConfig) (reference string, err error) {
	plugin, err := opened(config)
	if err != nil {
		return "", err
	}
	switch ref := plugin.GetConfig().GetVmConfig().GetEnvironmentVariables().GetKeyValues()[hintPullSecret]; ref {
	case NoPullSecret:
		return "", nil
	default:
		return ref, nil
	}
}

// WithPullSecret puts a docker config, or [NoPullSecret], in the place of the
// reference. The message holds a secret from here on.
func WithPullSecret(config *corev3.TypedExtensionConfig, docker string) error {
	plugin, err := opened(config)
	if err != nil {
		return err
	}
	env := plugin.GetConfig().GetVmConfig().GetEnvironmentVariables()
	if env.GetKeyValues()[hintPullSecret] == "" {
		return errors.New("the configuration names no pull secret")
	}
	env.KeyValues[hintPullSecret] = docker
	config.TypedConfig = parts.Pack(plugin)
	return nil
}

func opened(config *corev3.TypedExtensionConfig) (*httpwasmv3.Wasm, error) {
	plugin := &httpwasmv3.Wasm{}
	if err := config.GetTypedConfig().UnmarshalTo(plugin); err != nil {
		return nil, fmt.Errorf("read the plugin %s: %w", config.GetName(), err)
	}
	return plugin, nil
}
