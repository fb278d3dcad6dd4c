// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package sds keeps the identity of a workload and serves it to Envoy.
//
// Workload makes a private key and a certificate request, has it signed (by
// caclient), and does so again long before the certificate runs out. Server
// answers Envoy's secret discovery requests on a local socket with what the
// Workload holds: the secret "default" (chain and key) and "ROOTCA" (roots).
// The agent's other connections take their client certificate from
// Workload.Certificate.
//
// A private key stays in memory: it leaves only inside a secret on the local
// socket, and never reaches a log or an error. A certificate that still works
// is never dropped, whatever fails.
//
// Workload.Run owns one goroutine, its caller's. Server.Run owns those of its
// gRPC server, one or two for each open stream.
package sds
