// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package localonly distinguishes requests of programs on this machine from requests that others
// cause: other machines, clients of a proxy on this machine, and web pages in a browser on this
// machine. Debug ports accept only the former. The package has no state.
package localonly
