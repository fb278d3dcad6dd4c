// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"net/http"
	"strings"
	"testing"
)

// TestProxyReadinessDetails checks that the readiness response of a running agent contains
// details.
func TestProxyReadinessDetails(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "127.77.44.12", `,"terminationDrainDuration":"0s"`, newControlPlane(t))
	a.waitReady()
	code, body := a.get(15020, "/healthz/ready")
	if code != http.StatusOK || !strings.HasPrefix(body, "ready\ncontrol plane: connected, last response ") || !strings.Contains(body, "\ncertificate: until 20") {
		t.Errorf("readiness: got %d %s", code, body)
	}
}
