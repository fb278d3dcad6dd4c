// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import "github.com/outrigger-mesh/outrigger/controlplane/discovery"

// newMCP says what other control planes may take, and which.
func (s *Server) newMCP(cfg Config) discovery.MCPConfig {
	readers := cfg.MCPReaders
	if len(readers) == 0 {
		readers = []string{cfg.Namespace + "/*"}
	}
	return discovery.MCPConfig{Objects: s.store, Readers: readers}
}
