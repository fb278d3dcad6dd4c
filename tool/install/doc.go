// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package install installs the control plane in a cluster and removes it: it renders the chart in
// charts/outrigger as Helm does, and applies the objects on the server. cmd/outrigger calls it.
//
// It stores nothing about an installation except the labels of its objects, so kubectl can take over
// at any time. It never deletes a namespace, the certificate authority, or an object without its
// labels. There are no goroutines.
package install
