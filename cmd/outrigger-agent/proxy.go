// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/bootstrap"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

const proxyLong = `proxy runs the agent and its Envoy until SIGTERM or SIGINT. Then readiness goes off,
Envoy drains for terminationDrainDuration of ProxyConfig, and both end with code 0. A
second signal ends them at once, and so does the first one after POST /drain of the
status port has drained. When Envoy ends by itself, the agent says why and ends with
code 1; other errors end with 255. With --envoy-restart=N/duration a crashed Envoy is
started again instead, up to N times in any such duration.

The role is sidecar (the default) or router. The configuration comes from flags, the
pod's annotations, the environment (docs/ENV-agent.md) and the mesh config file, in
this order.`

func newProxyCommand(p process, logs *logFlags) *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy [sidecar|router]",
		Short: "Run the agent and its Envoy",
		Long:  proxyLong,
		// For completion only: parseRole says what is wrong with others.
		ValidArgs: []string{node.Sidecar, node.Router},
		Example: "  # in a pod, as the entrypoint of the istio-proxy container\n" +
			"  outrigger-agent proxy sidecar --domain default.svc.cluster.local\n\n" +
			"  # a gateway with a mesh config file\n" +
			"  outrigger-agent proxy router --meshConfig ./etc/istio/config/mesh",
		RunE: func(cmd *cobra.Command, args []string) error {
			role, err := parseRole(args)
			if err != nil {
				return err
			}
			if f.stsPort != 0 {
				return fmt.Errorf("--stsPort is %d: the token exchange is not supported yet, remove the flag", f.stsPort)
			}
			if f.templateFile != "" && f.templateFile != istioTemplate {
				return fmt.Errorf("--templateFile is %q: %s", f.templateFile, bootstrap.TemplateRefused)
			}
			life, err := f.life(p.now)
			if err != nil {
				return err
			}
			f.note(cmd.Flags())
			log, err := logs.logger()
			if err != nil {
				return err
			}
			env, warnings := readEnvironment(p.environ)
			for _, flag := range f.deprecated {
				log.Warn("a deprecated flag is used; see --help for its successor", "name", flag)
			}
			for _, flag := range f.ineffects {
				log.Warn("a flag is accepted but has no effect", "name", flag)
			}
			tuneRuntime(env)
			cfg, more, err := resolve(sources{role: role, flags: f, jsonLog: logs.asJSON, env: env, read: os.ReadFile, addresses: hostAddresses})
			for _, warning := range slices.Concat(warnings, more) {
				log.Warn("the configuration holds something that is not used", "reason", warning)
			}
			if err != nil {
				return err
			}
			logConfig(log, cfg)
			return runAgent(cmd.Context(), cfg, log, life)
		},
	}
	f.add(cmd.Flags())
	return cmd
}

// parseRole reads the role. What stands behind it is ignored, as pilot-agent
// does.
func parseRole(args []string) (string, error) {
	if len(args) == 0 {
		return node.Sidecar, nil
	}
	switch role := args[0]; role {
	case node.Sidecar, node.Router:
		return role, nil
	case node.Waypoint, node.Ztunnel:
		return "", fmt.Errorf("role %q: ambient mode is not supported, use sidecar or router", role)
	default:
		return "", errors.New("role \"" + role + "\" is unknown, use sidecar or router")
	}
}
