// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestMaybeControl checks that another program at the port of a control plane is not taken for one.
func TestMaybeControl(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler http.Handler
		want    bool
	}{
		"metrics of another program":  {http.NotFoundHandler(), false},
		"questions that need a token": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }), true},
		"questions":                   {http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), true},
	} {
		server := httptest.NewServer(c.handler)
		if got := maybeControl(server.Listener.Addr().String()); got != c.want {
			t.Errorf("%s: maybeControl = %t, want %t", name, got, c.want)
		}
		server.Close()
	}
}
