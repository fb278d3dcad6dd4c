// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/internal/aliases"
)

// Parse applies MeshConfigs in YAML (or JSON) to the defaults, in order, and validates the result.
// Top-level fields replace earlier values, with these exceptions: defaultConfig merges as in
// ApplyProxyConfig, defaultProviders merges field by field, extensionProviders merges by name, and
// trustDomainAliases is sorted and deduplicated.
func Parse(docs ...[]byte) (*meshv1alpha1.MeshConfig, error) {
	mesh := Default()
	for _, doc := range docs {
		if err := apply(mesh, doc); err != nil {
			return nil, fmt.Errorf("mesh config: %w", err)
		}
	}
	if err := validateMesh(mesh); err != nil {
		return nil, fmt.Errorf("mesh config: %w", err)
	}
	return mesh, nil
}

// apply applies one document to a MeshConfig.
func apply(mesh *meshv1alpha1.MeshConfig, doc []byte) error {
	fields, err := decode(doc)
	if err != nil {
		return err
	}
	proxyConfig := take(fields, "defaultConfig", "default_config")
	providers := take(fields, "defaultProviders", "default_providers")
	beneath := slices.Clone(mesh.ExtensionProviders)
	if err := overlay(mesh.ProtoReflect(), fields, ""); err != nil {
		return err
	}
	if err := overlaySub(mesh.DefaultConfig.ProtoReflect(), proxyConfig, "defaultConfig"); err != nil {
		return err
	}
	if err := overlaySub(mesh.DefaultProviders.ProtoReflect(), providers, "defaultProviders"); err != nil {
		return err
	}
	mesh.ExtensionProviders = mergeProviders(beneath, mesh.ExtensionProviders)
	slices.Sort(mesh.TrustDomainAliases)
	mesh.TrustDomainAliases = slices.Compact(mesh.TrustDomainAliases)
	return nil
}

// ApplyProxyConfig applies a ProxyConfig in YAML (or JSON) to a copy of base. Top-level fields,
// including sub-messages, lists and maps, replace those of base as a whole; only proxyMetadata
// merges key by key. The result is not validated, since further overlays may follow: see
// ValidateProxyConfig.
func ApplyProxyConfig(base *meshv1alpha1.ProxyConfig, doc string) (*meshv1alpha1.ProxyConfig, error) {
	fields, err := decode([]byte(doc))
	if err != nil {
		return nil, err
	}
	result, ok := proto.Clone(base).(*meshv1alpha1.ProxyConfig)
	if !ok {
		return nil, errors.New("the base is not a ProxyConfig")
	}
	if err := overlay(result.ProtoReflect(), fields, ""); err != nil {
		return nil, err
	}
	return result, nil
}

// HasField reports whether a document sets a field. The path names the parents first, as in
// "defaultConfig", "tracing". HasField returns false for a document that cannot be parsed.
func HasField(doc []byte, path ...string) bool {
	value, err := decode(doc)
	if err != nil || len(path) == 0 {
		return false
	}
	var field any = value
	for _, name := range path {
		value, ok := field.(map[string]any)
		if !ok {
			return false
		}
		field = nil
		for key, set := range value {
			if set != nil && strings.EqualFold(strings.ReplaceAll(key, "_", ""), name) {
				field = set
			}
		}
	}
	return field != nil
}

// overlaySub applies one field of a document to a sub-message.
func overlaySub(message protoreflect.Message, value any, path string) error {
	if value == nil {
		return nil
	}
	fields, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("field %s must be a mapping", path)
	}
	return overlay(message, fields, path+".")
}

// overlay sets each field of the document in the message; a null leaves the field unchanged. It
// decodes one field at a time, to distinguish a field set to its zero value from an unset one, and
// to name the field in errors.
func overlay(message protoreflect.Message, fields map[string]any, path string) error {
	options := protojson.UnmarshalOptions{DiscardUnknown: true}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		field := fieldOf(message.Descriptor(), key)
		if field == nil || fields[key] == nil {
			continue
		}
		if err := checkTexts(field, fields[key], path+key); err != nil {
			return err
		}
		value, err := canonical(field, fields[key], path+key)
		if err != nil {
			return err
		}
		one, err := json.Marshal(map[string]any{key: value})
		if err != nil {
			return fmt.Errorf("field %s%s: %w", path, key, err)
		}
		decoded := message.New()
		if err := options.Unmarshal(one, decoded.Interface()); err != nil {
			return fmt.Errorf("field %s%s: %s", path, key, reason(err))
		}
		switch {
		case field.Name() == "proxy_metadata" && field.IsMap():
			merged := message.Mutable(field).Map()
			decoded.Get(field).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				merged.Set(k, v)
				return true
			})
		case decoded.Has(field):
			message.Set(field, decoded.Get(field))
		default:
			message.Clear(field)
		}
	}
	return nil
}

// checkTexts rejects non-string values, such as an unquoted true, in a map of strings. The error
// does not contain the value: proxyMetadata may hold secrets.
func checkTexts(field protoreflect.FieldDescriptor, value any, path string) error {
	if !field.IsMap() || field.MapValue().Kind() != protoreflect.StringKind {
		return nil
	}
	texts, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("field %s must be a mapping of names to texts", path)
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if _, ok := texts[name].(string); !ok {
			return fmt.Errorf("field %s: the value of %s is not text; write it in quotes", path, name)
		}
	}
	return nil
}

// mergeProviders replaces the providers of base that have the same name as one in set and appends
// the others.
func mergeProviders(base, set []*meshv1alpha1.MeshConfig_ExtensionProvider) []*meshv1alpha1.MeshConfig_ExtensionProvider {
	for _, provider := range set {
		i := slices.IndexFunc(base, func(p *meshv1alpha1.MeshConfig_ExtensionProvider) bool { return p.GetName() == provider.GetName() })
		if i >= 0 {
			base[i] = provider
		} else {
			base = append(base, provider)
		}
	}
	return base
}

// decode parses one YAML document that is a mapping or empty.
func decode(doc []byte) (map[string]any, error) {
	if err := aliases.Check(doc); err != nil {
		return nil, err
	}
	var value any
	if err := yaml.Unmarshal(doc, &value); err != nil {
		return nil, err
	}
	if value == nil {
		return map[string]any{}, nil
	}
	fields, ok := jsonable(value).(map[string]any)
	if !ok {
		return nil, errors.New("the document must be a mapping of fields")
	}
	return fields, nil
}

// jsonable converts the keys of all mappings to strings, as JSON requires.
func jsonable(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, item := range v {
			v[key] = jsonable(item)
		}
		return v
	case map[any]any:
		converted := make(map[string]any, len(v))
		for key, item := range v {
			converted[fmt.Sprint(key)] = jsonable(item)
		}
		return converted
	case []any:
		for i, item := range v {
			v[i] = jsonable(item)
		}
		return v
	}
	return value
}

// take removes a field from a document under any of its spellings and returns its value.
func take(fields map[string]any, spellings ...string) any {
	var value any
	for _, key := range spellings {
		if v, ok := fields[key]; ok {
			value = v
			delete(fields, key)
		}
	}
	return value
}

// reason returns the text of a protojson error without its prefix and position. The position refers
// to generated JSON text, which is of no use to the user.
func reason(err error) string {
	text := strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
	if _, after, ok := strings.Cut(text, "): "); ok && strings.HasPrefix(text, "(line ") {
		return after
	}
	return text
}
