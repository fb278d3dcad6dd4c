// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/status/probe"
)

func TestParseHooksAndPorts(t *testing.T) {
	t.Parallel()
	got, err := ParseProbers(`{
		"/app-lifecycle/app/poststartz": {"httpGet": {"path": "/start", "port": "8080", "host": "::1"}},
		"/app-lifecycle/app/prestopz": {"tcpSocket": {"port": "90"}},
		"/app-health/app/livez": {"grpc": {"port": "7"}}
	}`)
	if err != nil {
		t.Fatal(err)
	}
	want := Probers{
		"/app-lifecycle/app/poststartz": {HTTPGet: &HTTPGet{Scheme: "http", Host: "::1", Port: 8080, Path: "/start", Header: http.Header{}}},
		"/app-lifecycle/app/prestopz":   {TCPSocket: &TCPSocket{Port: 90}},
		"/app-health/app/livez":         {GRPC: &GRPCCheck{Port: 7}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("probers (-want +got):\n%s", diff)
	}
	for text, want := range map[string]string{
		`{"/app-lifecycle/app/livez": {"tcpSocket": {"port": 1}}}`:                            "is not a probe's path: use /app-health/<container>/ and then livez, readyz or startupz, or /app-lifecycle/",
		`{"/app-health/app/prestopz": {"tcpSocket": {"port": 1}}}`:                            "is not a probe's path",
		`{"/app-lifecycle/app/prestop": {"tcpSocket": {"port": 1}}}`:                          "is not a probe's path",
		`{"/x/app-health/app/livez": {"tcpSocket": {"port": 1}}}`:                             "is not a probe's path",
		`{"/app-health/app/livez/": {"tcpSocket": {"port": 1}}}`:                              "is not a probe's path",
		`{"/app-health/app/livez": {"httpGet": {"port": "8080x"}}}`:                           `httpGet.port is "8080x"`,
		`{"/app-health/app/livez": {"httpGet": {"port": "http"}}}`:                            "the name of a port, which only the pod's specification can resolve",
		`{"/app-health/app/livez": {"httpGet": {"port": true}}}`:                              "httpGet.port is true",
		`{"/app-health/app/livez": {"httpGet": {"port": 80.5}}}`:                              "httpGet.port is 80.5",
		`{"/app-health/app/livez": {"tcpSocket": {"port": ["1"]}}}`:                           `tcpSocket.port is ["1"]`,
		`{"/app-health/app/livez": {"tcpSocket": {}}}`:                                        "tcpSocket.port is missing: use a number",
		`{"/app-health/app/livez": {"grpc": {"port": null}}}`:                                 "grpc.port is null",
		`{"/app-health/app/livez": {"tcpSocket": {"port": 1}}} {}`:                            "ISTIO_KUBE_APP_PROBERS",
		`{"/app-health/app/livez": {"tcpSocket": {"port": 1}, "timeoutSeconds": 1000000000}}`: "timeoutSeconds is 1000000000",
	} {
		if _, err := ParseProbers(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseProbers(%s) = %v, want %q", text, err, want)
		}
	}
}

// TestTargets checks that a path becomes the same URL as in the kubelet, and that no path leads to
// another host.
func TestTargets(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"":                       "http://10.0.0.1:80/",
		"/":                      "http://10.0.0.1:80/",
		"healthz":                "http://10.0.0.1:80/healthz",
		"?full=1":                "http://10.0.0.1:80/?full=1",
		"/a%2Fb?c=%2F#d":         "http://10.0.0.1:80/a%2Fb?c=%2F#d",
		"a%2Fb":                  "http://10.0.0.1:80/a%2Fb",
		"/%zz":                   "http://10.0.0.1:80/%25zz",
		"/a b":                   "http://10.0.0.1:80/a%20b",
		"//other.example/x":      "http://10.0.0.1:80/x",
		"////x":                  "http://10.0.0.1:80////x",
		"https://other.example":  "http://10.0.0.1:80/",
		"http://u:p@o.example/x": "http://10.0.0.1:80/x",
		"@other.example/x":       "http://10.0.0.1:80/@other.example/x",
		":81/x":                  "http://10.0.0.1:80/:81/x",
		"mailto:x":               "http://10.0.0.1:80/mailto:x",
		"/x\r\nHost: y":          "http://10.0.0.1:80/x%0D%0AHost:%20y",
	} {
		if got := probe.URL("http", "10.0.0.1", 80, pathOf(path)).String(); got != want {
			t.Errorf("URL of path %q: got %q, want %q", path, got, want)
		}
	}
}

func TestProbesOfStatusPort(t *testing.T) {
	t.Parallel()
	for path, loop := range map[string]bool{
		"/app-health/x/livez": true, "//app-health/x/livez": false, "/a/..//app-health/x/livez": true,
		"/%61pp-health/x/livez": true, "/app-lifecycle/x/prestopz": true, "/healthz/ready": false, "/app-healthy": false,
	} {
		probers := Probers{livez: {HTTPGet: &HTTPGet{Scheme: "http", Port: 15020, Path: path}}}
		err := probers.checkLoop(&net.TCPAddr{Port: 15020})
		if (err != nil) != loop {
			t.Errorf("path %s: got error %v, want one: %t", path, err, loop)
		}
	}
}

func TestShare(t *testing.T) {
	t.Parallel()
	probers := Probers{livez: {HTTPGet: &HTTPGet{}}, "/app-health/app/readyz": {HTTPGet: &HTTPGet{}}, "/app-health/app/startupz": {TCPSocket: &TCPSocket{}}, prestop: {HTTPGet: &HTTPGet{}}}
	if err := probers.Share(probe.ClientConfig{SourceIP: "nowhere"}); err == nil || !strings.Contains(err.Error(), `"nowhere"`) {
		t.Errorf("Share() = %v, want an error that names the address", err)
	}
	if err := probers.Share(probe.ClientConfig{}); err != nil {
		t.Fatal(err)
	}
	if c := probers[livez].HTTPGet.Client; c == nil || c != probers["/app-health/app/readyz"].HTTPGet.Client {
		t.Error("the probes do not share a client")
	} else if hook := probers[prestop].HTTPGet.Client; hook == nil || hook == c {
		t.Error("the hook has no client of its own") // it must not offer HTTP/2
	}
}
