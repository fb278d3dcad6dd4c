// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package registry derives services and their endpoints from configuration objects and from the
// services and workloads that platforms, such as clusters, report.
//
// [Build] turns ServiceEntry and WorkloadEntry objects and the services of a [Platform] into
// [Services]. [Services.Update] applies a change: if only endpoints or workloads changed, it
// recomputes what they affect and shares the rest. The package controlplane/snapshot calls both.
// They read no clock, file or network, run no goroutines, never modify returned values, and are
// deterministic. They never fail: an unusable object becomes a [model.Problem] and does not affect
// the others.
package registry
