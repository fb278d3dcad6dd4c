// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/internal/handover"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

// debugHandlers returns the debug handlers of the status port, by path. Only peers on
// this machine may use them.
func (b *builder) debugHandlers() map[string]http.Handler {
	handlers := map[string]http.Handler{
		"/debug/config": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			doc, err := effective(b.cfg)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = w.Write(doc) // a disconnected peer needs no answer
		}),
		"/debug/xds":    relayHandler(b.parts.relay),
		"/debug/ndsz":   namesHandler(b.parts.dns),
		"/debug/outage": b.outageHandler(),
	}
	if b.parts.envoy != nil {
		handlers["/debug/requests"] = requestsHandler(b.parts.relay, b.admin(), b.cfg.env.RecordClaims)
	}
	return handlers
}

// bindDebug binds the debug port, for peers on this machine.
func (s *sockets) bindDebug(cfg *settings, inherited *handover.Sockets) (err error) {
	if !cfg.env.Debug.Enabled {
		return nil
	}
	if s.debug, err = inherited.Listen(net.JoinHostPort(DebugHost(cfg.local), strconv.Itoa(cfg.env.Debug.Port))); err != nil {
		return fmt.Errorf("debug port: %w; free it, set PROXY_XDS_DEBUG_VIA_AGENT_PORT, or PROXY_XDS_DEBUG_VIA_AGENT to false", err)
	}
	return nil
}

// debugPort creates the server of the debug port.
func (b *builder) debugPort() (err error) {
	if b.socks.debug == nil {
		return nil
	}
	b.parts.debug, err = xdsproxy.NewDebug(xdsproxy.DebugConfig{Listener: b.socks.debug, Proxy: b.parts.relay, Logger: b.logger("xdsproxy")})
	return err
}

// relayHandler serves the state of the streams to the control plane.
func relayHandler(relay *xdsproxy.Proxy) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(relay.Status()) // a disconnected peer needs no answer
	})
}

// DebugHost returns the address of the debug port, which is always a loopback address:
// the address of the other local ports if that is one.
func DebugHost(local string) string {
	switch ip := net.ParseIP(local); {
	case ip == nil || ip.IsLoopback():
		return local
	case ip.To4() == nil:
		return "::1"
	default:
		return "127.0.0.1"
	}
}

// effective returns the settings of the agent as JSON, without values that may be
// secret.
func effective(cfg *settings) ([]byte, error) {
	to := func(u upstream) map[string]any {
		return map[string]any{"address": u.address, "serverName": u.serverName, "roots": u.roots, "tls": u.tlsConfig(nil) != nil}
	}
	files := map[string]string{"bootstrap": cfg.bootstrapFile}
	if cfg.env.GRPCBootstrap != "" {
		files["grpcBootstrap"] = cfg.env.GRPCBootstrap
	}
	doc, err := json.MarshalIndent(map[string]any{
		"version":      cfg.version,
		"node":         map[string]any{"id": cfg.node.String(), "metadata": shownMetadata(cfg)},
		"identity":     map[string]any{"id": cfg.identity.String(), "keyType": cfg.keyType, "files": cfg.source.dir},
		"proxyConfig":  json.RawMessage(redacted(cfg)),
		"controlPlane": to(cfg.xds),
		"authority":    to(cfg.ca),
		"localAddress": cfg.local,
		"files":        files,
		"envoy":        shownArgs(cfg.envoyArgs),
		"environment":  cfg.env.Shown,
		"headers":      slices.Sorted(maps.Keys(cfg.env.Upstream.XDSHeaders)),
		"caHeaders":    slices.Sorted(maps.Keys(cfg.env.Upstream.CAHeaders)),
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(doc, '\n'), nil
}

// shownMetadata returns the metadata of the node for display. Of untyped metadata,
// which may be any variable of the environment, and of annotations it contains only
// the keys.
func shownMetadata(cfg *settings) map[string]any {
	typed := *cfg.metadata
	typed.ProxyConfig, typed.Raw, typed.Annotations = nil, nil, nil
	return map[string]any{
		"typed":       typed,
		"others":      slices.Sorted(maps.Keys(cfg.metadata.Raw)),
		"annotations": slices.Sorted(maps.Keys(cfg.metadata.Annotations)),
	}
}

// shownArgs returns the arguments of Envoy without the text that Envoy merges into the
// bootstrap.
func shownArgs(args []string) []string {
	shown := slices.Clone(args)
	for i, arg := range shown {
		if arg == "--config-yaml" && i+1 < len(shown) {
			shown[i+1] = environ.Hidden
		}
	}
	return shown
}

// redacted returns the ProxyConfig as JSON, without values that may be secret.
func redacted(cfg *settings) string {
	var fields map[string]any
	if err := json.Unmarshal(cfg.metadata.ProxyConfig, &fields); err != nil {
		return ""
	}
	if values, ok := fields["proxyMetadata"].(map[string]any); ok {
		fields["proxyMetadata"] = slices.Sorted(maps.Keys(values))
	}
	delete(fields, "tracing") // may contain an access token
	delete(fields, "caCertificatesPem")
	doc, err := json.Marshal(fields)
	if err != nil {
		return ""
	}
	return string(doc)
}
