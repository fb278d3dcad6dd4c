// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/revisions"
)

// TestPatchAfterRestart edits a patch of an EnvoyFilter so that Envoy would refuse it: the version
// before stays in force, also after a restart of the control plane.
func TestPatchAfterRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	filter := func(value string) {
		write(t, map[string][]byte{filepath.Join(config, "filter.yaml"): fmt.Appendf(nil, `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: buffers, namespace: shop}
spec:
  configPatches:
  - applyTo: LISTENER
    patch: {operation: MERGE, value: {%s}}
`, value)})
	}
	run := func(steps func(s *Server)) {
		s, err := makeServer(t, func(c *Config) {
			c.ConfigDir, c.StateDir = config, filepath.Join(dir, "ca")
			c.Listen.Plaintext, c.Status.On = testHost+":0", false
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		waitUntil(t, "the first snapshot", s.discovery.Ready)
		deltaProxy(t, s, []string{"http_proxy"})
		steps(s)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	explains := func(s *Server, text string) {
		waitUntil(t, text, func() bool {
			_, body := s.ask(t, "/debug/explain?kind=EnvoyFilter&namespace=shop&name=buffers", nil)
			return strings.Contains(body, text)
		})
	}
	if err := os.Mkdir(config, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, map[string][]byte{filepath.Join(config, "web.yaml"): []byte(shopService), filepath.Join(config, "1.yaml"): machineFile("21")})
	filter("per_connection_buffer_limit_bytes: 4711")
	run(func(s *Server) {
		recorded := func(n int) {
			waitUntil(t, "versions are recorded", func() bool {
				h, err := s.revisions.List(revisions.Filter{Kind: model.EnvoyFilter})
				return err == nil && len(h.Versions) == n
			})
		}
		recorded(1)
		for n, limit := range []int{4712, 4713} {
			filter(fmt.Sprintf("per_connection_buffer_limit_bytes: %d, connection_balance_config: {}", limit))
			explains(s, "its last valid version stays in force: ")
			recorded(n + 2)
		}
	})
	run(func(s *Server) { explains(s, "its last valid version stays in force: ") })
}
