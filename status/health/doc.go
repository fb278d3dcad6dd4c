// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package health asks the application of a machine outside Kubernetes whether it
// is ready, by the readinessProbe of ProxyConfig, and reports each change. The
// agent's wiring builds it and hands reports to the control plane, which takes
// the machine in and out of the endpoints.
//
// It counts as the kubelet does: successThreshold or failureThreshold results in
// a row make a verdict. The first verdict is reported too, whichever it is. It
// knows nothing of xDS, keeps no history and never ends anything but its commands.
//
// Goroutines: Run asks and reports, one after the other, in the caller's.
package health
