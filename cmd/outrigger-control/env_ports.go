// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/replicas"
	"github.com/outrigger-mesh/outrigger/controlplane/server"
)

// debugVariables are the rows of the table about debug questions.
func debugVariables() []variable {
	return []variable{
		{"ENABLE_DEBUG_ON_HTTP", "true", "serves debug queries at /debug of httpAddr and monitoringAddr, to callers on this machine and to authenticated callers", boolean(func(e *environment) *bool { return &e.DebugHTTP })},
	}
}

// limitVariables are the rows of the table about limits.
func limitVariables() []variable {
	return []variable{
		{"OUTRIGGER_CONNECTIONS_PER_ADDRESS", strconv.Itoa(server.DefaultConnectionsPerAddress), "connections that one address may have to each gRPC port, of which 100 a second may be new, or more in proportion where this is more than 512; more are for proxies that share an address behind a translation, and then as many of them may have the same identity. A /64 network of IPv6 may have 16 times as many. Addresses of this machine have no limit", func(e *environment, s string) error {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is not a number of connections: write for example %d", s, server.DefaultConnectionsPerAddress)
			}
			e.ConnectionsPerAddress = n
			return nil
		}},
	}
}

// mcpVariables are about other control planes that take the configuration from
// this one.
func mcpVariables() []variable {
	return []variable{
		{"OUTRIGGER_MCP_READERS", "", "service accounts of other control planes that may take all configuration objects from this one (their source xds://), as namespace/account, with commas between; * stands for all accounts of a namespace (default: all of the namespace of the control plane)", func(e *environment, s string) (err error) {
			e.MCPReaders, err = accounts(s)
			return err
		}},
	}
}

// meshVariables are the rows of the table about the mesh config.
func meshVariables() []variable {
	return []variable{
		{"SHARED_MESH_CONFIG", "", "with Kubernetes: name of a ConfigMap in the namespace of the control plane whose key mesh lies beneath the mesh config, for settings that several revisions share", text(func(e *environment) *string { return &e.Mesh.Shared })},
		{"PILOT_HTTP10", "false", "all proxies take requests in HTTP/1.0, too; a single one does with HTTP10=1 in the metadata of its node", boolean(func(e *environment) *bool { return &e.Generate.HTTP10 })},
	}
}

// replicaVariables are the rows of the table about other replicas.
func replicaVariables() []variable {
	return []variable{
		{"OUTRIGGER_REPLICAS", "", "where the replicas of this control plane answer on --httpAddr, as host:port with commas between; a name stands for all of its addresses, as that of a headless service does. They ask each other how many proxies they have, and one that has more than its share has some connect again (default: proxies stay where they are)", func(e *environment, s string) error {
			e.Replicas = nil
			for item := range strings.SplitSeq(s, ",") {
				if item = strings.TrimSpace(item); item != "" {
					e.Replicas = append(e.Replicas, item)
				}
			}
			_, err := replicas.Resolve(e.Replicas)
			return err
		}},
	}
}
