// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
)

// schema is the part of JSON Schema that the chart's values.schema.json uses. Other keywords are
// errors when the schema is read, so that none is left out silently.
type schema struct {
	Dialect     string             `json:"$schema"`
	Title       string             `json:"title"`
	Definitions map[string]*schema `json:"definitions"`

	Ref                  string             `json:"$ref"`
	Type                 texts              `json:"type"`
	Enum                 []any              `json:"enum"`
	AnyOf                []*schema          `json:"anyOf"`
	Not                  *schema            `json:"not"`
	Pattern              string             `json:"pattern"`
	MinLength            int                `json:"minLength"`
	MaxLength            *int               `json:"maxLength"`
	Minimum              *float64           `json:"minimum"`
	Items                *schema            `json:"items"`
	UniqueItems          bool               `json:"uniqueItems"`
	Properties           map[string]*schema `json:"properties"`
	PropertyNames        *schema            `json:"propertyNames"`
	AdditionalProperties *others            `json:"additionalProperties"`
}

// texts is one text or a list of them.
type texts []string

func (t *texts) UnmarshalJSON(doc []byte) error {
	if bytes.HasPrefix(doc, []byte(`"`)) {
		*t = texts{""}
		return json.Unmarshal(doc, &(*t)[0])
	}
	return json.Unmarshal(doc, (*[]string)(t))
}

// others says which properties beside the named ones an object may have: none without a schema.
type others struct{ schema *schema }

func (o *others) UnmarshalJSON(doc []byte) error {
	if string(doc) == "false" {
		return nil
	}
	return strictly(doc, &o.schema)
}

func strictly(doc []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	return d.Decode(to)
}

func parseSchema(doc []byte) (*schema, error) {
	s := &schema{}
	if err := strictly(doc, s); err != nil {
		return nil, fmt.Errorf("values.schema.json: %w", err)
	}
	return s, nil
}

// check returns an error that names the first value that the schema does not allow.
func (s *schema) check(values map[string]any) error {
	if err := s.value(s, "", values); err != nil {
		return fmt.Errorf("value %w", err)
	}
	return nil
}

// value checks one value; root has the definitions.
func (s *schema) value(root *schema, path string, v any) error {
	if name, ok := strings.CutPrefix(s.Ref, "#/definitions/"); ok {
		return root.Definitions[name].value(root, path, v)
	}
	if len(s.Type) > 0 && !slices.ContainsFunc(s.Type, func(name string) bool { return hasType(v, name) }) {
		return fmt.Errorf("%s is %s: it must be of type %s", path, show(v), strings.Join(s.Type, " or "))
	}
	if s.Enum != nil && !slices.ContainsFunc(s.Enum, func(one any) bool { return reflect.DeepEqual(one, v) }) {
		return fmt.Errorf("%s is %s: it must be one of %s", path, show(v), show(s.Enum))
	}
	if s.Not != nil && s.Not.value(root, path, v) == nil {
		return fmt.Errorf("%s is %s: the chart sets it itself", path, show(v))
	}
	var err error
	for _, option := range s.AnyOf {
		if err = option.value(root, path, v); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case string:
		return s.text(path, v)
	case int64:
		return s.number(path, float64(v))
	case float64:
		return s.number(path, v)
	case []any:
		return s.list(root, path, v)
	case map[string]any:
		return s.object(root, path, v)
	}
	return nil
}

// hasType reports whether a value has a type of JSON Schema.
func hasType(v any, name string) bool {
	var is string
	switch v.(type) {
	case nil:
		is = "null"
	case bool:
		is = "boolean"
	case string:
		is = "string"
	case int64:
		return name == "integer" || name == "number"
	case float64:
		is = "number"
	case []any:
		is = "array"
	case map[string]any:
		is = "object"
	}
	return name == is
}

func (s *schema) text(path, v string) error {
	if s.MaxLength != nil && utf8.RuneCountInString(v) > *s.MaxLength {
		return fmt.Errorf("%s is %s: it may have at most %d characters", path, field.Quote(v), *s.MaxLength)
	}
	if len(v) < s.MinLength {
		return fmt.Errorf("%s is empty: write a text", path)
	}
	if s.Pattern != "" {
		re, err := regexp.Compile(s.Pattern)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if !re.MatchString(v) {
			return fmt.Errorf("%s is %s: it must match %s", path, field.Quote(v), s.Pattern)
		}
	}
	return nil
}

func (s *schema) number(path string, v float64) error {
	if s.Minimum != nil && v < *s.Minimum {
		return fmt.Errorf("%s is %v: it must be %v or more", path, v, *s.Minimum)
	}
	return nil
}

func (s *schema) list(root *schema, path string, v []any) error {
	for i, item := range v {
		at := field.Index(path, i)
		if s.UniqueItems && slices.ContainsFunc(v[:i], func(other any) bool { return reflect.DeepEqual(item, other) }) {
			return fmt.Errorf("%s is a duplicate: %s", at, show(item))
		}
		if s.Items != nil {
			if err := s.Items.value(root, at, item); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *schema) object(root *schema, path string, v map[string]any) error {
	for key, value := range field.Sorted(v) {
		at := key
		if path != "" {
			at = path + "." + key
		}
		if s.PropertyNames != nil {
			if err := s.PropertyNames.value(root, at, key); err != nil {
				return err
			}
		}
		inner := s.Properties[key]
		if inner == nil && s.AdditionalProperties != nil {
			if inner = s.AdditionalProperties.schema; inner == nil {
				return fmt.Errorf("%s is not known%s", at, field.DidYouMean(key, slices.Sorted(maps.Keys(s.Properties))))
			}
		}
		if inner != nil {
			if err := inner.value(root, at, value); err != nil {
				return err
			}
		}
	}
	return nil
}
