// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// Names of the messages that are inspected.
const (
	extensionType   = "envoy.config.core.v3.TypedExtensionConfig"
	wrapperType     = "envoy.service.discovery.v3.Resource"
	wasmType        = "envoy.extensions.filters.http.wasm.v3.Wasm"
	rbacType        = "envoy.extensions.filters.http.rbac.v3.RBAC"
	udpaTypedStruct = "udpa.type.v1.TypedStruct"
	xdsTypedStruct  = "xds.type.v3.TypedStruct"
)

// Fields of TypedExtensionConfig, both TypedStructs and Resource.
const (
	structTypeURL = 1
	structValue   = 2
)

// Fallback is what replaces a resource that could not be converted.
type Fallback string

const (
	// Opened is a filter that allows all requests, if the plugin fails open: an RBAC filter without
	// rules.
	Opened Fallback = "opened"
	// Kept is the last converted version of the same resource.
	Kept Fallback = "kept"
	// Denied is a filter that denies all requests: an RBAC filter whose rules match nothing.
	// Without a filter, the listener would wait for it, and requests would bypass it on the
	// previous listener.
	Denied Fallback = "denied"
	// Withheld means that nothing is sent, because the intended resource is unknown. Envoy keeps
	// its previous resource, as when it rejects one itself.
	Withheld Fallback = "withheld"
)

// Outcome is the result of the conversion of one resource.
type Outcome struct {
	// Name is the name of the extension configuration, or "" if it cannot be read.
	Name string
	// Resource is the google.protobuf.Any to send. It is the original one if there is nothing to
	// convert, and nil if the resource is withheld.
	Resource []byte
	// Fallback is set, together with Err, if the resource could not be converted.
	Fallback Fallback
	Err      error
}

// maxConversions is the maximum number of concurrent conversions.
const maxConversions = 64

// Rewrite converts resources concurrently, each a serialized google.protobuf.Any. The outcomes are
// in the order of the resources. A resource that cannot be converted does not affect the others.
func (c *Cache) Rewrite(ctx context.Context, resources [][]byte) []Outcome {
	outcomes := make([]Outcome, len(resources))
	var g errgroup.Group
	g.SetLimit(maxConversions)
	for i, b := range resources {
		g.Go(func() error {
			outcomes[i] = c.convert(ctx, b)
			return nil
		})
	}
	_ = g.Wait() // the goroutines return no errors
	return outcomes
}

// convert converts one resource and updates the metrics.
func (c *Cache) convert(ctx context.Context, b []byte) Outcome {
	start := time.Now()
	e, result, err := c.rewriteExtension(ctx, b)
	c.metrics.conversions.WithLabelValues(result).Inc()
	c.metrics.duration.Observe(time.Since(start).Seconds() * millisecondsPerSecond)
	o := Outcome{Name: e.name, Resource: e.out, Err: err}
	if err == nil {
		return o
	}
	err = brief(err)
	o.Err = brief(fmt.Errorf("extension configuration %q: %w", e.name, err))
	o.Resource, o.Fallback = nil, Withheld
	if last, ok := c.store.lastGood(e.name); e.failOpen {
		o.Resource, o.Fallback = e.wrap(rbacFilter(e.name, nil)), Opened
	} else if ok {
		o.Resource, o.Fallback = e.wrap(last), Kept
	} else if e.isPlugin {
		o.Resource, o.Fallback = e.wrap(rbacFilter(e.name, noRules)), Denied
	}
	if ctx.Err() != nil {
		return o // the request has been cancelled
	}
	c.metrics.fallbacks.WithLabelValues(string(o.Fallback)).Inc()
	c.log.Warn("an extension configuration could not be converted", "resource", e.name, "kind", string(o.Fallback), "err", err)
	return o
}

// noRules is the config of an RBAC filter with an empty set of rules, which denies all requests. An
// RBAC filter without the rules field allows all.
var noRules = []byte{1<<3 | 2, 0}

// rbacFilter returns an HTTP filter that allows or denies all requests.
func rbacFilter(name string, config []byte) []byte {
	b := wire.Append(nil, wire.ExtensionName, name)
	return newAny(extensionType, wire.Append(b, wire.ExtensionConfig, newAny(rbacType, config)))
}

// extension is the state of the conversion of one resource.
type extension struct {
	name     string
	failOpen bool
	isPlugin bool   // it is a Wasm filter
	wrapper  []byte // the enclosing discovery Resource, or nil
	out      []byte // the Any to send
}

// wrap encloses a resource in the wrapper of the original one.
func (e *extension) wrap(b []byte) []byte {
	if e.wrapper == nil {
		return b
	}
	w, err := replace(e.wrapper, wire.ResourceAny, b)
	if err != nil {
		return b // cannot happen: the wrapper has been parsed before
	}
	return newAny(wrapperType, w)
}

// rewriteExtension parses a resource and, if it is a Wasm filter with remote code, downloads the
// code and rewrites the resource.
func (c *Cache) rewriteExtension(ctx context.Context, b []byte) (e extension, result string, err error) {
	e.out = b
	typeName, body, err := openAny(b)
	if err == nil && typeName == wrapperType {
		e.wrapper = body
		var inner []byte
		if inner, _, err = message(body, wire.ResourceAny); err == nil {
			typeName, body, err = openAny(inner)
		}
	}
	if err != nil {
		return e, unmarshalFailure, err
	}
	if typeName != extensionType {
		return e, unmarshalFailure, fmt.Errorf("the resource is a %s, not a %s", typeName, extensionType)
	}
	if e.name, err = text(body, wire.ExtensionName); err != nil {
		return e, unmarshalFailure, err
	}
	config, _, err := message(body, wire.ExtensionConfig)
	if err != nil {
		return e, unmarshalFailure, err
	}
	f, err := openFilterConfig(config)
	if err != nil {
		return e, unmarshalFailure, err
	}
	if f.encoding == nil {
		if err := c.Check(body); err != nil { // a Wasm extension inside another filter, or of another kind
			return e, conversionFetch, err
		}
		c.store.forget(e.name)
		return e, noRemoteLoad, nil
	}
	p, err := readPlugin(f.encoding, f.plugin)
	e.failOpen, e.isPlugin = p.failOpen, true
	if errors.Is(err, errNoCode) {
		return e, missRemoteFetchHint, err
	}
	if err != nil {
		e.failOpen, e.isPlugin = false, false // nothing that was parsed can be trusted
		return e, unmarshalFailure, err
	}
	if p.file != "" {
		// Envoy reads a copy of the file that was checked.
		p.local, p.uri = false, fileURL(p.file)
	}
	if p.local && len(p.hints) == 0 {
		c.store.forget(e.name)
		return e, noRemoteLoad, nil
	}
	result, err = c.rewriteFilter(ctx, &e, p, func(filename string) ([]byte, error) {
		return f.write(body, filename)
	})
	return e, result, err
}

// rewriteFilter downloads the module of a plugin and rewrites the resource to refer to its file.
func (c *Cache) rewriteFilter(ctx context.Context, e *extension, p plugin, write func(string) ([]byte, error)) (string, error) {
	filename, result := "", noRemoteLoad
	var key moduleKey
	if !p.local {
		r, err := newRequest(e.name, p)
		if err != nil {
			return conversionFetch, err
		}
		if key, err = c.get(ctx, r); err != nil {
			return conversionFetch, err
		}
		filename, result = c.store.path(key), converted
	}
	body, err := write(filename)
	if err != nil {
		return marshalFailure, err
	}
	out := newAny(extensionType, body)
	e.out = e.wrap(out)
	if p.local {
		c.store.forget(e.name)
		return result, nil
	}
	if !c.store.remember(e.name, out, key) {
		return conversionFetch, errors.New("the module was evicted for another one; raise the limit of the cache")
	}
	return result, nil
}

// filterConfig is the typed configuration of a filter.
type filterConfig struct {
	encoding encoding // nil if it is not a Wasm filter
	outer    string   // type name of the TypedStruct, or ""
	value    []byte   // value of the Any
	plugin   []byte   // the encoded plugin
}

func openFilterConfig(b []byte) (filterConfig, error) {
	var f filterConfig
	typeName, v, err := openAny(b)
	if err != nil {
		return f, err
	}
	switch typeName {
	case wasmType:
		return filterConfig{encoding: native{}, value: v, plugin: v}, nil
	case udpaTypedStruct, xdsTypedStruct:
		inner, err := text(v, structTypeURL)
		if err != nil || messageName(inner) != wasmType {
			return f, err
		}
		s, _, err := message(v, structValue)
		return filterConfig{encoding: structured{}, outer: typeName, value: v, plugin: s}, err
	}
	return f, nil
}

// write returns the TypedExtensionConfig with the plugin's code in a file.
func (f filterConfig) write(extension []byte, filename string) ([]byte, error) {
	p, err := writePlugin(f.encoding, f.plugin, filename)
	if err != nil {
		return nil, err
	}
	config := newAny(wasmType, p)
	if f.outer != "" {
		v, err := replace(f.value, structValue, p)
		if err != nil {
			return nil, err
		}
		config = newAny(f.outer, v)
	}
	return replace(extension, wire.ExtensionConfig, config)
}
