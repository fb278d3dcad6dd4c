// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package machine makes a machine without Kubernetes part of a mesh: join create asks the control
// plane for a one-time token, join checks the machine, enrols it, writes the files of the agent's
// service and starts it, leave undoes that. Backup saves and restores the control plane of a
// machine. The commands are those of the tool.
//
// Join trusts only the roots in the token, and writes nothing before all checks have passed. The
// package never speaks xDS, and runs no goroutines.
package machine
