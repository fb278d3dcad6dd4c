// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"fmt"
	"os"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// localControl is where a control plane answers questions unless it is configured
// otherwise, and where kubectl port-forward puts that of a pod.
const localControl = "127.0.0.1:15014"

// Controls returns the control planes that are asked when no flag names one:
// those of the list named, that of the one mesh that runs here, or the one of
// this machine.
func Controls(named string) ([]string, error) {
	if named != "" {
		return strings.Split(named, ","), nil
	}
	running, err := mesh.RunningControls(os.TempDir())
	switch {
	case err != nil:
		return nil, err
	case len(running) > 1:
		return nil, fmt.Errorf("several meshes run on this machine: choose one with --control %s", strings.Join(running, ", or --control "))
	case len(running) == 0:
		running = []string{localControl}
	}
	return running, nil
}
