// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package expression

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

func TestCheckFormat(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"":                                      "",
		"100 %% of %PROTOCOL%\n":                "",
		"%REQ(x-a?y-b):10%":                     "",
		"%START_TIME(%Y-%m (%d))%":              "",
		"%CEL(size(request.path) > (1))%":       "",
		"%METADATA(ROUTE:istio:config)%":        "",
		"%COMMON_DURATION(DS_RX_BEG:US_TX:ms)%": "",
		"%SPAN_ID%":                             `"%SPAN_ID%" is no command of all supported Envoys`,
		"%PER_REQUEST_STATE(a)%":                "is no command of the supported Envoys",
		"50 % off":                              `no command of Envoy starts at "% off"`,
		"%REQ(:path":                            "no command of Envoy starts at",
		"%NO_SUCH%":                             `"%NO_SUCH%" is no command of the supported Envoys`,
		"%REQ%":                                 "lacks its argument",
		"%PROTOCOL(x)%":                         "has an argument",
		"%PROTOCOL:5%":                          "has a length",
		"%METADATA(NOWHERE:a)%":                 "has an argument",
		"%CEL(request.)%":                       "not a CEL expression",
		"%REQ(a?:b)%%RESP(:a)%%TRAILER(A-1)%":   "",
		"%REQ(a?b?c)%":                          "has an argument",
		"%RESP(a:b)%":                           "has an argument",
		"%TRAILER(é)%":                          "has an argument",
		"%REQ_WITHOUT_QUERY(a b)%":              "has an argument",
		"%FILTER_STATE(a.b:FIELD:c):5%":         "",
		"%FILTER_STATE(a:FIELD)%":               "has an argument",
		"%FILTER_STATE(a:PLAIN:b)%":             "has an argument",
		"%FILTER_STATE(:PLAIN)%":                "has an argument",
		"%UPSTREAM_FILTER_STATE(a:TEXT)%":       "has an argument",
		"%CEL(request.path.lowerAscii())%":      "lowerAscii, which is not a function",
	} {
		err := CheckFormat(format)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("CheckFormat(%q) = %v, want an error with %q", format, err, want)
		}
	}
	labels := map[string]any{"a": "%PROTOCOL%", "b": map[string]any{"c": []any{1.0, "%NO%"}}}
	if err := CheckLabels(labels); err == nil || !strings.Contains(err.Error(), `["b"]`) || !strings.Contains(err.Error(), `"%NO%"`) {
		t.Errorf("CheckLabels() = %v, want an error about b and %%NO%%", err)
	}
	var nested any = "x"
	for range 90 {
		nested = map[string]any{"in": nested}
	}
	if err := CheckLabels(map[string]any{"deep": nested}); err == nil || !strings.HasPrefix(err.Error(), `["deep"]: nested deeper than the 20 levels`) {
		t.Errorf("CheckLabels of deeply nested labels = %v, want an error", err)
	}
}

func TestHeader(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"":                                  "0 ",
		"50%% of %PROTOCOL%":                "0 ",
		"%PER_REQUEST_STATE(a.b)%":          "0 ",
		`%UPSTREAM_METADATA(["a","b"])%`:    "0 ",
		"%SPAN_ID%%LISTENER_NAME%%SPAN_ID%": "40 %LISTENER_NAME%",
		"%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%":      "0 ",
		"%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT(128)%": "38 %DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT(128)%",
		"%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT(129)%": "has an argument",
		"%START_TIME%%":               `no command of Envoy starts at "%"`,
		"%REQ_WITHOUT_QUERY(a)%":      "is no command of the supported Envoys",
		"50% of it":                   `no command of Envoy starts at "% of it"`,
		"%FILE_CONTENT(/etc/passwd)%": "is no command of the supported Envoys",
		"%ENVIRONMENT(HOME)%":         "is no command of the supported Envoys",
		"%CEL(request.path)%":         "0 ",
		"%CEL(xds.node.id)%":          "reads xds",
		"%TYPED_CEL(xds.node)%":       "reads xds",
	} {
		since, name, err := Header(value)
		got := fmt.Sprint(since, " ", name)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && got != want {
			t.Errorf("Header(%q) = %q, %v, want %q", value, got, err, want)
		}
	}
}

// arguments maps commands that do not accept every argument to a valid one.
var arguments = map[string]string{
	"CEL": "request.path", "COMMON_DURATION": "DS_RX_BEG:DS_TX_END:ms", "GRPC_STATUS": "NUMBER", "METADATA": "ROUTE:a:b",
	"PATH": "NQ:ORIG", "START_TIME": "%s", "TYPED_CEL": "request.path", "QUERY_PARAMS": "ORIG",
}

// TestEnvoyHasCommands validates a format with all commands with the real Envoy.
func TestEnvoyHasCommands(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	var format strings.Builder
	for name, c := range field.Sorted(commands()) {
		if c.since > 0 || c.not == logs {
			continue
		}
		length := ""
		if c.shortened {
			length = ":5"
		}
		if c.without {
			format.WriteString("%" + name + "%")
		}
		if argument := arguments[name]; c.argument != nil && c.argumentSince == 0 {
			if argument == "" {
				argument = "X"
			}
			format.WriteString("%" + name + "(" + argument + ")" + length + "%")
		}
	}
	if err := CheckFormat(format.String()); err != nil {
		t.Fatal(err)
	}
	if out, err := formatted(t, binary, format.String()); err != nil {
		t.Errorf("Envoy rejects a command: %v\n%s", err, out)
	}
	for _, text := range []string{"%REQ(a?b?c)%", "%RESP(a:b)%", "%TRAILER(é)%", "%REQ_WITHOUT_QUERY(a b)%", "%FILTER_STATE(a:FIELD)%", "%FILTER_STATE(a:PLAIN:b)%", "%FILTER_STATE(:PLAIN)%", "%UPSTREAM_FILTER_STATE(a:TEXT)%"} {
		if out, err := formatted(t, binary, text); err == nil {
			t.Errorf("Envoy accepts %s:\n%s", text, out)
		}
	}
}

// formatted validates a listener whose access log has a format.
func formatted(t *testing.T, binary, format string) ([]byte, error) {
	t.Helper()
	return validate(t, binary, map[string]any{"access_log": []any{map[string]any{"name": "envoy.access_loggers.file", "typed_config": map[string]any{
		"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": os.DevNull,
		"log_format": map[string]any{
			"text_format_source": map[string]any{"inline_string": format},
			"formatters": []any{map[string]any{"name": "envoy.formatter.req_without_query", "typed_config": map[string]any{
				"@type": "type.googleapis.com/envoy.extensions.formatter.req_without_query.v3.ReqWithoutQuery",
			}}},
		},
	}}}})
}

func FuzzCheckFormat(f *testing.F) {
	f.Add("%REQ(a)% %CEL(request.path)%")
	f.Fuzz(func(t *testing.T, text string) {
		if err := CheckFormat(text); err == nil && strings.Count(text, "%") == 1 {
			t.Errorf("CheckFormat(%q) accepts a lone percent sign", text)
		}
	})
}
