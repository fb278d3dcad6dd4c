// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package localonly

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		peer, host, header, value string
		local                     bool
	}{
		"IPv4":                           {local: true},
		"IPv6":                           {peer: "[::1]:1", host: "[::1]:15020", local: true},
		"mapped":                         {peer: "[::ffff:127.0.0.1]:1", local: true},
		"empty brackets":                 {host: "[[::1]]"},
		"a name in brackets":             {host: "]attacker.example"},
		"localhost":                      {host: "LocalHost:15020", local: true},
		"no host":                        {host: "-", local: true},
		"another address":                {host: "10.1.2.3:15020", local: true},
		"peer on another machine":        {peer: "10.0.0.1:1"},
		"peer on another machine, IPv6":  {peer: "[2001:db8::1]:1"},
		"from Envoy":                     {peer: "127.0.0.6:1"},
		"from Envoy, mapped":             {peer: "[::ffff:127.0.0.6]:1"},
		"from Envoy, IPv6":               {peer: "[::6]:1"},
		"no address":                     {peer: "@"},
		"another name":                   {host: "attacker.example"},
		"a name with localhost":          {host: "localhost.attacker.example"},
		"from a web page":                {header: "Origin", value: "https://attacker.example"},
		"from a web page without origin": {header: "Sec-Fetch-Site", value: "cross-site"},
		"typed into a browser":           {header: "Sec-Fetch-Site", value: "none", local: true},
		"forwarded":                      {header: "Forwarded", value: "for=127.0.0.1"},
		"forwarded for":                  {header: "x-forwarded-for", value: "127.0.0.1"},
		"forwarded for, no value":        {header: "X-Forwarded-For"},
		"forwarded client cert":          {header: "X-Forwarded-Client-Cert", value: "URI=x"},
		"forwarded host":                 {header: "X-Forwarded-Host", value: "localhost"},
		"real address":                   {header: "X-Real-IP", value: "127.0.0.1"},
		"external address":               {header: "X-Envoy-External-Address", value: "127.0.0.1"},
		"through a proxy":                {header: "Via", value: "1.1 proxy"},
		"header of a program":            {header: "User-Agent", value: "curl", local: true},
	} {
		r := httptest.NewRequest(http.MethodGet, "/debug/x", http.NoBody)
		r.RemoteAddr, r.Host = "127.0.0.1:1", "127.0.0.1"
		if c.peer != "" {
			r.RemoteAddr = c.peer
		}
		if c.host != "" {
			r.Host = c.host
		}
		if c.host == "-" {
			r.Host = ""
		}
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		if err := Check(r); (err == nil) != c.local {
			t.Errorf("%s: Check() = %v, want local: %t", name, err, c.local)
		}
	}
}
