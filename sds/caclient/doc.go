// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package caclient asks a certificate authority that speaks
// istio.v1.auth.IstioCertificateService (the control plane's or Istio's) for
// certificates.
//
// The agent gives Client.Sign to the workload of package sds, which decides when
// to ask and what to do with an error: this package makes one attempt for each
// call. Each call dials anew, with the roots and the certificate that are in
// force then, unless the authority was only busy. Where a client certificate may
// be the reason of a refusal, the next call goes with the token alone.
//
// An error tells when a busy authority wants to be asked again. How far our clock
// is from the authority's is measured with each answer.
//
// A token is read for each call, travels only over TLS and never ends in a log
// or an error. The package runs no goroutine of its own; those of the gRPC
// connection end with Client.Run.
package caclient
