// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
)

// rules evaluates the CEL rules of definitions.
type rules struct {
	env      *cel.Env
	programs map[string]cel.Program
}

func newRules(t *testing.T) rules {
	t.Helper()
	env, err := cel.NewEnv(
		cel.Variable("self", cel.DynType),
		ext.Strings(),
		cel.Function("isIP", cel.Overload("is_ip", []*cel.Type{cel.StringType}, cel.BoolType, cel.UnaryBinding(func(v ref.Val) ref.Val {
			_, err := netip.ParseAddr(fmt.Sprint(v.Value()))
			return types.Bool(err == nil)
		}))),
	)
	if err != nil {
		t.Fatal(err)
	}
	return rules{env: env, programs: map[string]cel.Program{}}
}

// judge returns the messages of the rules that a value violates. A rule that cannot be evaluated
// counts as violated, as in the API server.
func (r rules) judge(schema map[string]any, v any, path string) (faults []string) {
	list, _ := schema["x-kubernetes-validations"].([]any)
	for _, entry := range list {
		rule, _ := entry.(map[string]any)
		text, _ := rule["rule"].(string)
		if strings.Contains(text, "oldSelf") {
			continue // transition rules need an old object
		}
		result, _, err := r.program(text).Eval(map[string]any{"self": escaped(v)})
		if err != nil || result.Value() != true {
			faults = append(faults, fmt.Sprintf("%s: %v (%v)", path, rule["message"], err))
		}
	}
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			schema := schemaOfField(schema, name)
			faults = append(faults, r.judge(schema, member, path+"."+name)...)
		}
	case []any:
		for i, item := range v {
			faults = append(faults, r.judge(schemaItems(schema), item, field.Index(path, i))...)
		}
	}
	return faults
}

func schemaOfField(schema map[string]any, name string) map[string]any {
	if member := at(schema, "properties", name); member != nil {
		return member
	}
	return at(schema, "additionalProperties")
}

func (r rules) program(text string) cel.Program {
	if p, ok := r.programs[text]; ok {
		return p
	}
	ast, issues := r.env.Compile(text)
	if issues.Err() != nil {
		panic(text + ": " + issues.Err().Error())
	}
	p, err := r.env.Program(ast)
	if err != nil {
		panic(text + ": " + err.Error())
	}
	r.programs[text] = p
	return p
}

// escaped returns a tree in which fields named like CEL keywords have the names that rules use for
// them.
func escaped(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, member := range v {
			out[k] = escaped(member)
			if k == "namespace" {
				delete(out, k)
				out["__namespace__"] = escaped(member)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = escaped(item)
		}
		return out
	}
	return v
}
