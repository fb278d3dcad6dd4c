// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]options{
		"etcd://a":       {hosts: []string{"a:2379"}, prefix: "/outrigger/"},
		"etcd://a/":      {hosts: []string{"a:2379"}, prefix: "/outrigger/"},
		"etcd://a:1/m/n": {hosts: []string{"a:1"}, prefix: "/m/n/"},
		"etcd://a:1,b,c:3/mesh/": {
			hosts: []string{"a:1", "b:2379", "c:3"}, prefix: "/mesh/",
		},
		"etcd://[::1]:2380/m": {hosts: []string{"[::1]:2380"}, prefix: "/m/"},
		"etcd://[::1]/m":      {hosts: []string{"[::1]:2379"}, prefix: "/m/"},
		"etcd://a/m?tls=true": {hosts: []string{"a:2379"}, prefix: "/m/", tls: true},
		"etcd://mesh@a/m?passwordFile=/p&ca=/ca&cert=/c&key=/k&servername=etcd.example": {
			hosts: []string{"a:2379"}, prefix: "/m/", tls: true, user: "mesh", passwordFile: "/p",
			ca: "/ca", cert: "/c", key: "/k", serverName: "etcd.example",
		},
	} {
		want.name = address
		got, err := parse(mustURL(t, address))
		if err != nil {
			t.Errorf("parse(%s) = %v", address, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("parse(%s) = %+v, want %+v", address, got, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	for address, words := range map[string][]string{
		"etcd:///mesh":                  {"names no host", "etcd://host:2379/prefix"},
		"etcd://a,,b/mesh":              {"names no host, or an empty one"},
		"etcd://:2379/m":                {"write host:port"},
		"etcd://a:0/m":                  {"1 to 65535"},
		"etcd://a,::1/m":                {"\"::1\": write host:port"},
		"etcd://a:66000/m":              {"1 to 65535"},
		"etcd://a//m":                   {"plain path"},
		"etcd://a/m/../n":               {`".."`, "plain path"},
		"etcd://a/m#x":                  {"#x", "remove it"},
		"etcd://a/m?nope=1":             {`"nope"`, "ca, cert, key, passwordFile, servername, tls"},
		"etcd://a/m?ca=1&ca=2":          {"ca 2 times"},
		"etcd://a/m?ca=":                {"ca without a value"},
		"etcd://a/m?tls=false":          {"tls=false", "tls=true"},
		"etcd://a/m?cert=/c":            {"only one of cert= and key="},
		"etcd://a/m?passwordFile=/p":    {"no user"},
		"etcd://mesh@a/m":               {`the user "mesh"`, "passwordFile="},
		"etcd://a/m?%zz=1":              {"malformed query"},
		"etcd://mesh:hunter2@a/m":       {"contains a password", "logged", "passwordFile="},
		"etcd://mesh:hunter2@a/m?x=1":   {"contains a password"},
		"etcd://mesh@a/m?password=hunt": {"password", "passwordFile="},
	} {
		_, err := parse(mustURL(t, address))
		if err == nil {
			t.Errorf("parse(%s) returned no error", address)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("parse(%s) = %v, want it to contain %q", address, err, word)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("parse(%s): the error contains the password: %v", address, err)
		}
	}
}

func TestOpenChecksFiles(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for query, words := range map[string][]string{
		"?ca=/none":                        {"/none", "ca="},
		"?ca=" + empty:                     {empty, "contains no certificate", "PEM"},
		"?cert=/none&key=/nothing":         {"/none", "/nothing", "client certificate"},
		"?passwordFile=/none":              {"/none", `"mesh"`},
		"?passwordFile=" + empty:           {empty, "empty", `"mesh"`},
		"?passwordFile=/none&ca=" + empty:  {"contains no certificate"},
		"?passwordFile=" + empty + "&tls=": {"tls without a value"},
	} {
		user := ""
		if strings.Contains(query, "passwordFile") {
			user = "mesh@"
		}
		_, err := Open(mustURL(t, "etcd://"+user+"a/m"+query), config.OpenConfig{})
		if err == nil {
			t.Errorf("open with %s returned no error", query)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("open with %s = %v, want it to contain %q", query, err, word)
			}
		}
	}
}

func TestOpenAsDriver(t *testing.T) {
	t.Parallel()
	s, err := config.Open("etcd://a:1,b:2/mesh", config.OpenConfig{Drivers: map[string]config.Driver{"etcd": Open}})
	if err != nil || s.Name() != "etcd://a:1,b:2/mesh" || s.HasStarted() {
		t.Errorf("Open() = %v, %v", s, err)
	}
}

func mustURL(t *testing.T, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func FuzzParse(f *testing.F) {
	f.Add("etcd://mesh@a:1,b/m?passwordFile=/p&ca=/ca")
	f.Add("etcd://u:secretsecret@[::1]:1/m")
	f.Fuzz(func(t *testing.T, address string) {
		u, err := url.Parse(address)
		if err != nil {
			return
		}
		o, err := parse(u)
		if password, ok := u.User.Password(); ok {
			if err == nil {
				t.Fatalf("%q: a password in the URL was accepted", address)
			}
			if len(password) > 8 && strings.Count(err.Error(), password) > strings.Count(u.Redacted()+u.User.Username()+u.Host+u.Path, password) {
				t.Fatalf("%q: the error contains the password: %v", address, err)
			}
			return
		}
		if err == nil && (len(o.hosts) == 0 || !strings.HasPrefix(o.prefix, "/") || !strings.HasSuffix(o.prefix, "/") || (o.user == "") != (o.passwordFile == "")) {
			t.Fatalf("%q was accepted as %+v", address, o)
		}
	})
}

func TestMember(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"host": "host:2379", "host:1": "host:1", "10.0.0.1": "10.0.0.1:2379", "[::1]": "[::1]:2379", "[::1]:1": "[::1]:1",
		"]host": "", "[host]": "", "[[::1]]": "", "::1": "", "[::1": "", "::1]": "", "[]": "", "host]": "", "[127.0.0.1]": "",
	} {
		if got, err := member(address); got != want || (err == nil) != (want != "") {
			t.Errorf("member(%s) = %q, %v; want %q", address, got, err, want)
		}
	}
}
