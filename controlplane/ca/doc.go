// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package ca is the certificate authority of the mesh: it keeps its roots,
// replaces them without an outage, signs certificate requests of workloads,
// makes the certificate of the control plane's own TLS server, and serves
// istio.v1.auth.IstioCertificateService.
//
// controlplane/server opens the Authority before anything listens, runs it,
// and registers the Service on the TLS server. What signs is plugged in from a
// directory, or made here and kept in a Store. A new root is first added to
// the roots that everybody is given, then it signs, and the old one is removed
// when the last certificate below it has run out; see rotation.go.
//
// Who is calling is decided by controlplane/authn; the identity of a
// certificate comes from there and never from the request. A private key
// leaves the package only into its Store, never into a log or an error. The
// only goroutine is Run's; certificates of servers are renewed by a handshake.
package ca
