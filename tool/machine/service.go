// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// pollEvery is the interval at which the state of the service is read.
const pollEvery = 200 * time.Millisecond

// start starts the agent's service and waits until it is ready.
func (h *host) start(ctx context.Context, timeout time.Duration) error {
	if _, err := h.run(ctx, "systemctl", "--quiet", "enable", unit); err != nil {
		return err
	}
	// Without --no-block, it would print nothing until the agent is ready.
	if _, err := h.run(ctx, "systemctl", "start", "--no-block", unit); err != nil {
		return err
	}
	h.say("started %s", unit)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	said := ""
	for {
		state, err := h.run(ctx, "systemctl", "show", "--property", "ActiveState,StatusText", unit)
		active, status := "", ""
		for line := range strings.Lines(state) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch name {
			case "ActiveState":
				active = value
			case "StatusText":
				status = clip.Text(value, 500)
			}
		}
		if status != "" && status != said {
			said = status
			h.say("agent: %s", status)
		}
		if err == nil && active == "active" {
			h.say("this machine is part of the mesh")
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent is not ready (%s): it keeps trying; journalctl --unit outrigger-agent says why", cmp.Or(said, active, "no state"))
		case <-tick.C:
		}
	}
}

const leaveLong = `Take this machine out of the mesh: stop the agent, which removes its rules, and remove
the files that outrigger join wrote, with the key. The packages stay installed. The
machine's WorkloadEntry is removed soon after the agent has stopped.`

// NewLeaveCommand returns the command leave.
func NewLeaveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "leave", Short: "Take this machine out of the mesh", Long: leaveLong, Example: "  sudo outrigger leave", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return system(cmd.OutOrStdout()).leave(cmd.Context()) },
	}
}

// leave undoes join.
func (h *host) leave(ctx context.Context) error {
	if _, err := h.checkUser(ctx, nil); err != nil {
		return errors.New("leaving removes files below /etc and stops a service: use sudo")
	}
	path, ours := h.joined()
	switch {
	case path == "":
		return errors.New("this machine is not part of a mesh")
	case !ours:
		return fmt.Errorf("outrigger join did not write %s: stop the agent with systemctl disable --now outrigger-agent, and remove the file", path)
	}
	if h.managed() {
		if _, err := h.run(ctx, "systemctl", "--quiet", "disable", "--now", unit); err != nil {
			return err
		}
		h.say("stopped %s", unit)
	}
	if err := h.remove(); err != nil {
		return err
	}
	h.say("this machine has left the mesh")
	return nil
}
