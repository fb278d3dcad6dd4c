// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// localControl is the default debug address of a control plane, and the local address of kubectl
// port-forward to a pod.
const localControl = "127.0.0.1:15014"

// Controls returns the default control planes: those in named, else that of the only mesh that runs
// on this machine, else the one that listens at localControl, else those of the cluster, which may be nil.
func Controls(named string, cluster *Cluster) ([]string, error) {
	if named != "" {
		return strings.Split(named, ","), nil
	}
	running, err := mesh.RunningControls(os.TempDir())
	switch {
	case err != nil:
		return nil, err
	case len(running) > 1:
		var choices []string
		for _, control := range running {
			file, process, err := mesh.RunningFile(os.TempDir(), control)
			if err != nil {
				return nil, err
			}
			choices = append(choices, fmt.Sprintf("--control %s is that of %s, process %s", control, file, process))
		}
		return nil, fmt.Errorf("several meshes run on this machine: choose one: %s", strings.Join(choices, "; "))
	case len(running) == 0 && cluster.usable() && !maybeControl(localControl):
		return cluster.controls()
	case len(running) == 0:
		running = []string{localControl}
	}
	return running, nil
}

// maybeControl reports whether a control plane may listen at an address of this machine. On a node, the
// metrics of the CNI plugin are at the same port; what has no debug questions is none.
func maybeControl(address string) bool {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + address + "/debug/list") // the client has a limit
	if err != nil {
		var failed *net.OpError
		return !errors.As(err, &failed) || failed.Op != "dial" // it may be busy
	}
	_ = resp.Body.Close() // the status is enough
	return resp.StatusCode != http.StatusNotFound
}

// isolated reports whether a control plane is that of a mesh on this machine whose workloads have
// network namespaces. Like Controls it sees only meshes of this user.
func isolated(control string) bool {
	isolation, err := mesh.RunningIsolation(os.TempDir(), control)
	return err == nil && isolation == mesh.IsolateNetns
}
