// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"net/url"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
)

func TestURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]options{
		"xds://host:15010":            {address: "host:15010"},
		"xds://host:15010/":           {address: "host:15010"},
		"xds://[::1]:1?delta=true":    {address: "[::1]:1", delta: true},
		"xds://h:1?delta=false":       {address: "h:1"},
		"xds://h:1?versions=v1":       {address: "h:1", newest: true},
		"xds://h:1?tls=true&token=/t": {address: "h:1", tls: true, token: "/t"},
		"xds://h:1?servername=s":      {address: "h:1", tls: true, serverName: "s"},
		"xds://h:1?ca=/a&cert=/b&key=/c": {
			address: "h:1", tls: true, ca: "/a", cert: "/b", key: "/c",
		},
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		want.name = text
		if got, err := parse(u); err != nil || got != want {
			t.Errorf("parse(%s) = %+v, %v", text, got, err)
		}
	}
	for text, says := range map[string]string{
		"xds://":                        "must name a host and a port",
		"xds://host":                    "must name a host and a port",
		"xds://:15010":                  "must name a host and a port",
		"xds://h:0":                     "the port \"0\"",
		"xds://h:70000":                 "the port \"70000\"",
		"xds://h:1/path":                "the path \"/path\"",
		"xds://h:1#x":                   "#x",
		"xds://user:secret@h:1":         "names a user",
		"xds://h:1?token=/t":            "names a token but no TLS",
		"xds://h:1?tls=maybe":           "tls=maybe",
		"xds://h:1?delta=1":             "delta=1",
		"xds://h:1?versions=v2":         "versions=v2",
		"xds://h:1?cert=/a":             "only one of cert= and key=",
		"xds://h:1?ca=":                 "without a value",
		"xds://h:1?ca=/a&ca=/b":         "2 times",
		"xds://h:1?password=x":          `the unknown parameter "password"`,
		"xds://h:1?a=%zz":               "malformed query",
		"xds://h:1?ca=/nowhere":         "/nowhere",
		"xds://h:1?cert=/no&key=/where": "/no",
		"xds://h:1?tls=true&token=/no":  "read the token",
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Driver(Config{})(u, config.OpenConfig{})
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("parse(%s) = %v, want an error with %s", text, err, says)
		}
	}
}
