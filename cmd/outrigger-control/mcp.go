// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
)

// mcpVariables are about other control planes that take the configuration from
// this one.
func mcpVariables() []variable {
	return []variable{
		{"OUTRIGGER_MCP_READERS", "", "service accounts of other control planes that may take all configuration objects from this one (their source xds://), as namespace/account, with commas between; * stands for all accounts of a namespace (default: all of the namespace of the control plane)", func(e *environment, s string) (err error) {
			e.mcpReaders, err = accounts(s)
			return err
		}},
	}
}

// accounts reads a list of service accounts.
func accounts(list string) ([]string, error) {
	var all []string
	for account := range strings.SplitSeq(list, ",") {
		if account = strings.TrimSpace(account); account == "" {
			continue
		}
		namespace, name, ok := strings.Cut(account, "/")
		if !ok || namespace == "" || namespace == "*" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%q is no account: write namespace/account or namespace/*", account)
		}
		all = append(all, account)
	}
	return all, nil
}

// newMCP says what other control planes may take, and which.
func (s *server) newMCP(env environment) discovery.MCPConfig {
	readers := env.mcpReaders
	if len(readers) == 0 {
		readers = []string{env.podNamespace + "/*"}
	}
	return discovery.MCPConfig{Objects: s.store, Readers: readers}
}
