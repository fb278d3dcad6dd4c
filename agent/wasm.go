// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm"
)

// typeExtension is the type of resources that may refer to a Wasm module.
const typeExtension = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// wasmCache creates the cache of Wasm modules.
func (b *builder) wasmCache() (err error) {
	e := b.cfg.env.Wasm
	if !e.Convert || b.cfg.env.Envoy.Disabled {
		return nil
	}
	dir, err := filepath.Abs(dataDir) // Envoy may have another working directory
	if err != nil {
		return err
	}
	b.parts.wasm, err = wasm.New(wasm.Config{
		Dir: dir, FileDir: e.FileDir, DockerConfigDir: e.DockerConfigDir, InsecureRegistries: e.InsecureRegistries, AllowedHosts: e.AllowedHosts,
		Expiry: e.Expiry, PurgeInterval: e.PurgeInterval, HTTPTimeout: e.HTTPTimeout, HTTPMaxAttempts: e.HTTPAttempts, MaxCacheBytes: int64(e.CacheBytes), TLS: b.cfg.env.Compliance,
		Logger: b.logger("wasm"), Registerer: b.registry,
	})
	return err
}

// rewriters returns the functions that change responses, by type.
func (b *builder) rewriters() map[string]xdsproxy.Rewriter {
	cache := b.parts.wasm
	if cache == nil {
		return nil
	}
	return map[string]xdsproxy.Rewriter{typeExtension: func(ctx context.Context, response []byte, delta bool) ([]byte, string) {
		r := cache.RewriteResponse(ctx, response, delta)
		if len(r.Failures) == 0 {
			return r.Frame, ""
		}
		return r.Frame, r.Reason()
	}}
}

// fileCheck returns a check of all responses that prevents Envoy from loading Wasm
// modules from files outside of their directory. It returns nil if modules are left to
// Envoy.
func (b *builder) fileCheck() *xdsproxy.Check {
	if b.parts.wasm == nil {
		return nil
	}
	return &xdsproxy.Check{Marker: wasm.Marker, Func: b.parts.wasm.Check}
}

// checkWasm returns an error for invalid settings of the cache.
func checkWasm(e environ.Values) error {
	if e.Wasm.HTTPAttempts < 1 {
		return errors.New("environment variable WASM_HTTP_REQUEST_MAX_RETRIES is 0; it must be 1 or more: it counts the first request too")
	}
	if e.Wasm.CacheBytes < 1<<20 {
		return fmt.Errorf("environment variable OUTRIGGER_WASM_CACHE_BYTES is %s; it must be 1048576 or more", strconv.Itoa(e.Wasm.CacheBytes))
	}
	return nil
}

// coldWait is how long Envoy's start without a control plane waits for Wasm modules
// that are not in the cache. Their download continues.
const coldWait = 300 * time.Millisecond

// coldExtensions returns a function that replaces Wasm modules by their files when
// Envoy starts without a control plane, or nil if modules are left to Envoy.
func (b *builder) coldExtensions() func(context.Context, [][]byte) [][]byte {
	if !b.cfg.env.Wasm.Convert {
		return nil
	}
	return func(ctx context.Context, resources [][]byte) [][]byte {
		ctx, cancel := context.WithTimeout(ctx, coldWait)
		defer cancel()
		out := make([][]byte, len(resources))
		for i, o := range b.parts.wasm.Rewrite(ctx, resources) { // the cache logs failures
			out[i] = o.Resource
		}
		return out
	}
}
