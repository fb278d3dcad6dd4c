// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"io"
	"net"
	"net/http"
	"testing"
)

func TestDebugPaths(t *testing.T) {
	t.Parallel()
	for ip, want := range map[string]int{"127.0.0.1": http.StatusOK, "127.0.0.6": http.StatusForbidden, "10.0.0.1": http.StatusForbidden} {
		t.Run(ip, func(t *testing.T) {
			t.Parallel()
			_, address := serve(t, func(c *Config) {
				c.Listener = from{c.Listener, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1234}}
				c.Loopback.Debug = map[string]http.Handler{"/debug/own": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, "own") // the test checks the response
				})}
				c.Loopback.Logging = c.Loopback.Debug["/debug/own"]
			})
			body := "own"
			if want != http.StatusOK {
				body = "Only requests from localhost"
			}
			wantAnswer(t, address, "/debug/own", want, body)
			if code, _, _ := do(t, http.MethodPost, address, "/debug/own", nil); want == http.StatusOK && code != http.StatusMethodNotAllowed {
				t.Errorf("POST /debug/own = %d, want 405", code)
			}
			refused := want
			if want == http.StatusOK {
				refused = http.StatusMethodNotAllowed
			}
			for method, code := range map[string]int{http.MethodGet: want, http.MethodPost: want, http.MethodDelete: refused} {
				if got, _, _ := do(t, method, address, "/debug/logging", nil); got != code {
					t.Errorf("%s /debug/logging = %d, want %d", method, got, code)
				}
			}
		})
	}
}
