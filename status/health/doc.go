// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package health checks the readiness of the application on a machine outside Kubernetes, according
// to the readinessProbe of ProxyConfig, and reports each change. The agent creates the checker and
// sends its reports to the control plane, which adds the machine to the endpoints or removes it.
//
// It counts like the kubelet: successThreshold or failureThreshold consecutive results change the
// state. The first state is always reported. The package does not use xDS, keeps no history and
// terminates only the commands that it runs.
//
// Goroutines: Run checks and reports sequentially on the caller's goroutine.
package health
