// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package registry derives services and their endpoints from configuration
// objects and from what platforms, such as clusters, say that they run.
//
// [Build] turns ServiceEntry and WorkloadEntry objects and the services of a
// [Platform] into [Services]; [Services.Update] follows a change: one of
// endpoints or workloads alone derives what it affects and shares the rest. The
// snapshot calls both. They read no clock, file or network, run no goroutine,
// write to nothing that was given out, and equal input gives equal output. They
// never fail: what cannot be used becomes a [model.Problem], and everything else
// works.
package registry
