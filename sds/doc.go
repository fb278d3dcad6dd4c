// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package sds manages the identity of a workload and serves it to Envoy.
//
// A Workload has chain, key and roots. Created by NewWorkload, its certificates are
// signed by an authority (by caclient) and renewed long before they expire; created by
// NewFileWorkload, it reads them from files. Server answers Envoy's secret discovery
// requests on a local socket: "default" (chain and key) and "ROOTCA" (roots and
// revocation lists) from the Workload, "file-cert:" and "file-root:" from named files.
// Files follows all files. Output writes the identity to a directory. The agent's other
// connections use Workload.Certificate as their client certificate.
//
// A private key leaves memory only inside a secret on the local socket and, if there is
// an Output, in its directory; it never occurs in a log or an error. A certificate or
// file that is still valid is never dropped because of a failure.
//
// Workload.Run, Files.Run and Output.Run own one goroutine, their caller's;
// Files.Run also that of fsnotify, once a file is followed. Server.Run owns those
// of its gRPC server, one or two for each open stream.
package sds
