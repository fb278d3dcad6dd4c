// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// outageOf asks the agent of a workload how long it lasts, while the control plane does not respond.
func (s *shop) outageOf(t *testing.T, address string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(s.bin, "outrigger"), "status", "--agent", net.JoinHostPort(address, "15020")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{`identity +\d+h\d+m +20\S+Z +new connections fail`, `configuration +no limit`, `last good +\d+h\d+m +20\S+Z`} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("there is no %s in\n%s", want, out)
		}
	}
}
