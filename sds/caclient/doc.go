// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package caclient asks a certificate authority that speaks
// istio.v1.auth.IstioCertificateService (the control plane's or Istio's) for
// certificates.
//
// The agent gives Client.Sign to the workload of package sds, which decides when
// to ask and what to do with an error: this package makes one attempt for each
// call. The connection is dialled by the first call, closed after a while
// without calls, and dialled anew with the roots that are then in force.
//
// A token is read for each call, travels only over TLS and never ends in a log
// or an error. The package runs no goroutine of its own; those of the gRPC
// connection end with Client.Run.
package caclient
