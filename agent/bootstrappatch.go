// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/internal/durable"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

const (
	typeBootstrap = "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap"
	typeStruct    = "type.googleapis.com/google.protobuf.Struct"
	// patchTimeout limits how long the first start of Envoy waits for the control plane.
	patchTimeout = 10 * time.Second
)

// bootstrapPatch returns a function that returns Envoy's arguments with the bootstrap of the control
// plane; nil if it is not to be asked.
func (b *builder) bootstrapPatch() func(context.Context) []string {
	if !b.cfg.env.Envoy.AskBootstrap {
		return nil
	}
	log := b.logger("bootstrap")
	return func(ctx context.Context) []string {
		ctx, cancel := context.WithTimeout(ctx, patchTimeout)
		defer cancel()
		args, err := b.askBootstrap(ctx)
		if err != nil {
			log.Warn("envoy starts without the bootstrap of the control plane", "err", err)
			return b.cfg.envoyArgs
		}
		return args
	}
}

func (b *builder) askBootstrap(ctx context.Context) ([]string, error) {
	self, err := b.self()
	if err != nil {
		return nil, err
	}
	found, err := b.parts.relay.Fetch(ctx, self, typeBootstrap, node.BootstrapPatch)
	if err != nil {
		return nil, err
	}
	return withBootstrap(b.cfg, found)
}

// self returns the node as it is in the bootstrap, or without its cluster and locality if the bootstrap
// is not JSON.
func (b *builder) self() (xdsproxy.Node, error) {
	doc := struct {
		Node xdsproxy.Node `json:"node"`
	}{}
	if err := json.Unmarshal(b.cfg.bootstrap, &doc); err == nil && doc.Node.ID != "" {
		return doc.Node, nil
	}
	metadata, err := json.Marshal(b.cfg.metadata)
	if err == nil {
		err = json.Unmarshal(metadata, &doc.Node.Metadata)
	}
	doc.Node.ID = b.cfg.node.String()
	return doc.Node, err
}

// withBootstrap returns Envoy's arguments with what the control plane sent: patches, which Envoy merges
// over the bootstrap, or, as Istio does, a whole bootstrap.
func withBootstrap(cfg *settings, found *xdsproxy.Fetched) ([]string, error) {
	switch found.TypeURL {
	case typeBootstrap:
		if cfg.bootstrap == nil {
			return nil, errors.New("ProxyConfig customConfigFile is Envoy's whole configuration: unset BOOTSTRAP_XDS_AGENT")
		}
		path := filepath.Join(cfg.proxyConfig.GetConfigPath(), "envoy-rev.pb") // Envoy reads it as protobuf
		args := slices.Clone(cfg.envoyArgs)
		args[slices.Index(args, cfg.bootstrapFile)] = path
		return args, durable.ReplaceFast(path, found.Value, 0o600)
	case typeStruct:
		patch := &structpb.Struct{}
		if err := proto.Unmarshal(found.Value, patch); err != nil {
			return nil, fmt.Errorf("the patches cannot be read: %w", err)
		}
		text, err := json.Marshal(patch.AsMap())
		switch {
		case err != nil:
			return nil, err
		case len(patch.GetFields()) == 0:
			return cfg.envoyArgs, nil // no EnvoyFilter has any
		case len(text) > maxArgument:
			return nil, fmt.Errorf("the patches have %d bytes, and an argument of Envoy at most %d", len(text), maxArgument)
		case slices.Contains(cfg.envoyArgs, "--config-yaml"):
			return nil, errors.New("ISTIO_BOOTSTRAP_OVERRIDE is set, and Envoy merges one document only: move its content to an EnvoyFilter")
		}
		return slices.Concat(cfg.envoyArgs, []string{"--config-yaml", string(text)}), nil
	}
	return nil, fmt.Errorf("the control plane sends a %s: it must be a %s", found.TypeURL, typeBootstrap)
}
