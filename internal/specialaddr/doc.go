// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package specialaddr knows the addresses that an untrusted URL must not lead to:
// those of this machine and this link, multicast, and the metadata services of clouds. Programs
// check the address after name resolution, right before they connect. An operator can allow some.
//
// The package is separate, because agent and control plane must refuse the same addresses. It opens
// no connections.
package specialaddr
