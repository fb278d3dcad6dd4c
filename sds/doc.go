// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package sds keeps the identity of a workload and serves it to Envoy.
//
// Workload holds chain, key and roots. Made by NewWorkload, it has certificates
// signed by an authority (by caclient) and renewed long before they run out;
// made by NewFileWorkload, it takes them from files. Server answers Envoy's
// secret discovery requests on a local socket: "default" (chain and key) and
// "ROOTCA" (roots, revoked certificates) with what the Workload holds,
// "file-cert:" and "file-root:" with named files. Files follows all files. Output
// writes the identity to a directory. The agent's other connections take their
// client certificate from Workload.Certificate.
//
// A private key leaves memory only inside a secret on the local socket and, if
// an Output is wanted, into its directory; it never reaches a log or an error. A
// certificate, or a file, that still works is never dropped, whatever fails.
//
// Workload.Run, Files.Run and Output.Run own one goroutine, their caller's;
// Files.Run also that of fsnotify, once a file is followed. Server.Run owns those
// of its gRPC server, one or two for each open stream.
package sds
