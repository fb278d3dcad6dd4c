// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package nds is the name table as both sides of the wire spell it: its type
// URL, its message, and how the message is encoded and read.
//
// A control plane makes a [Table] of the names that a proxy may look up and
// sends it as the one resource of type [TypeURL]; the agent's relay reads it
// and passes it to the agent's DNS server. The message is small and has no
// generated code, so it is written and read field by field.
//
// The package knows nothing of DNS, of streams or of services, and imports
// neither side. It does no I/O and runs no goroutine.
package nds
