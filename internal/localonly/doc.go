// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package localonly distinguishes requests of programs on this machine from requests
// that others cause: other machines, callers of a proxy on this machine, and web pages
// in a browser on this machine. Debug ports answer the former only. It has no state.
package localonly
