// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

// RemoteConfig says how the Secrets of other clusters are read.
type RemoteConfig struct{}
