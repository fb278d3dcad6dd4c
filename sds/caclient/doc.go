// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package caclient requests certificates from an authority that implements
// istio.v1.auth.IstioCertificateService, such as the control plane or Istio.
//
// The agent passes Client.Sign to the workload of package sds, which decides when to call it and
// how to handle errors: this package makes one attempt per call. Each call dials again, with the
// current roots and certificate, unless the authority was only busy. If a client certificate may be
// the cause of a rejection, the next call uses only the token.
//
// Errors of a busy authority say when to retry. Each response is used to measure the difference
// between the local clock and the authority's.
//
// The token is read on each call. It is sent only over TLS, unless configured otherwise, and never
// appears in a log or an error. The package runs no goroutines of its own; those of the gRPC
// connection end with Client.Run.
package caclient
