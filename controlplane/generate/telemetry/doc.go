// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package telemetry decides what an Envoy records about requests and connections, from Telemetry
// objects and the mesh config, and builds the parts of listeners that record it.
//
// [Of] returns what is in force for a workload, and [Effective.Observe] what to put into its
// listeners. Metrics are counted by Envoy's stats access logger: counters and histograms whose tags
// are formats of access logs. Access logs and spans go to the extension providers that objects select.
// A tracer of the API replaces the one of the bootstrap. Without one, connection managers name no
// tracer, so that Envoy uses that of its bootstrap. The package also decides which headers proxies use to tell each other
// about their workloads; see peer.go.
//
// The package is pure: no I/O, no clock, no goroutines.
package telemetry
