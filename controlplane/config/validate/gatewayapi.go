// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The rules of the Gateway API are those of its CustomResourceDefinitions: of
// the experimental channel, which knows every field of the types, but for the
// few that the standard channel does not have. In Kubernetes the API server
// applies them; here they hold for every store. The
// tables below say what one value has to be, by type or by field;
// validate_gatewayapi_rules.go has the rules that compare several. A test holds
// all of them to the definitions.

// validateGatewayAPI checks a spec of the Gateway API, with its defaults in
// place.
func validateGatewayAPI(c *checker, cfg *model.Config) {
	spec := model.CloneSpec(cfg.Spec)
	ApplyDefaults(spec)
	c.gatewayStruct(reflect.ValueOf(spec).Elem(), "spec")
}

// gatewayStruct checks the fields of a struct, then the struct as a whole.
func (c *checker) gatewayStruct(v reflect.Value, path string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			c.gatewayStruct(v.Field(i), path)
			continue
		}
		member := schema.StructField{JSONName: name, Owner: v.Type(), StructField: f}
		value := v.Field(i)
		switch empty := unset(value); {
		case empty && !requiredField(member):
			continue
		case empty && (f.Type.Kind() == reflect.Slice || f.Type.Kind() == reflect.Pointer):
			c.errorf(path+"."+name, "%s", missingText(member))
			continue
		}
		c.gatewayValue(value, member, path+"."+name)
	}
	if rule, ok := gatewayRules[v.Type()]; ok {
		rule(c, v, path)
	}
}

func unset(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.Pointer:
		return v.IsNil()
	}
	return v.IsZero()
}

// gatewayValue checks the value of a field, or an item of it.
func (c *checker) gatewayValue(v reflect.Value, f schema.StructField, path string) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	limits := limitsOf(f)
	switch v.Kind() {
	case reflect.Struct:
		if v.Type().PkgPath() == gatewayPackage {
			c.gatewayStruct(v, path)
		} else if selector, ok := v.Interface().(metav1.LabelSelector); ok {
			c.labelSelector(&selector, path)
		}
	case reflect.Slice:
		c.fault(path, limits.lengthFault(v.Len(), "entries"))
		for i := range v.Len() {
			c.gatewayValue(v.Index(i), schema.StructField{JSONName: f.JSONName, Owner: f.Owner, StructField: reflect.StructField{Type: v.Type().Elem()}}, field.Index(path, i))
		}
		c.unique(v, limits.unique, path)
	case reflect.Map:
		c.fault(path, limits.lengthFault(v.Len(), "entries"))
		for k, value := range sortedValues(v) {
			c.fault(field.Key(path, k), textRules[value.Type()].fault(value.String()))
		}
	default:
		c.fault(path, scalarFault(v, f))
	}
	if rule, ok := gatewayRules[v.Type()]; ok && v.Kind() != reflect.Struct {
		rule(c, v, path)
	}
}

// scalarFault checks one text or number.
func scalarFault(v reflect.Value, f schema.StructField) string {
	switch {
	case v.Kind() == reflect.String:
		rule, ok := textRules[v.Type()]
		if own, has := fieldTexts[f.Key()]; has {
			rule, ok = own, true
		}
		if ok {
			return rule.fault(v.String())
		}
	case v.CanInt():
		return numberRules[f.Key()].fault(v.Int())
	}
	return ""
}

// requiredField reports whether YAML must have the field.
func requiredField(f schema.StructField) bool {
	switch f.Owner.PkgPath() {
	case gatewayPackage, metaPackage:
		return !f.Optional() || requiredAnyway[f.Key()]
	}
	return false // the API server takes the zero value of its own types
}

// requiredAnyway are the required fields whose tags say otherwise.
var requiredAnyway = map[string]bool{
	"BackendTLSPolicySpec.targetRefs":   true,
	"HTTPExternalAuthFilter.protocol":   true,
	"HTTPExternalAuthFilter.backendRef": true,
	"ListenerSetSpec.parentRef":         true,
	"ListenerSetSpec.listeners":         true,
	"ListenerEntry.name":                true,
	"ListenerEntry.port":                true,
	"ListenerEntry.protocol":            true,
	"TCPRouteSpec.rules":                true,
	"TCPRouteRule.backendRefs":          true,
	"TLSRouteSpec.hostnames":            true,
	"TLSRouteSpec.rules":                true,
	"TLSRouteRule.backendRefs":          true,
	"UDPRouteSpec.rules":                true,
	"UDPRouteRule.backendRefs":          true,
}

// MissingFault returns what is wrong with a field that is left out of a struct
// of the Gateway API or of Kubernetes.
func MissingFault(f schema.StructField) string {
	if !requiredField(f) {
		return ""
	}
	return missingText(f)
}

// ListFault returns what is wrong with the number of items of a list.
func ListFault(f schema.StructField, n int) string { return limitsOf(f).lengthFault(n, "entries") }

// WrittenZeroFault returns what is wrong with "" or 0 that is written out where
// the struct cannot tell it from a field that is left out.
func WrittenZeroFault(f schema.StructField, value any) string {
	if f.Owner.PkgPath() != gatewayPackage || value == nil || !f.Optional() {
		return ""
	}
	switch v := reflect.New(f.Type).Elem(); v.Kind() {
	case reflect.String, reflect.Int, reflect.Int32:
		if value == "" || value == int64(0) {
			return scalarFault(v, f)
		}
	}
	return ""
}

// missingText is about a field that is not there.
func missingText(f schema.StructField) string {
	if rule, ok := textRules[f.Type]; ok {
		return "is missing: write " + rule.want
	}
	return "is missing: write it"
}

const (
	gatewayPackage = "sigs.k8s.io/gateway-api/apis/v1"
	metaPackage    = "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unique checks that the items of a list differ, as a whole or in one field.
func (c *checker) unique(list reflect.Value, member, path string) {
	if member == "" {
		return
	}
	seen := map[string]int{}
	for i := range list.Len() {
		at, value := field.Index(path, i), list.Index(i)
		if member != wholeItem {
			value, at = fieldNamed(value, member), at+"."+member
		}
		text := fmt.Sprint(value.Interface())
		if first, ok := seen[text]; ok {
			c.errorf(at, "is %s, as in %s: remove one", field.Quote(text), field.Index(path, first))
			continue
		}
		seen[text] = i
	}
}

func fieldNamed(v reflect.Value, name string) reflect.Value {
	fields := schema.StructFields(v.Type())
	i := slices.IndexFunc(fields, func(f schema.StructField) bool { return f.JSONName == name })
	return v.FieldByName(fields[i].Name)
}

func sortedValues(v reflect.Value) func(func(string, reflect.Value) bool) {
	values := make(map[string]reflect.Value, v.Len())
	for _, k := range v.MapKeys() {
		values[k.String()] = v.MapIndex(k)
	}
	return field.Sorted(values)
}

// labelSelector warns of a selector that selects nothing because it is wrong;
// the definitions accept it.
func (c *checker) labelSelector(s *metav1.LabelSelector, path string) {
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		c.warnf(path, "selects nothing: %v", err)
	}
}

// limits bound a list or mapping.
type limits struct {
	least, most int
	// unique names the field in which items must differ.
	unique string
}

// wholeItem in limits.unique means that the items themselves must differ.
const wholeItem = "*"

func (l limits) lengthFault(n int, what string) string {
	switch {
	case n < l.least:
		return fmt.Sprintf("has %d %s: write at least %d", n, what, l.least)
	case l.most > 0 && n > l.most:
		return fmt.Sprintf("has %d %s: at most %d are allowed", n, what, l.most)
	}
	return ""
}

func limitsOf(f schema.StructField) limits { return listRules[f.Key()] }

// fault checks a text.
func (r textRule) fault(s string) string {
	length := utf8.RuneCountInString(s)
	switch {
	case len(r.values) > 0:
		if slices.Contains(r.values, s) {
			return ""
		}
		if s == "" {
			return "is empty: write " + r.want
		}
		return "is " + field.Quote(s) + ": write " + r.want
	case length < r.least:
		return "is empty: write " + r.want
	case r.most > 0 && length > r.most:
		return fmt.Sprintf("has %d characters: at most %d are allowed", length, r.most)
	case r.pattern != nil && !r.pattern.MatchString(s):
		return "is " + field.Quote(s) + ": write " + r.want
	}
	return ""
}

// fault checks a number.
func (r numberRule) fault(n int64) string {
	switch {
	case len(r.values) > 0 && !slices.Contains(r.values, n):
		return fmt.Sprintf("is %d: write one of %s", n, strings.Trim(fmt.Sprint(r.values), "[]"))
	case r.bounded && n < r.least && r.most == 0:
		return fmt.Sprintf("is %d: it must be %d or more", n, r.least)
	case r.bounded && (n < r.least || r.most > 0 && n > r.most):
		return fmt.Sprintf("is %d: it must be between %d and %d", n, r.least, r.most)
	}
	return ""
}

// ApplyDefaults sets the fields of a Gateway API spec that the API server
// would default, as the CustomResourceDefinitions say. Specs of other kinds
// stay as they are. Every spec that comes from YAML or from Kubernetes has its
// defaults.
func ApplyDefaults(spec any) {
	if v := reflect.ValueOf(spec); v.Kind() == reflect.Pointer && v.Elem().Type().PkgPath() == gatewayPackage {
		defaultStruct(v.Elem())
	}
}

func defaultStruct(v reflect.Value) {
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if preset, ok := defaultValues[v.Type().Name()+"."+name]; ok && unset(value) {
			if value.Kind() == reflect.Pointer {
				value.Set(reflect.New(f.Type.Elem()))
				value.Elem().Set(reflect.ValueOf(preset()))
			} else {
				value.Set(reflect.ValueOf(preset()))
			}
		}
		defaultValue(value)
	}
}

func defaultValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			defaultValue(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			defaultValue(v.Index(i))
		}
	case reflect.Struct:
		if v.Type().PkgPath() == gatewayPackage {
			defaultStruct(v)
		}
	}
}
