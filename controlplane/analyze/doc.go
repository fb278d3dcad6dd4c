// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package analyze finds mistakes in the objects of a mesh that are valid one by one: references to
// what does not exist, policies that match nothing or deny everything, objects that contradict each
// other, and what Kubernetes objects beside them contradict.
//
// [Checks] is the table of all findings with their codes. Codes with IST are those of istioctl
// analyze; those with OUT are of this project. [Run] analyzes one state of the mesh, a snapshot with
// the objects that it was built from. [Read] reads files, and [Input.Build] makes the snapshot of them.
//
// The command outrigger analyze calls the package for files, and the debug server of the control
// plane for the objects in force. The package is pure: no I/O, no goroutines, no clock.
package analyze
