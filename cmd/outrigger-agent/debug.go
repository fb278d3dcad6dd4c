// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"slices"
)

// hidden stands for a value that may be secret.
const hidden = "(set)"

// debugHandlers are the paths of the status port by which people on this
// machine look into the agent.
func (b *builder) debugHandlers() map[string]http.Handler {
	return map[string]http.Handler{
		"/debug/config": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			doc, err := effective(b.cfg)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = w.Write(doc) // a peer that has gone needs no answer
		}),
		"/debug/xds":  relayHandler(b.parts.relay),
		"/debug/ndsz": namesHandler(b.parts.dns),
	}
}

// debugHost is where the debug port is, for people on this machine only: with
// the other ports where that is a loopback address.
func debugHost(local string) string {
	switch ip := net.ParseIP(local); {
	case ip == nil || ip.IsLoopback():
		return local
	case ip.To4() == nil:
		return "::1"
	default:
		return "127.0.0.1"
	}
}

// effective is the configuration that the agent runs by, as JSON, without
// anything that may be secret.
func effective(cfg *config) ([]byte, error) {
	to := func(u upstream) map[string]any {
		return map[string]any{"address": u.address, "serverName": u.serverName, "roots": u.roots, "tls": u.tlsConfig(nil) != nil}
	}
	files := map[string]string{"bootstrap": cfg.bootstrapFile}
	if cfg.env.grpcBootstrap != "" {
		files["grpcBootstrap"] = cfg.env.grpcBootstrap
	}
	doc, err := json.MarshalIndent(map[string]any{
		"version":      version,
		"node":         map[string]any{"id": cfg.node.String(), "metadata": shownMetadata(cfg)},
		"identity":     map[string]any{"id": cfg.identity.String(), "keyType": cfg.keyType, "files": cfg.source.dir},
		"proxyConfig":  json.RawMessage(redacted(cfg)),
		"controlPlane": to(cfg.xds),
		"authority":    to(cfg.ca),
		"localAddress": cfg.local,
		"files":        files,
		"envoy":        shownArgs(cfg.envoyArgs),
		"environment":  cfg.env.shown,
		"headers":      slices.Sorted(maps.Keys(cfg.env.headers)),
		"caHeaders":    slices.Sorted(maps.Keys(cfg.env.caHeaders)),
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(doc, '\n'), nil
}

// shownMetadata is the metadata of the node. What has no type is anything that
// somebody put into the environment: its keys only. The same goes for
// annotations.
func shownMetadata(cfg *config) map[string]any {
	typed := *cfg.metadata
	typed.ProxyConfig, typed.Raw, typed.Annotations = nil, nil, nil
	return map[string]any{
		"typed":       typed,
		"others":      slices.Sorted(maps.Keys(cfg.metadata.Raw)),
		"annotations": slices.Sorted(maps.Keys(cfg.metadata.Annotations)),
	}
}

// shownArgs are the arguments of Envoy without the text that is laid over the
// bootstrap.
func shownArgs(args []string) []string {
	shown := slices.Clone(args)
	for i, arg := range shown {
		if arg == "--config-yaml" && i+1 < len(shown) {
			shown[i+1] = hidden
		}
	}
	return shown
}
