// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import "github.com/outrigger-mesh/outrigger/controlplane/discovery/mcpserver"

// newMCP configures the server of objects for other control planes.
func (s *Server) newMCP(cfg Config) mcpserver.Config {
	readers := cfg.MCPReaders
	if len(readers) == 0 {
		readers = []string{cfg.Namespace + "/*"}
	}
	return mcpserver.Config{Objects: s.objects.store, Readers: readers}
}
