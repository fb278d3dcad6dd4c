// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// splitRules returns routes with several destinations, whose shares are counted.
func splitRules() []routing {
	return []routing{
		{name: "split", http: `
- match: [{uri: {prefix: /half}}]
  route: [{destination: {host: shop, subset: v1}, weight: 50}, {destination: {host: shop, subset: v2}, weight: 50}]
- match: [{uri: {prefix: /tenth}}]
  route: [{destination: {host: shop, subset: v1}, weight: 9}, {destination: {host: shop, subset: v2}, weight: 1}]
- match: [{uri: {prefix: /three}}]
  route: [{destination: {host: shop, subset: v1}, weight: 500}, {destination: {host: shop, subset: v2}, weight: 300}, {destination: {host: one}, weight: 200}]
- match: [{uri: {prefix: /never}}]
  route: [{destination: {host: shop, subset: v1}, weight: 7}, {destination: {host: shop, subset: v2}, weight: 0}]
- match: [{uri: {prefix: /single}}]
  route: [{destination: {host: one}, weight: 0}]
- match: [{uri: {prefix: /nowhere}}]
  route: [{destination: {host: shop, subset: v1}, weight: 0}, {destination: {host: one}, weight: 0}]
- match: [{uri: {prefix: /abort}}]
  fault: {abort: {httpStatus: 500, percentage: {value: 30}}}
  $A
- match: [{uri: {prefix: /mirror}}]
  mirror: {host: copy2}
  mirrorPercentage: {value: 40}
  $A`, requests: []request{
			{send: "GET /nowhere", status: 503},
			{send: "GET /single", to: "one"},
		}},
		{name: "hashed", http: `
- match: [{uri: {prefix: /header}}]
  route: [{destination: {host: by-header}}]
- match: [{uri: {prefix: /split}}]
  route: [{destination: {host: by-header}, weight: 99}, {destination: {host: one}, weight: 1}]
- $NO`},
	}
}

// drawn is the number of requests for counting shares. A share may be off by five standard
// deviations, which happens once in two million runs.
const drawn = 1000

// checkShares sends many requests to each route, and counts where they arrive.
func (w *traffic) checkShares(t *testing.T) {
	tests := []struct {
		path string
		want map[string]float64
	}{
		{"/half", map[string]float64{"a": 0.5, "b": 0.5}},
		{"/tenth", map[string]float64{"a": 0.9, "b": 0.1}},
		{"/three", map[string]float64{"a": 0.5, "b": 0.3, "one": 0.2}},
		{"/never", map[string]float64{"a": 1}},
		{"/abort", map[string]float64{"a": 0.7, "": 0.3}},
		{"/mirror", map[string]float64{"a": 1, "copy2": 0.4}},
	}
	for _, tc := range tests {
		t.Run(tc.path, func(t *testing.T) {
			t.Parallel()
			got := map[string]int{}
			for i := range drawn {
				resp, _, _ := w.send(t, w.client, http.MethodGet, "http://split.test"+tc.path, headers(t, idHeader+": "+t.Name()), "")
				got[resp.Header.Get("X-Backend")]++
				if i == drawn-1 && tc.want["copy2"] > 0 {
					// Mirrored requests are asynchronous: wait for as many as the smallest share
					// allows.
					least := drawn + int(math.Ceil(drawn*tc.want["copy2"]-tolerance(tc.want["copy2"])))
					for _, a := range w.journal.wait(t, t.Name(), least) {
						if a.backend == "copy2" {
							got["copy2"]++
						}
					}
				}
			}
			for name, n := range got {
				if want := tc.want[name]; math.Abs(float64(n)-want*drawn) > tolerance(want) {
					t.Errorf("%q got %d of %d requests, want %v of them", name, n, drawn, want)
				}
			}
			if len(got) != len(tc.want) {
				t.Errorf("requests went to %v, want %v", got, tc.want)
			}
		})
	}
}

func tolerance(share float64) float64 { return 5 * math.Sqrt(drawn*share*(1-share)) }

// checkHash checks that equal requests reach the same application, and that different ones are
// distributed.
func (w *traffic) checkHash(t *testing.T) {
	const users = 24
	ask := func(t *testing.T, client *http.Client, target, header string) *http.Response {
		t.Helper()
		resp, body, _ := w.send(t, client, http.MethodGet, target, headers(t, header), "")
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s [%s]: %d %s", target, header, resp.StatusCode, body)
		}
		return resp
	}
	// Each returns what the nth user requests with, and the response to a first request.
	tests := []struct {
		name string
		send func(t *testing.T, n int) (again func() *http.Response, first *http.Response)
	}{
		{"header", func(t *testing.T, n int) (func() *http.Response, *http.Response) {
			again := func() *http.Response { return ask(t, w.client, "http://by-header/", fmt.Sprintf("x-user: %d", n)) }
			return again, again()
		}},
		{"header of a route", func(t *testing.T, n int) (func() *http.Response, *http.Response) {
			again := func() *http.Response {
				return ask(t, w.client, "http://hashed.test/header", fmt.Sprintf("x-user: %d", n))
			}
			return again, again()
		}},
		{"query", func(t *testing.T, n int) (func() *http.Response, *http.Response) {
			again := func() *http.Response { return ask(t, w.client, fmt.Sprintf("http://by-query/?user=%d", n), "") }
			return again, again()
		}},
		{"source", func(t *testing.T, n int) (func() *http.Response, *http.Response) {
			client := w.through(t, fmt.Sprintf("127.77.55.%d", 100+n))
			again := func() *http.Response { return ask(t, client, "http://by-source/", "") }
			return again, again()
		}},
		// Envoy derives the value of the cookie from the addresses of the connection.
		{"cookie", func(t *testing.T, n int) (func() *http.Response, *http.Response) {
			first := ask(t, w.through(t, fmt.Sprintf("127.77.55.%d", 130+n)), "http://by-cookie/shop", "")
			set := first.Header.Get("Set-Cookie")
			value, attributes, _ := strings.Cut(set, ";")
			if !strings.HasPrefix(value, "sticky=") || !strings.Contains(attributes, "Max-Age=60") || !strings.Contains(attributes, "Path=/shop") {
				t.Errorf("the cookie is %q", set)
			}
			return func() *http.Response { return ask(t, w.client, "http://by-cookie/shop", "cookie: "+value) }, first
		}},
		{"session", func(t *testing.T, n int) (func() *http.Response, *http.Response) {
			first := ask(t, w.through(t, fmt.Sprintf("127.77.55.%d", 160+n)), "http://by-session/", "")
			value, attributes, _ := strings.Cut(first.Header.Get("Set-Cookie"), ";")
			if !strings.HasPrefix(value, "session=") || strings.Contains(attributes, "Max-Age") {
				t.Errorf("the cookie is %q", first.Header.Get("Set-Cookie"))
			}
			return func() *http.Response { return ask(t, w.client, "http://by-session/", "cookie: "+value) }, first
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var chosen []string
			for n := range users {
				again, first := tc.send(t, n)
				name := first.Header.Get("X-Backend")
				for range 4 {
					if resp := again(); resp.Header.Get("X-Backend") != name {
						t.Fatalf("user %d got to %s, then to %s", n, name, resp.Header.Get("X-Backend"))
					} else if resp.Header.Get("Set-Cookie") != "" {
						t.Errorf("user %d gets a second cookie", n)
					}
				}
				chosen = append(chosen, name)
			}
			slices.Sort(chosen)
			if chosen = slices.Compact(chosen); len(chosen) < 2 {
				t.Errorf("%d users all got to %v", users, chosen)
			}
		})
	}
}

// checkWebSocket upgrades a connection and sends bytes both ways.
func (w *traffic) checkWebSocket(t *testing.T) {
	conn, err := net.Dial("tcp", w.proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the test has ended
	if _, err := fmt.Fprint(conn, "GET http://uri-prefix.test/p HTTP/1.1\r\nHost: uri-prefix.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // the bytes are read from the connection
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status %d", resp.StatusCode)
	}
	for _, text := range []string{"hello", "again"} {
		if _, err := fmt.Fprintln(conn, text); err != nil {
			t.Fatal(err)
		}
		if line, err := r.ReadString('\n'); err != nil || line != text+"\n" {
			t.Fatalf("got %q back, %v", line, err)
		}
	}
}
