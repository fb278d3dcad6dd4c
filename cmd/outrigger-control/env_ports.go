// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/replicas"
	"github.com/outrigger-mesh/outrigger/controlplane/server"
	"github.com/outrigger-mesh/outrigger/internal/sdnotify"
)

// debugVariables are the rows of the table about questions and requests of administrators.
func debugVariables() []variable {
	return []variable{
		{"OUTRIGGER_ADMIN_SOCKET", "", "path of a Unix socket on which root and the user of the control plane can create join tokens of machines (outrigger join create); empty serves none", text(func(e *environment) *string { return &e.Listen.Admin })},
		{"ENABLE_DEBUG_ON_HTTP", "true", "serves debug queries at /debug of httpAddr and monitoringAddr, to callers on this machine and to authenticated callers", boolean(func(e *environment) *bool { return &e.DebugHTTP })},
	}
}

// managerVariables are the rows of the table about the service manager.
func managerVariables() []variable {
	return []variable{
		{"NOTIFY_SOCKET", "", "set by systemd: socket to report readiness, a line of status and the stop to", text(func(e *environment) *string { return &e.Manager.Socket })},
		{"WATCHDOG_USEC", "0", "set by systemd: microseconds after which it kills a control plane that does not report; 0: never", func(e *environment, s string) (err error) {
			e.Manager.Watchdog, err = sdnotify.ParseWatchdog(s)
			return err
		}},
	}
}

// limitVariables are the rows of the table about limits.
func limitVariables() []variable {
	return []variable{
		{"OUTRIGGER_CONNECTIONS_PER_ADDRESS", strconv.Itoa(server.DefaultConnectionsPerAddress), "limit of connections of one address to each gRPC port. 100 per second may be new, or proportionally more above 512. Raise it for proxies that share an address behind a NAT; the limit of streams of one identity rises with it. A /64 network of IPv6 may have 16 times as many. Addresses of this machine have no limit", count(func(e *environment) *int { return &e.ConnectionsPerAddress })},
	}
}

// mcpVariables are the rows of the table about control planes that read the
// configuration of this one.
func mcpVariables() []variable {
	return []variable{
		{"OUTRIGGER_MCP_READERS", "", "service accounts of other control planes that may read all configuration objects of this one (their source xds://), as namespace/account, comma-separated; * means all accounts of a namespace (default: all accounts in the namespace of the control plane)", func(e *environment, s string) (err error) {
			e.MCPReaders, err = accounts(s)
			return err
		}},
	}
}

// meshVariables are the rows of the table about the mesh config.
func meshVariables() []variable {
	return []variable{
		{"SHARED_MESH_CONFIG", "", "with Kubernetes: name of a ConfigMap in the namespace of the control plane whose key mesh has defaults for the mesh config, for settings that several revisions share", text(func(e *environment) *string { return &e.Mesh.Shared })},
		{"OUTRIGGER_DENIED_BY_HEADER", "false", "the response to a request that an AuthorizationPolicy denies has a header x-outrigger-denied-by, which names the rule to any client as namespace/name[rule], or rules that would have allowed it; for a single proxy, set DENIED_BY_HEADER=1 in its node metadata", boolean(func(e *environment) *bool { return &e.Generate.DeniedBy })},
		{"OUTRIGGER_ENVOYFILTER_LUA", "true", "EnvoyFilters and TrafficExtensions may contain Lua code; false ignores what does", negated(func(e *environment) *bool { return &e.Patches.NoLua })},
		{"OUTRIGGER_ENVOYFILTER_FILES", "true", "EnvoyFilters may name files beside the proxy as sources of configuration; false ignores patches that do", negated(func(e *environment) *bool { return &e.Patches.NoFiles })},
		{"PILOT_HTTP10", "false", "all proxies accept HTTP/1.0 requests; for a single proxy, set HTTP10=1 in its node metadata", boolean(func(e *environment) *bool { return &e.Generate.HTTP10 })},
	}
}

// replicaVariables are the rows of the table about other replicas.
func replicaVariables() []variable {
	return []variable{
		{"OUTRIGGER_REPLICAS", "", "addresses of --httpAddr of the replicas of this control plane, as host:port, comma-separated; a name means all of its addresses, such as that of a headless service. The replicas compare their numbers of proxies, and one that has more than its share makes some reconnect (default: proxies are not moved)", func(e *environment, s string) error {
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
