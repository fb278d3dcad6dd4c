// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"strings"
	"testing"
)

// TestHotRestartArguments checks that Envoy's arguments disable hot restarts unless the flag is
// set.
func TestHotRestartArguments(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{false, true} {
		src := testSources(nil)
		src.Flags.HotRestart = on
		cfg, _, err := resolve(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		disabled := strings.Contains(strings.Join(cfg.envoyArgs, " "), "--disable-hot-restart")
		if disabled == on {
			t.Errorf("--hot-restart=%t: arguments %q", on, cfg.envoyArgs)
		}
		if sockets := hotRestart(cfg, nil).Sockets; (sockets != "") != on {
			t.Errorf("--hot-restart=%t: sockets %q", on, sockets)
		}
	}
}
