// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package ca is the certificate authority of the mesh: it keeps a root (or an
// intermediate) in a directory, signs certificate requests of workloads, makes
// the certificate of the control plane's own TLS server, and serves
// istio.v1.auth.IstioCertificateService.
//
// cmd/outrigger-control opens the Authority before anything listens and
// registers the Service on the TLS server. Who is calling is decided by
// controlplane/authn; the identity of a certificate comes from there and never
// from the request.
//
// The private key of the authority leaves the package only into its own file,
// with mode 0600, and never into a log or an error. The package runs no
// goroutine: certificates of servers are renewed during a handshake.
package ca
