// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package tlspolicy restricts TLS to the versions, cipher suites and curves of a policy, as
// COMPLIANCE_POLICY of agents and control planes names it: in the programs themselves, and as
// parameters for Envoy. It is the last to set them, so that nothing else widens them.
//
// A policy chooses algorithms. It does not make a cryptographic module a validated one.
package tlspolicy
