// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"fmt"
	"os"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// localControl is the default debug address of a control plane, and the local address of kubectl
// port-forward to a pod.
const localControl = "127.0.0.1:15014"

// Controls returns the default control planes: those in named, else that of the only mesh that runs
// on this machine, else localControl.
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

// isolated reports whether a control plane is that of a mesh on this machine whose workloads have
// network namespaces. Like Controls it sees only meshes of this user.
func isolated(control string) bool {
	isolation, err := mesh.RunningIsolation(os.TempDir(), control)
	return err == nil && isolation == mesh.IsolateNetns
}
