// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubejson "sigs.k8s.io/json"
)

// structure fills a struct of the Gateway API or of Kubernetes from YAML
// nodes: it compares the nodes with the struct's JSON tags, so that faults name
// field and line, and leaves the filling to the JSON decoder that the API
// server uses. Fields that the API server would default get their defaults.
func (b *builder) structure(n *yaml.Node, into any, path string) {
	before := b.count()
	tree := b.typed(n, reflect.TypeOf(into), path)
	if b.count() > before {
		return
	}
	raw, err := json.Marshal(tree)
	if err == nil {
		err = kubejson.UnmarshalCaseSensitivePreserveInts(raw, into)
	}
	if err != nil {
		b.errorf(n, "%s cannot be read: %v", path, err)
		return
	}
	validate.ApplyDefaults(into)
}

var (
	intOrString   = reflect.TypeFor[intstr.IntOrString]()
	ownJSON       = reflect.TypeFor[json.Unmarshaler]()
	ownText       = reflect.TypeFor[encoding.TextUnmarshaler]()
	bytesOfBase64 = reflect.TypeFor[[]byte]()
)

// typed returns a node as JSON for a value of a type; nil after a fault.
func (b *builder) typed(n *yaml.Node, t reflect.Type, path string) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch p := reflect.PointerTo(t); {
	case t == intOrString:
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" {
			return b.number(n, reflect.TypeFor[int32](), path)
		}
		return b.str(n, path)
	case p.Implements(ownJSON), p.Implements(ownText):
		return b.readsItself(n, t, path)
	case t.Kind() == reflect.Interface:
		return b.anything(n, path)
	case t == bytesOfBase64:
		return b.base64(n, path)
	}
	switch t.Kind() {
	case reflect.Struct:
		return b.object(n, t, path)
	case reflect.Map:
		return b.entries(n, path, func(value *yaml.Node, at string) any { return b.typed(value, t.Elem(), at) })
	case reflect.Slice:
		return b.list(n, path, func(item *yaml.Node, at string) any { return b.typed(item, t.Elem(), at) })
	case reflect.String:
		return b.str(n, path)
	case reflect.Bool:
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool" {
			return strings.EqualFold(n.Value, "true")
		}
		b.errorf(n, "%s is %s: it must be true or false", path, shape(n))
		return nil
	}
	return b.number(n, t, path)
}

// readsItself returns what a type such as a time makes of a node.
func (b *builder) readsItself(n *yaml.Node, t reflect.Type, path string) any {
	before := b.count()
	tree := b.anything(n, path)
	if b.count() > before {
		return nil
	}
	raw, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	if err != nil {
		b.errorf(n, "%s is %s: %v", path, shape(n), err)
		return nil
	}
	return tree
}

// manyItems is how many items of a list that is too long are still looked at one
// by one.
const manyItems = 1000

// object returns the fields of a mapping.
func (b *builder) object(n *yaml.Node, t reflect.Type, path string) any {
	if n.Kind != yaml.MappingNode {
		b.errorf(n, "%s is %s: it must be a mapping", path, shape(n))
		return nil
	}
	fields := schema.StructFields(t)
	tree := make(map[string]any, len(n.Content)/2)
	Pairs(n, func(key, value *yaml.Node) {
		for _, f := range fields {
			if f.JSONName != key.Value {
				continue
			}
			if isNull(value) {
				return
			}
			at := path + "." + f.JSONName
			if text := validate.ListFault(f, len(value.Content)); text != "" && value.Kind == yaml.SequenceNode && len(value.Content) > manyItems {
				b.errorf(value, "%s %s", at, text)
				tree[f.JSONName] = nil
				return
			}
			tree[f.JSONName] = b.typed(value, f.Type, at)
			if text := validate.WrittenZeroFault(f, tree[f.JSONName]); text != "" {
				b.errorf(value, "%s %s", at, text)
			}
			return
		}
		b.unknown(key, path, func() []string {
			names := make([]string, len(fields))
			for i, f := range fields {
				names[i] = f.JSONName
			}
			return names
		})
	})
	for _, f := range fields {
		if _, ok := tree[f.JSONName]; !ok {
			if text := validate.MissingFault(f); text != "" {
				b.errorf(n, "%s.%s %s", path, f.JSONName, text)
			}
		}
	}
	return tree
}

// entries returns a mapping whose keys are free.
func (b *builder) entries(n *yaml.Node, path string, entry func(*yaml.Node, string) any) any {
	if n.Kind != yaml.MappingNode {
		b.errorf(n, "%s is %s: it must be a mapping", path, shape(n))
		return nil
	}
	tree := make(map[string]any, len(n.Content)/2)
	Pairs(n, func(key, value *yaml.Node) {
		at := field.Key(path, key.Value)
		if isNull(value) {
			b.errorf(value, "%s is empty: write a value, or \"\" for an empty text", at)
			return
		}
		tree[key.Value] = entry(value, at)
	})
	return tree
}

// list returns the items of a sequence.
func (b *builder) list(n *yaml.Node, path string, item func(*yaml.Node, string) any) any {
	if n.Kind != yaml.SequenceNode {
		b.errorf(n, "%s is %s: it must be a list (each item begins with \"- \")", path, shape(n))
		return nil
	}
	tree := make([]any, len(n.Content))
	for i, child := range n.Content {
		at := field.Index(path, i)
		if isNull(child) {
			b.errorf(child, "%s is empty: write it or remove the \"-\"", at)
			continue
		}
		tree[i] = item(child, at)
	}
	return tree
}

// str returns a text.
func (b *builder) str(n *yaml.Node, path string) any {
	if s, ok := b.text(n, path); ok {
		return s
	}
	return nil
}

func (b *builder) base64(n *yaml.Node, path string) any {
	if n.Kind == yaml.ScalarNode {
		if raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(n.Value), "")); err == nil {
			return raw
		}
	}
	b.errorf(n, "%s is %s: it must be bytes in base64", path, shape(n))
	return nil
}

// number returns a number that fits the type. Unlike the fields of protobuf,
// these take no numbers in quotes.
func (b *builder) number(n *yaml.Node, t reflect.Type, path string) any {
	quoted := n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str"
	if t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64 {
		f, ok := number(n)
		if !ok || quoted || math.IsNaN(f) || math.IsInf(f, 0) {
			b.errorf(n, "%s is %s: it must be a number", path, shape(n))
			return nil
		}
		return f
	}
	v, ok := wholeNumber(n)
	if !ok || quoted {
		b.errorf(n, "%s is %s: it must be a whole number%s", path, shape(n), unquote(n, ok && quoted))
		return nil
	}
	low, high := int64(math.MinInt64), int64(math.MaxInt64)
	switch bits := t.Bits(); {
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uintptr:
		if low = 0; bits < 64 {
			high = 1<<bits - 1
		}
	case bits < 64:
		low, high = -1<<(bits-1), 1<<(bits-1)-1
	}
	if v < low || v > high {
		b.errorf(n, "%s is %d: it must be between %d and %d", path, v, low, high)
		return nil
	}
	return v
}

func unquote(n *yaml.Node, quoted bool) string {
	if !quoted {
		return ""
	}
	return "; write " + field.Clip(n.Value, field.MaxKeyText) + " without quotes"
}

// anything returns a node whose type says nothing about its shape.
func (b *builder) anything(n *yaml.Node, path string) any {
	switch n.Kind {
	case yaml.MappingNode:
		tree := make(map[string]any, len(n.Content)/2)
		Pairs(n, func(key, value *yaml.Node) { tree[key.Value] = b.anything(value, field.Key(path, key.Value)) })
		return tree
	case yaml.SequenceNode:
		tree := make([]any, len(n.Content))
		for i, item := range n.Content {
			tree[i] = b.anything(item, field.Index(path, i))
		}
		return tree
	}
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!bool":
		return strings.EqualFold(n.Value, "true")
	case "!!int":
		var v int64
		if err := n.Decode(&v); err == nil {
			return v
		}
	case "!!float":
		f, ok := number(n)
		if ok && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f
		}
		b.errorf(n, "%s is %s: it must be a finite number, or text in quotes", path, shape(n))
		return nil
	}
	return n.Value
}

// neverEmpty are the fields of protobuf that may be left out and may not be
// empty, which messages cannot distinguish: a person who writes "from: []" means
// the opposite of what leaving it out means. It is never written to.
var neverEmpty = map[protoreflect.FullName]string{
	"istio.extensions.v1alpha1.WasmConfig.image_pull_secret":          "write the name of a Secret, or remove it",
	"istio.extensions.v1alpha1.WasmConfig.plugin_name":                "write a name, or remove it",
	"istio.extensions.v1alpha1.WasmPlugin.image_pull_secret":          "write the name of a Secret, or remove it",
	"istio.extensions.v1alpha1.WasmPlugin.plugin_name":                "write a name, or remove it",
	"istio.networking.v1alpha3.EnvoyFilter.WaypointMatch.port_number": "write a port between 1 and 65535, or remove it",
	"istio.networking.v1alpha3.HTTPBody.bytes":                        "write the body in base64",
	"istio.networking.v1alpha3.ServerTLSSettings.tls_certificates":    "write a certificate, or remove it",
	"istio.networking.v1alpha3.ServicePort.target_port":               "write a port between 1 and 65535, or remove it",
	"istio.security.v1beta1.JWTRule.jwks_uri":                         "write the URL of the keys, or remove it",
	"istio.security.v1beta1.Rule.from":                                "write a source, or remove it to mean all clients",
	"istio.security.v1beta1.Rule.to":                                  "write an operation, or remove it to mean everything",
	"istio.security.v1beta1.PeerAuthentication.port_level_mtls":       "write a port, or remove it",
	"istio.telemetry.v1alpha1.MetricsOverrides.TagOverride.value":     "write an expression, or remove it",
}

// emptyFault refuses an empty list, mapping or value where it means nothing. A
// cluster may hold values from a time before its definitions refused them.
func (b *builder) emptyFault(n *yaml.Node, fd protoreflect.FieldDescriptor, path string) {
	cure, ok := neverEmpty[fd.FullName()]
	switch {
	case !ok || len(n.Content) > 0 || b.lenient && n.Kind == yaml.ScalarNode:
	case n.Kind == yaml.ScalarNode && n.Value == "0":
		b.errorf(n, "%s is 0: %s", path, cure)
	case n.Kind != yaml.ScalarNode || n.Value == "":
		b.errorf(n, "%s is empty: %s", path, cure)
	}
}
