// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package redact

import (
	"encoding/json"
	"testing"
)

// TestJSON checks which texts of a value are replaced.
func TestJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"accessToken":"a","secretName":"b","n":1}`:                         `{"accessToken":"[redacted]","n":1,"secretName":"b"}`,
		`{"headers":[{"name":"x-team","value":"a"},{"name":"x","env":"E"}]}`: `{"headers":[{"name":"x-team","value":"[redacted]"},{"env":"E","name":"x"}]}`,
		`{"initialMetadata":[{"name":"x-team","value":"a"}]}`:                `{"initialMetadata":[{"name":"x-team","value":"[redacted]"}]}`,
		`{"includeAdditionalHeadersInCheck":{"x-team":"a"}}`:                 `{"includeAdditionalHeadersInCheck":{"x-team":"[redacted]"}}`,
		`{"headers":{"request":{"set":{"x-team":"a"}}}}`:                     `{"headers":{"request":{"set":{"x-team":"a"}}}}`,
		`{"proxyMetadata":{"DB_PASSWORD":"a","ISTIO_META_DNS_CAPTURE":"b"}}`: `{"proxyMetadata":{"DB_PASSWORD":"[redacted]","ISTIO_META_DNS_CAPTURE":"b"}}`,
		`{"header":{"key":"x-password","value":"a"},"append":"b"}`:           `{"append":"b","header":{"key":"x-password","value":"[redacted]"}}`,
		`{"name":"x-api-key","stringMatch":{"exact":"a"}}`:                   `{"name":"x-api-key","stringMatch":{"exact":"[redacted]"}}`,
		`{"name":"x-team","stringMatch":{"exact":"a"}}`:                      `{"name":"x-team","stringMatch":{"exact":"a"}}`,
		`{"headers":{"x-api-key":{"prefix":"a"},"x-team":{"exact":"b"}}}`:    `{"headers":{"x-api-key":{"prefix":"[redacted]"},"x-team":{"exact":"b"}}}`,
		`{"key":"request.headers[x-token]","values":["a"]}`:                  `{"key":"request.headers[x-token]","values":["[redacted]"]}`,
		`{"name":"tokens","typedConfig":{"cluster":"a"}}`:                    `{"name":"tokens","typedConfig":{"cluster":"a"}}`,
		`["http://me:a@example.com", "Bearer abcdefghijk", ""]`:              `["http[redacted]example.com","[redacted]",""]`,
		`{"credentials":["a","b"],"tokens":{"a":"b"},"headers":[1,null]}`:    `{"credentials":["[redacted]","[redacted]"],"headers":[1,null],"tokens":{"a":"b"}}`,
	} {
		if got := jsonOf(t, text); got != want {
			t.Errorf("JSON(%s) = %s, want %s", text, got, want)
		}
	}
}

// jsonOf returns a text of JSON without secrets.
func jsonOf(t *testing.T, text string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(JSON(value))
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}
