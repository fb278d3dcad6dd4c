// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package expression

import (
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`request.host`:                                           `%CEL(request.host)%`,
		`string(destination.port)`:                               `%CEL(destination.port)%`,
		` string( (1 + 2) * 3 ) `:                                `%CEL((1 + 2) * 3)%`,
		`string(1) == string(2)`:                                 "!a call of string",
		`request.path == 'a' ? 1 : 2`:                            `%CEL(request.path == 'a' ? 1 : 2)%`,
		`request.headers['a'].startsWith('b') && !(2 in [1, 2])`: `%CEL(request.headers['a'].startsWith('b') && !(2 in [1, 2]))%`,
		`has(request.headers) || size(request.path) > -1`:        `%CEL(has(request.headers) || size(request.path) > -1)%`,
		`re.extract(request.path, '/(.*)', '\\1')`:               `%CEL(re.extract(request.path, '/(.*)', '\\1'))%`,
		`request.path.lowerAscii()`:                              "!lowerAscii, which is not a function",
		`[1].exists(x, x == 1)`:                                  "!exists, which is not a function",
		`request.`:                                               "!not a CEL expression: at column",
		`true ? (1):5%2`:                                         "!not expressible",
		`true ? (1): 5%2`:                                        `%CEL(true ? (1): 5%2)%`,
		`(5)%(2)`:                                                "!not expressible",
		"1 +\n2":                                                 "!not expressible",
		"request.host\n":                                         "%CEL(request.host)%",
	} {
		got, err := Format(text)
		if problem, ok := strings.CutPrefix(want, "!"); ok {
			if err == nil || !strings.Contains(err.Error(), problem) {
				t.Errorf("Format(%q) = %v, want an error with %q", text, err, problem)
			}
		} else if err != nil || got != want {
			t.Errorf("Format(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestBounded(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`'a'`: true, `xds.node.metadata.CLUSTER_ID`: true, `string(response.code)`: true, `response.code >= 500 ? 'failed' : 'ok'`: true,
		`connection.uri_san_peer_certificate`: true, `has(response.grpc_status)`: true,
		`request.path`: false, `request['protocol']`: false, `[request.protocol, request.id][1]`: false, `response.headers['a']`: false,
		`destination.port`: false, `source.address`: false, `connection.requested_server_name`: false, `re.extract(request.path, '(.*)', '\\1')`: false,
		`request.`: false,
	} {
		if got := Bounded(text); got != want {
			t.Errorf("Bounded(%q) = %t, want %t", text, got, want)
		}
	}
}

func FuzzFormat(f *testing.F) {
	f.Add("string(request.path)")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := Format(text); err == nil && (!strings.HasPrefix(got, "%CEL(") || !strings.HasSuffix(got, ")%")) {
			t.Errorf("Format(%q) = %q, which is not a CEL command", text, got)
		}
	})
}
