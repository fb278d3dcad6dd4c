// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"os"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
)

// Ports returns the ports of Envoy's admin interface and of the agent's status server that an agent
// with this configuration has. A status port of 0 means that there is none. If the configuration
// has an error, Ports returns the default ports.
func Ports(ctx context.Context, c Config) (admin, status int) {
	ignore := func(string, ...any) {} // the running agent has logged its warnings
	src := sources{
		Config: c, read: os.ReadFile,
		lookup: func(context.Context, string) ([]string, error) { return nil, errors.New("not needed") },
	}
	pc, _, err := resolveProxyConfig(ctx, src, podInfo(src.read, annotationsFile, ignore), ignore)
	if err != nil {
		pc = meshconfig.DefaultProxyConfig()
	}
	return int(pc.GetProxyAdminPort()), int(pc.GetStatusPort())
}
