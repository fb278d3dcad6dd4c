// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package platform tells which cloud a machine belongs to, where it stands
// there (region and zone), and what the node metadata PLATFORM_METADATA says
// of it. It knows AWS, Azure and Google Cloud.
//
// The agent calls Detect once, before it renders Envoy's bootstrap. A cloud
// is recognised by what its firmware says (DMI) or by what a person has
// written in the environment; only then its metadata service is asked. A
// machine of no cloud sends no packet and loses no time.
//
// Nothing here keeps a workload from starting: what is not known after the
// deadline is left out, and a line of the log says so. The package asks for no
// credentials, user data or keys. Goroutines: one for each request, all of
// them have ended when Detect returns.
package platform
