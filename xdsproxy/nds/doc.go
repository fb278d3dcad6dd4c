// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package nds defines the wire format of the name table: its type URL, its message, and the
// encoding.
//
// A control plane creates a [Table] of the names that a proxy may look up and sends it as the only
// resource of type [TypeURL]. The agent's relay decodes it and passes it to the agent's DNS server.
// The message is small and has no generated code; it is encoded and decoded field by field.
//
// The package is independent of DNS, streams and services, and imports neither side. It does no I/O
// and runs no goroutines.
package nds
