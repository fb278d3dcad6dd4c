// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package mesh runs a mesh on this machine: a control plane and, for each workload of a mesh file,
// its application, an agent and an Envoy.
//
// It owns the mesh file (format, validation of all fields, reporting all problems at once), the
// state directory, the configuration generated from the mesh file, the tokens of the workloads, and
// the processes: it starts them, shows their output, restarts them when they exit, and stops them.
// [Up] implements the command outrigger up. [Running], [RunningControls] and [RunningState] let
// other commands of the same user find running meshes.
//
// New validates everything and starts nothing. Run owns all goroutines: one for each process, one
// that refreshes tokens, and one that waits until everything is ready and then shows what an [Observer]
// sees, beside the dashboard that it may serve. The package never speaks xDS, never signs a
// certificate and never changes the user's files.
package mesh
