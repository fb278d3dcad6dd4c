// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package platform detects the cloud that a machine belongs to, its region and zone, and the node
// metadata PLATFORM_METADATA. It supports AWS, Azure and Google Cloud.
//
// The agent calls Detect once, before it renders Envoy's bootstrap. A cloud is recognised by its
// firmware (DMI) or by environment variables. Its metadata service is queried only after that: on a
// machine outside these clouds, the package sends no packets and causes no delay.
//
// No failure prevents a workload from starting: data that is missing after the deadline is omitted
// and logged. The package does not request credentials, user data or keys. Goroutines: one for each
// request; all of them have ended when Detect returns.
package platform
