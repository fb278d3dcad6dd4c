// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package netlab

import (
	"fmt"
	"os/exec"
)

// ProxyID is the group id of agent and Envoy, whose traffic is not redirected.
const ProxyID = 1337

// Capture redirects the machine's outbound and inbound traffic to its Envoy, with the command
// istio-iptables of an agent's program. Flags, such as -m TPROXY, are added to the usual ones.
func (m *Machine) Capture(agent string, flags ...string) error {
	usual := []string{"istio-iptables", "-u", fmt.Sprint(ProxyID), "-i", "*", "-b", "*", "-d", "15090,15021,15020", "--dual-stack"}
	cmd := exec.Command(agent, append(usual, flags...)...)
	cmd.Env = []string{} // no settings but the flags
	return m.Do(func() error {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("istio-iptables: %w: %s", err, out)
		}
		return nil
	})
}
