// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xds

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// WithoutScripts returns a configuration whose scripts do not run where it is validated: Envoy runs
// the code of Lua filters, which may be of anybody who writes EnvoyFilters, even with --mode validate.
// Envoy still compiles the code, except that of files.
func WithoutScripts(config []byte) ([]byte, error) {
	var tree any
	if err := json.Unmarshal(config, &tree); err != nil {
		return nil, err
	}
	withoutScripts(tree, false)
	return json.Marshal(tree)
}

func withoutScripts(v any, lua bool) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			withoutScripts(item, lua)
		}
	case map[string]any:
		text := func(key string) string { s, _ := v[key].(string); return s }
		// A TypedStruct names the type that it describes.
		if t := cmp.Or(text("typeUrl"), text("type_url"), text("@type")); t != "" {
			lua = strings.Contains(t, ".lua.")
		}
		for key, item := range v {
			code, ok := item.(string)
			if !lua || !ok {
				withoutScripts(item, lua)
				continue
			}
			switch key {
			case "inlineCode", "inline_code", "inlineString", "inline_string":
				v[key] = compiled(code)
			case "inlineBytes", "inline_bytes":
				b, _ := base64.StdEncoding.DecodeString(code) // Envoy wants the same alphabet
				delete(v, key)
				v["inlineString"] = compiled(string(b))
			case "filename", "environmentVariable", "environment_variable":
				delete(v, key)
				v["inlineString"] = compiled("")
			}
		}
	}
}

// compiled returns a script that compiles another one and does not run it.
func compiled(code string) string {
	var b strings.Builder
	b.WriteString(`local f, e = loadstring("`)
	for i := range len(code) {
		_, _ = fmt.Fprintf(&b, `\%03d`, code[i]) // never fails
	}
	b.WriteString(`", "=script") if not f then error(e, 0) end function envoy_match() end`)
	return b.String()
}
