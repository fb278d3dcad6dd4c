// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package wire takes protobuf messages apart field by field, for those who need
// few of the fields and not the generated types, which cost memory. Agent and
// control plane share it. It keeps nothing, does no I/O and runs no goroutine.
package wire
