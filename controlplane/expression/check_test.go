// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package expression

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// refused maps expressions that all supported Envoys reject to the error of Check.
var refused = map[string]string{
	`string(response.code)`:                                 "a call of string",
	`string(response.code) == "1"`:                          "a call of string",
	`request.path.matches("[")`:                             `the pattern "[" is no regular expression`,
	`matches(request.path, "a**")`:                          "is no regular expression",
	`request.path.matches("x{1001}")`:                       "is no regular expression",
	matching(strings.Repeat("a", 97)):                       "too large for Envoy",
	matching(strings.Repeat("(ab|cd)", 20)):                 "too large for Envoy",
	matching("(a{10}){9}"):                                  "too large for Envoy",
	matching(strings.Repeat("a?", 49)):                      "too large for Envoy",
	matching(strings.Repeat("é", 49)):                       "too large for Envoy",
	matching(strings.Repeat(".", 20)):                       "too large for Envoy",
	matching("[^é]{11}"):                                    "too large for Envoy",
	matching("[一-龥]{0,11}"):                                 "too large for Envoy",
	matching("((k?)*){2,12}"):                               "too large for Envoy",
	matching("(?i)k{30}"):                                   "too large for Envoy",
	matching(`\\pN`):                                        "too large for Envoy",
	strings.Repeat("(", 33) + "1" + strings.Repeat(")", 33): "not a CEL expression",
	strings.Repeat("[", 32) + "1" + strings.Repeat("]", 32): "",
	"1" + strings.Repeat(" + 1", 32):                        "nested deeper than the 32 levels",
	"a" + strings.Repeat(".a", 32):                          "",
	"a" + strings.Repeat("[1]", 32):                         "",
	`request.headers.exists(x, x == "a")`:                   "exists, which is not a function",
	`optional.of(1)`:                                        "of, which is not a function",
	`a.?b`:                                                  "",
	`in`:                                                    "not a CEL expression",
	`getDate(request.time) == 1`:                            "in a form or with a number of arguments",
	`contains("a")`:                                         "in a form or with a number of arguments",
	`request.path.int()`:                                    "in a form or with a number of arguments",
	`"a".extract("b", "c", "d") == "d"`:                     "extract, which is not a function",
	`has(request)`:                                          "not a CEL expression",
	`my_func(1) == 1`:                                       "a call of my_func, which is not a function",
	`request.path.starts_with("a")`:                         "a call of starts_with, which is not a function",
	`_x(1)`:                                                 "a call of _x, which is not a function",
	`[Foo{a: 1}] == []`:                                     `a message "Foo", which Envoy cannot make`,
	`"` + strings.Repeat("a", 100001) + `"`:                 "",
}

// read are expressions that all supported Envoys accept.
var read = []string{
	"response.code >= 400 &&\n  true // a comment\n", `"a" + 1 == "b"`, `foo.bar == 1`, `duration("x") < duration("1s")`, `{"a": 1}.a == 1`,
	`size(1) == request.path.size()`, `request.headers["a"] in ["b"]`, `has(request.headers)`, `contains("a", "b") || re.contains("b")`,
	`re.extract("a", "[", "b") == re.capture("a", "b")`, `request.time.getDate("Nowhere") == request.time.getHours()`,
	strings.Repeat("(", 30) + "1" + strings.Repeat(")", 30), "1" + strings.Repeat(" + 1", 31), "a" + strings.Repeat(".a", 31),
	strings.Repeat("[", 28) + "1" + strings.Repeat("]", 28), "true" + strings.Repeat(" && true", 500), strings.Repeat("!", 200) + "true",
	`-1 - 2 * 3 / 4 % 5 + 6 <= 7 && 8 >= 9 || !(1 != 2) && 1 < 2 && 1 > 2 && 1 == 2 && 1 in [2] && a["b"][1] && (c ? d : e)`, `my_name.a_b == _c`,
	matching(strings.Repeat("a", 96)), matching(strings.Repeat("a?", 32)), matching(strings.Repeat("é", 48)), matching("(a{10}){8}"),
	matching("^/(healthz|readyz|livez)(/.*)?$"), matching(`(?i)\\d+[^/]*\\x{10FFFF}(?P<n>a)`), matching(""), matching(`" + request.host + "[`),
}

func matching(pattern string) string { return `request.path.matches("` + pattern + `")` }

func TestCheck(t *testing.T) {
	t.Parallel()
	for text, want := range refused {
		if err := Check(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check(%.80q) = %v, want an error with %q", text, err, want)
		}
	}
	for _, text := range read {
		if err := Check(text); err != nil {
			t.Errorf("Check(%.80q) = %v, want nil", text, err)
		}
	}
}

// TestEnvoyExpressions validates filters of access logs with the real Envoy.
func TestEnvoyExpressions(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	if out, err := filtered(t, binary, read); err != nil {
		t.Errorf("Envoy rejects an expression: %v\n%s", err, out)
	}
	for text := range refused {
		if out, err := filtered(t, binary, []string{text}); err == nil {
			t.Errorf("Envoy accepts %.80q:\n%s", text, out)
		}
	}
}

// filtered validates a listener whose access logs have filters.
func filtered(t *testing.T, binary string, filters []string) ([]byte, error) {
	t.Helper()
	var logs []any
	for _, text := range filters {
		logs = append(logs, map[string]any{
			"name": "envoy.access_loggers.file", "typed_config": map[string]any{
				"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": os.DevNull,
			},
			"filter": map[string]any{"extension_filter": map[string]any{
				"name": "envoy.access_loggers.extension_filters.cel", "typed_config": map[string]any{
					"@type": "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter", "expression": text,
				},
			}},
		})
	}
	return validate(t, binary, map[string]any{"access_log": logs})
}

// validate runs Envoy in validation mode with a listener.
func validate(t *testing.T, binary string, listener map[string]any) ([]byte, error) {
	t.Helper()
	listener["name"] = "l"
	if listener["filter_chains"] == nil {
		listener["filter_chains"] = []any{map[string]any{}}
	}
	listener["address"] = map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}
	config, err := json.Marshal(map[string]any{"static_resources": map[string]any{"listeners": []any{listener}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), binary, "--mode", "validate", "-c", path, "--concurrency", "1").CombinedOutput()
}
