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

// Names of the messages that are looked into.
const (
	extensionType   = "envoy.config.core.v3.TypedExtensionConfig"
	wrapperType     = "envoy.service.discovery.v3.Resource"
	wasmType        = "envoy.extensions.filters.http.wasm.v3.Wasm"
	rbacType        = "envoy.extensions.filters.http.rbac.v3.RBAC"
	udpaTypedStruct = "udpa.type.v1.TypedStruct"
	xdsTypedStruct  = "xds.type.v3.TypedStruct"
)

// Fields of TypedExtensionConfig, of both TypedStructs and of Resource.
const (
	structTypeURL = 1
	structValue   = 2
)

// Fallback is what takes the place of a resource that could not be converted.
type Fallback string

const (
	// Opened is a filter that lets everything pass, where the plugin asks for
	// that: an RBAC filter without rules.
	Opened Fallback = "opened"
	// Kept is what the same resource was converted to before.
	Kept Fallback = "kept"
	// Denied is a filter that refuses every request: an RBAC filter whose rules
	// nothing meets. Without a filter the listener would wait for it, and
	// requests would pass by what was there before.
	Denied Fallback = "denied"
	// Withheld is nothing, as nobody knows what it should be: Envoy keeps what
	// it has, as it does with a resource that it rejects itself.
	Withheld Fallback = "withheld"
)

// Outcome is what became of one resource.
type Outcome struct {
	// Name of the extension configuration; empty if it cannot be read.
	Name string
	// Resource is the google.protobuf.Any to send. It is the given one where
	// there is nothing to convert, and nil if the resource is withheld.
	Resource []byte
	// Fallback is set, with Err, if the resource could not be converted.
	Fallback Fallback
	Err      error
}

// maxConversions is how many resources are converted side by side.
const maxConversions = 64

// Rewrite converts resources, each a serialized google.protobuf.Any, side by
// side. The outcomes have the order of the resources. A resource that cannot
// be converted has no effect on the others.
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
	_ = g.Wait() // no goroutine returns an error
	return outcomes
}

// convert converts one resource and counts how that went.
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
		return o // nobody waits for it any more
	}
	c.metrics.fallbacks.WithLabelValues(string(o.Fallback)).Inc()
	c.log.Warn("an extension configuration could not be converted", "resource", e.name, "kind", string(o.Fallback), "err", err)
	return o
}

// noRules is an RBAC filter's config with rules, of which there are none: what
// no rule allows is refused. Without rules all passes.
var noRules = []byte{1<<3 | 2, 0}

// rbacFilter is an HTTP filter that lets everything pass, or nothing.
func rbacFilter(name string, config []byte) []byte {
	b := wire.Append(nil, wire.ExtensionName, name)
	return newAny(extensionType, wire.Append(b, wire.ExtensionConfig, newAny(rbacType, config)))
}

// extension is one resource on its way.
type extension struct {
	name     string
	failOpen bool
	isPlugin bool   // it is a Wasm filter
	wrapper  []byte // a discovery Resource around it, or nil
	out      []byte // the Any to send
}

// wrap puts a resource into the wrapper that the original one came in.
func (e *extension) wrap(b []byte) []byte {
	if e.wrapper == nil {
		return b
	}
	w, err := replace(e.wrapper, wire.ResourceAny, b)
	if err != nil {
		return b // not possible: the wrapper was read before
	}
	return newAny(wrapperType, w)
}

// rewriteExtension reads a resource and, if it is a Wasm filter with remote
// code, fetches the code and writes the resource anew.
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
		if err := c.Check(body); err != nil { // in another filter, or of another kind
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
		e.failOpen, e.isPlugin = false, false // nothing that was read is to be trusted
		return e, unmarshalFailure, err
	}
	if p.file != "" {
		// What Envoy reads is a copy of what was checked.
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

// rewriteFilter fetches the module of a plugin and writes the resource with
// its file.
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
		return conversionFetch, errors.New("the module had to make room for another; raise the limit of the cache")
	}
	return result, nil
}

// filterConfig is a filter's typed configuration.
type filterConfig struct {
	encoding encoding // nil if the filter is no Wasm filter
	outer    string   // name of the TypedStruct's type; empty without one
	value    []byte   // what is in the Any
	plugin   []byte   // the plugin, in its encoding
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

// write returns the TypedExtensionConfig with the plugin's code as a file.
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
