// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package redact

import (
	"encoding/base64"
	"strings"
	"testing"
)

// TestLog plants secrets in lines as programs log them. What is beside them stays.
func TestLog(t *testing.T) {
	t.Parallel()
	key := "-----BEGIN PRIVATE KEY-----\nplanted\n-----END PRIVATE KEY-----\n"
	for _, text := range []string{
		"kept Authorization: Bearer planted",
		"kept authorization=Basic cGxhbnRlZA==",
		"kept Proxy-Authorization: Digest username=planted, response=planted",
		`kept headers={"authorization":"token planted"}`,
		`{"msg":"kept","headers":{"Authorization":"planted planted"},"x":"password=planted"}`,
		`{"msg":"kept","env":[{"name":"API_KEY","value":"planted"}]}`,
		"kept Cookie: session=planted; other=planted",
		"kept set-cookie: session=planted; Path=/",
		"kept GET /a?access_token=planted&b=c",
		"kept GET https://user:planted@host/a",
		"kept postgres://user:planted@db/a?password=planted",
		"kept client_secret: planted",
		`kept DB_PASSWORD="planted with spaces"`,
		"kept x-api-key: planted",
		"kind: Secret\ndata: # kept\n  tls.key: " + base64.StdEncoding.EncodeToString([]byte(key)),
		"stringData: # kept\n  password: planted\n",
		"kept private_key: {inline_string: \"" + strings.ReplaceAll(key, "\n", `\n`) + "\"}",
		"kept " + key,
	} {
		got := Log(text)
		if strings.Contains(got, "planted") || strings.Contains(got, "cGxhbnRlZ") || strings.Contains(got, base64.StdEncoding.EncodeToString([]byte(key))[40:60]) || !strings.Contains(got, "kept") {
			t.Errorf("Log(%q) = %q", text, got)
		}
	}
	for _, text := range []string{"", "a\n\nb", "info\tconnected\taddress=10.0.0.1:15012 expires=2026-05-01T03:00:00Z\n", `{"level":"info","msg":"certificate signed"}` + "\n", "pilot_xds{type=\"cds\"} 3\n"} {
		if got := Log(text); got != text {
			t.Errorf("Log(%q) = %q, want it unchanged", text, got)
		}
	}
}

// TestHostileObjects plants secrets in objects as the control plane shows them.
func TestHostileObjects(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"kind":"Secret","metadata":{"name":"kept"},"data":{"any":"cGxhbnRlZA=="},"stringData":{"any":"planted"}}`,
		`{"kind":"EnvoyFilter","name":"kept","patch":{"value":{"private_key":{"inline_string":"planted"}}}}`,
		`{"kind":"EnvoyFilter","name":"kept","patch":{"value":{"generic_secret":{"secret":{"inline_string":"planted"}}}}}`,
		`{"kind":"EnvoyFilter","name":"kept","patch":{"value":{"token_secret":{"inlineBytes":"cGxhbnRlZA=="},"password":{"inline_string":"planted"}}}}`,
		`{"kind":"VirtualService","metadata":{"name":"kept","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"spec\":{\"headers\":{\"request\":{\"set\":{\"authorization\":\"planted\"}}}}}\n"}}}`,
		`{"name":"kept","annotations":{"proxy.istio.io/config":"proxyMetadata:\n  API_TOKEN: planted\n"}}`,
		`{"name":"kept","jwks":"{\"keys\":[{\"kty\":\"oct\",\"k\":\"cGxhbnRlZA\"}]}"}`,
		`{"name":"kept","jwks":"{\"keys\":[{\"kty\":\"RSA\",\"n\":\"kept\",\"d\":\"cGxhbnRlZA\",\"p\":\"cGxhbnRlZA\",\"oth\":[{\"r\":\"cGxhbnRlZA\"}]}]}"}`,
		`{"name":"kept","typedConfig":{"hmacSecret":{"inlineString":"planted"},"url":"redis://:planted@redis"}}`,
	} {
		got := jsonOf(t, text)
		if strings.Contains(got, "planted") || strings.Contains(got, "cGxhbnRlZ") || !strings.Contains(got, "kept") {
			t.Errorf("JSON(%s) = %s", text, got)
		}
	}
}
