// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package mesh runs a mesh on this machine: a control plane, and for each
// workload of a mesh file its application, an agent and an Envoy.
//
// It owns the mesh file (format, checks, every problem at once), the state
// directory, the configuration generated from the mesh file, the tokens of the
// workloads, and the processes: it starts them, shows what they say, starts
// again what ends, and stops them all. [Up] is the command outrigger up; [Running]
// [RunningControls] and [RunningState] tell other commands of this user what runs.
//
// New checks everything and starts nothing. Run owns all goroutines: one for
// each process, one that refreshes tokens, one that waits until everything is
// ready. It never talks xDS, never signs a certificate and never changes the
// user's files.
package mesh
