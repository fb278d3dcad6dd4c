// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/status/probe"
)

func TestParseProbers(t *testing.T) {
	t.Parallel()
	got, err := ParseProbers(`{
		"/app-health/app/livez": {"httpGet": {"path": "healthz?full=1", "port": 8080, "scheme": "HTTPS", "host": "app.local",
			"httpHeaders": [{"name": "host", "value": "example.com"}, {"name": "X-A", "value": "1"}, {"name": "X-A", "value": "2"}]},
			"timeoutSeconds": 3, "periodSeconds": 10},
		"/app-health/app/readyz": {"tcpSocket": {"port": 9090}},
		"/app-health/app/startupz": {"grpc": {"port": 1, "service": null}, "timeoutSeconds": 0},
		"/app-health/other/readyz": {"grpc": {"port": 65535, "service": "a.B"}},
		"/app-health/other/livez": {"httpGet": {"port": 80}}
	}`)
	if err != nil {
		t.Fatal(err)
	}
	want := Probers{
		"/app-health/app/livez": {Timeout: 3 * time.Second, HTTPGet: &HTTPGet{
			Scheme: "https", Host: "app.local", Port: 8080, Path: "/healthz?full=1",
			Header: http.Header{"Host": {"example.com"}, "X-A": {"1", "2"}},
		}},
		"/app-health/app/readyz":   {TCPSocket: &TCPSocket{Port: 9090}},
		"/app-health/app/startupz": {GRPC: &GRPCCheck{Port: 1}},
		"/app-health/other/readyz": {GRPC: &GRPCCheck{Port: 65535, Service: "a.B"}},
		"/app-health/other/livez":  {HTTPGet: &HTTPGet{Scheme: "http", Port: 80, Path: "/", Header: http.Header{}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("probers (-want +got):\n%s", diff)
	}
	if none, err := ParseProbers(""); len(none) != 0 || err != nil {
		t.Errorf("ParseProbers of nothing = %v, %v", none, err)
	}
}

func TestParseProbersErrors(t *testing.T) {
	t.Parallel()
	const key = `"/app-health/app/livez"`
	for text, want := range map[string]string{
		`{`:  "ISTIO_KUBE_APP_PROBERS",
		`[]`: "ISTIO_KUBE_APP_PROBERS",
		`{"/app-health/app/other": {"tcpSocket": {"port": 1}}}`: `the key "/app-health/app/other" is not a probe's path`,
		`{"/app-health/a/b/livez": {"tcpSocket": {"port": 1}}}`: "is not a probe's path",
		`{"/app-health//livez": {"tcpSocket": {"port": 1}}}`:    "is not a probe's path",
		`{` + key + `: null}`: "is null",
		`{` + key + `: {}}`:   "has 0 of",
		`{` + key + `: {"tcpSocket": {"port": 1}, "grpc": {"port": 1}}}`: "has 2 of",
		`{` + key + `: {"exec": {"command": ["true"]}}}`:                 "has 0 of",
		`{` + key + `: {"httpGet": {"port": "http"}}}`:                   `httpGet.port is "http": use a number from 1 to 65535, not the name`,
		`{` + key + `: {"tcpSocket": {"port": 0}}}`:                      "tcpSocket.port is 0",
		`{` + key + `: {"grpc": {"port": 65536}}}`:                       "grpc.port is 65536",
		`{` + key + `: {"grpc": {}}}`:                                    "grpc.port is missing",
		`{` + key + `: {"httpGet": {"port": 1, "scheme": "ftp"}}}`:       `httpGet.scheme is "ftp": use HTTP or HTTPS`,
		`{` + key + `: {"httpGet": {"port": 1, "httpHeaders": [{}]}}}`:   "a header without a name",
		`{` + key + `: {"grpc": {"port": 1}, "timeoutSeconds": -1}}`:     "timeoutSeconds is -1",
	} {
		_, err := ParseProbers(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseProbers(%s) = %v, want %q", text, err, want)
		}
	}
}

func FuzzParseProbers(f *testing.F) {
	f.Add(`{"/app-health/app/livez": {"httpGet": {"path": "//x", "port": 8080, "httpHeaders": [{"name": "a", "value": "b"}]}}}`)
	f.Add(`{"/app-health/app/readyz": {"grpc": {"port": 1, "service": null}, "timeoutSeconds": 5}}`)
	f.Add(`{"/app-health/app/startupz": {"tcpSocket": {"port": "x"}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		probers, err := ParseProbers(text)
		if err != nil {
			return
		}
		for path, p := range probers {
			if !probePath.MatchString(path) || p.Timeout < 0 {
				t.Errorf("%q: %+v", path, p)
			}
			if p.HTTPGet == nil {
				continue
			}
			// Whatever the path, the URL must contain the given address.
			target := probe.URL("http", "10.0.0.1", 80, p.HTTPGet.Path)
			if u, err := url.Parse(target.String()); err != nil || u.Host != "10.0.0.1:80" || u.User != nil || target.RequestURI()[0] != '/' {
				t.Errorf("path %q has the URL %q", p.HTTPGet.Path, target)
			}
		}
	})
}

func TestParseScrape(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]AppScrape{
		``:                    nil,
		`{"scrape": "false"}`: nil,
		`{}`:                  {{Port: 80, Path: "/metrics"}},
		`{"scrape": "true", "path": "stats?format=text", "port": "8080"}`: {{Port: 8080, Path: "/stats?format=text"}},
		`{"scrape": "", "path": "/m", "port": ""}`:                        {{Port: 80, Path: "/m"}},
		`{"targets": [{"port": "1", "path": "a"}, {"port": "2"}]}`:        {{Port: 1, Path: "/a"}, {Port: 2, Path: "/metrics"}},
	} {
		got, err := ParseScrape(text, "", 15020)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("ParseScrape(%s): %v, (-want +got):\n%s", text, err, diff)
		}
	}
	for text, want := range map[string]string{
		`{`:                   "ISTIO_PROMETHEUS_ANNOTATIONS",
		`{"port": 8080}`:      "it must be an object of strings",
		`{"port": "http"}`:    `port is "http": use a number`,
		`{"port": "70000"}`:   `port is "70000"`,
		`{"port": "15020"}`:   "the agent's own status port",
		`{"path": "/a b"}`:    "must not contain spaces",
		`{"path": "/a\r\nb"}`: "must not contain spaces",
	} {
		if got, err := ParseScrape(text, "", 15020); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseScrape(%s) = %v, %v, want %q", text, got, err, want)
		}
	}
}

func TestParseScrapeTargets(t *testing.T) {
	t.Parallel()
	want := []AppScrape{{Port: 9101, Path: "/metrics"}, {Port: 9102, Path: "/a:b"}, {Port: 9103, Path: "/metrics"}}
	got, err := ParseScrape(`{"port": "1"}`, "9101:/metrics, 9102:a:b,9103", 15020)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, (-want +got):\n%s", err, diff)
	}
	for targets, want := range map[string]string{
		"9101:/m,9101:/m": "http://localhost:9101/m is named twice",
		"http":            `annotation prometheus.istio.io/scrape-targets: port is "http"`,
		"1,15020:/":       "the agent's own status port",
		"1:/a b":          "must not contain spaces",
	} {
		if got, err := ParseScrape("", targets, 15020); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseScrape(%s) = %v, %v, want %q", targets, got, err, want)
		}
	}
}

func FuzzParseScrape(f *testing.F) {
	f.Add(`{"scrape": "true", "path": "/metrics", "port": "8080"}`, "", 15020)
	f.Add(`{"path": "@example.com/"}`, "80:@example.com,81", 15020)
	f.Fuzz(func(t *testing.T, text, targets string, statusPort int) {
		scrapes, err := ParseScrape(text, targets, statusPort)
		if err != nil {
			return
		}
		for _, scrape := range scrapes {
			if scrape.Port == statusPort || !strings.HasPrefix(scrape.URL(), "http://localhost:") || scrape.Path[0] != '/' {
				t.Errorf("ParseScrape(%q, %q, %d) = %+v", text, targets, statusPort, scrape)
			}
		}
	})
}
