// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadyListsSources checks that until every config source was read, /ready lists exactly
// those that were not, without passwords.
func TestReadyListsSources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mesh, password := filepath.Join(dir, "mesh"), filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := "configSources:\n- address: \"memory://here\"\n- address: etcd://user@127.77.161.9:1/mesh?passwordFile=" + password + "\n"
	if err := os.WriteFile(mesh, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, func(c *Config) {
		c.Mesh.File = mesh
	})
	get := func() string {
		r, err := http.Get("http://" + s.ports.listeners.http.Addr().String() + "/ready")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }() // closing cannot lose data
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("/ready: got %d %s, error %v; want 503", r.StatusCode, body, err)
		}
		return string(body)
	}
	get()
	waiting := s.objects.loading()
	for strings.Contains(waiting, "memory://") { // which loads almost immediately
		waiting = get()
	}
	if !strings.HasPrefix(waiting, "configuration is still loading: waiting for etcd://") || !strings.Contains(waiting, "127.77.161.9:1") || strings.Contains(waiting, "secret") {
		t.Errorf("/ready: got %q", waiting)
	}
}
