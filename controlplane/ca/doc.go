// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package ca is the certificate authority of the mesh: it manages the roots, rotates them without
// an outage, signs certificate requests of workloads, issues the certificate of the control plane's
// own TLS server, and serves istio.v1.auth.IstioCertificateService.
//
// Package controlplane/server opens the Authority before it listens, runs it, and registers the
// Service on the TLS server. The signing key is plugged in from a directory, or generated and saved
// in a Store. A new root is first distributed in addition to the existing roots, then signs; the
// old one is removed when the last certificate below it has expired (see rotation.go).
//
// Package controlplane/authn authenticates callers; the identity in a certificate comes from there
// and never from the request. A private key leaves the package only into its Store, never into a
// log or an error. The only goroutine is that of Run; certificates of servers are renewed during
// handshakes.
package ca
